"""Whether a finished stage still fits the settings of its run, and which setting or input changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from capro import config
from capro.config import Settings
from capro.errors import CaproError, ConfigError
from capro.run.artefacts import FINISHED
from capro.run.directory import Run
from capro.run.fingerprints import fingerprint
from capro.run.stage import Stage

# a stage.json of version 0.1.0 does not say what
UNKNOWN = "capro 0.1.0 made it; its settings, its input or the way it is made have changed since"
FILES = "its files have changed since"
DECIDED = "a person has decided since"


@dataclass(frozen=True)
class Outlook:
    """What a run would do with a stage, and why."""

    stage: str
    state: Literal["fresh", "stale", "to do"]
    why: str = ""
    same: bool = False  # the result will be the same: nothing that reads it is done again


def decides(stage: Stage, run: Run, name: str, new: Settings) -> bool:
    """Whether the value that ``new`` has for a setting would make another result of a stage."""
    changed = run.with_settings(config.taking(run.settings, new, [name]))
    return _decided(stage, run) != _decided(stage, changed)


def outdated(stage: Stage, run: Run, coming: Mapping[str, str] | None = None) -> list[str]:
    """Why a finished stage does not fit settings, the stages it reads or a person's decisions; empty where it does.

    Files outside the run directory are not looked at: results of a source that has grown, or is gone,
    still belong together.

    Args:
        stage: The stage.
        run: Its run.
        coming: What stages that have not finished will be known by, where that can be said.
    """
    done, made = run.finished(stage.name) or {}, _made_with(stage, run)
    if made is None:
        return [] if _same_fingerprint(stage, run) else [UNKNOWN]
    found = [
        f"{name} was {config.plain_value(config.value_of(made, name))}, "
        f"is {config.plain_value(config.value_of(run.settings, name))}"
        for name in _changed(stage, run, made)
    ]
    for name in stage.inputs(run.settings):
        if run.finished(name) is None and (coming or {}).get(name) == done["reads"].get(name, ""):
            continue  # it will be the same again
        if run.finished(name) is None:
            found.append(f"{name} has not finished")
        elif done["reads"].get(name) != run.need(name) and not found:
            found.append(f"{name} was done again since")
    return found + [DECIDED] * _decided_since(stage, run, known=not found)


def outlook(stages: Iterable[Stage], run: Run) -> list[Outlook]:
    """What a run would do with each of its stages, in order."""
    found: list[Outlook] = []
    coming: dict[str, str] = {}
    unsure: set[str] = set()  # they may come out as they are: then nothing that reads them is done again
    for stage in stages:
        done, inputs = run.finished(stage.name), stage.inputs(run.settings)
        before = [each.stage for each in found if each.state != "fresh" and not each.same]
        again = [
            name
            for name in inputs
            if name in before and coming.get(name, "") != (done or {}).get("reads", {}).get(name)
        ]
        if done is None:
            coming |= _coming(stage, run)
            left = (run.folder(stage.name) / FINISHED).exists()
            found.append(Outlook(stage.name, "to do", "its stage.json is damaged" if left else ""))
        elif why := outdated(stage, run, coming):
            found.append(Outlook(stage.name, "stale", "; ".join(why)))
            unsure |= _known_by_content(stage, run)
        elif sure := [name for name in again if name not in unsure]:
            found.append(Outlook(stage.name, "stale", f"it reads {', '.join(sure)}"))
        elif again:
            why_not = f"only if the result of {', '.join(again)} is different"
            found.append(Outlook(stage.name, "stale", why_not))
            unsure.add(stage.name)
        elif damaged := run.damaged(stage.name):
            found.append(Outlook(stage.name, "stale", f"{damaged[0]} is damaged", same=True))
        elif not coming.keys() & {*inputs} and not stage.is_fresh(run):
            found.append(Outlook(stage.name, "stale", FILES))
            unsure |= _known_by_content(stage, run)
        else:
            found.append(Outlook(stage.name, "fresh"))
    return found


def _known_by_content(stage: Stage, run: Run) -> set[str]:
    """The stage, where those behind it ask for its content and not for how it was made."""
    return {stage.name} if "content" in ((run.finished(stage.name) or {}).get("result") or {}) else set()


def _coming(stage: Stage, run: Run) -> dict[str, str]:
    """What a stage that has not finished will be known by: its fingerprint, once what it reads is there."""
    try:
        return {stage.name: stage.key(run)}
    except CaproError:
        return {}


def _decided(stage: Stage, run: Run) -> str:
    """What the settings of a run say about a stage; a setting that cannot be used says that."""
    try:
        return fingerprint([stage.settings(run), stage.inputs(run.settings), stage.when(run.settings)])
    except CaproError as error:
        return str(error)


def _made_with(stage: Stage, run: Run) -> Settings | None:
    """The settings that a finished stage was made with, where it says so."""
    values = (run.finished(stage.name) or {}).get("settings")
    try:
        return None if values is None else config.validate(values, place=stage.name)
    except ConfigError:  # of another version
        return None


def _changed(stage: Stage, run: Run, made: Settings) -> list[str]:
    """Settings that decide a stage and differ from those it was made with."""
    before = run.with_settings(made)
    if _decided(stage, before) == _decided(stage, run):
        return []
    names = config.differences(made, run.settings)
    return [name for name in names if decides(stage, before, name, run.settings)] or names


def _decided_since(stage: Stage, run: Run, *, known: bool) -> bool:
    """Whether a person's decisions are others than those that a finished stage took in.

    Args:
        stage: The stage.
        run: Its run.
        known: Whether nothing else has changed: then the fingerprint of a stage that does not keep them says it.
    """
    said = stage.said(run)
    if said is None:
        return False
    kept: str | None = (run.finished(stage.name) or {}).get("decisions")
    if kept is None:  # of an earlier version
        return bool(said) and known and not _same_fingerprint(stage, run)
    return said != kept


def _same_fingerprint(stage: Stage, run: Run) -> bool:
    try:
        return stage.is_fresh(run)
    except CaproError:  # the source is not there any more
        return True
