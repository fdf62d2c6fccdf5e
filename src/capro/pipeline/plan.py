"""The plan of a run: its stages in order, which of them are fresh, and which setting or input changed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from capro import config
from capro.config import Settings
from capro.errors import CaproError, ConfigError, RunError
from capro.pipeline.artefacts import FINISHED
from capro.pipeline.checksums import fingerprint
from capro.pipeline.engine import THIS_PROCESS, Engine
from capro.pipeline.progress import SILENT, Watch
from capro.pipeline.ranks import is_main_process, process_count
from capro.pipeline.run import Run, is_run
from capro.pipeline.stage import Stage, perform

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


class Plan:
    """The stages of a run, in order.

    Args:
        stages: Their declarations.
        engine: Who does the stages' work that is split into parts.
    """

    def __init__(self, stages: Iterable[Stage], engine: Engine = THIS_PROCESS) -> None:
        self._stages = {stage.name: stage for stage in stages}
        self.names = [*self._stages]
        self._engine = engine

    def __iter__(self) -> Iterator[Stage]:
        return iter(self._stages.values())

    def __getitem__(self, name: str) -> Stage:
        return self._stages[name]

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def replacing(self, *stages: Stage) -> Plan:
        """The same plan with stages of these names done in another way."""
        return Plan((self._stages | {stage.name: stage for stage in stages}).values(), self._engine)

    def on(self, engine: Engine) -> Plan:
        """The same plan, whose work is done by another engine."""
        return Plan(self, engine)

    def as_applied(self) -> Plan:
        """The same plan with the decisions of a person that stages took in, not later ones: for what only measures."""
        return Plan((each.as_applied() for each in self), self._engine)

    def of(self, settings: Settings) -> list[Stage]:
        """The stages that a run with these settings goes through."""
        return [stage for stage in self if stage.when(settings)]

    def command(self, stage: str, run: str) -> str:
        """The command that does a stage of a run (`Run.place`), ready to be copied; ``run`` is all of them."""
        name = self[stage].command or stage if stage in self else "run"
        return f"capro {name} --run {shlex.quote(run)}"

    def do(
        self, run: Run, *names: str, watch: Watch = SILENT, force: bool = False, ready: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Do stages, each after the implicit ones that it needs; returns the last one's result.

        What is missing, out of date or set for stages that are not done here is refused before any work.

        Args:
            run: The run.
            names: Of the stages.
            watch: Where progress is shown.
            force: Do them even if they are fresh.
            ready: Stages that were done, or seen to be fresh, just now.
        """
        ready = set(ready)
        # of several ranks each stage takes the lock where all hear of a failure
        with run.alone() if process_count() == 1 else nullcontext():
            self._refuse_unused(run, names)
            self._check(run, self[names[0]], ready)
            if not any(run.finished(name) for name in self.names):
                self.keep_settings(run)  # nothing was made with others: a killed run goes on with these
            self._say_redone(run, names, watch)
            for name in names:
                self.perform(run, self[name], watch=watch, force=force, ready=ready)
            self.keep_settings(run, ready)
        return run.result(names[-1])

    def announce(
        self, run: Run, watch: Watch, *, first: Sequence[str] = (), last: Sequence[str] = ()
    ) -> None:
        """Name the stages to come; ``first`` and ``last`` are parts that are no stages of the plan."""
        watch.plan([*first, *(stage.name for stage in self.of(run.settings)), *last])

    def run(self, run: Run, *, watch: Watch = SILENT, ready: Iterable[str] = ()) -> None:
        """Do every stage in order; what is fresh is skipped, so this is also how a run resumes."""
        self.do(run, *(stage.name for stage in self.of(run.settings)), watch=watch, ready=ready)

    def perform(
        self,
        run: Run,
        stage: Stage,
        *,
        watch: Watch = SILENT,
        force: bool = False,
        ready: set[str] | None = None,
        asked: bool = True,
    ) -> dict[str, Any]:
        """Do a stage of this plan, or one that reads stages of it; returns its result.

        Args:
            run: The run.
            stage: The stage.
            watch: Where progress is shown.
            force: Do it even if it is fresh.
            ready: Stages that were done, or seen to be fresh, just now.
            asked: Mention it even if it is fresh.
        """
        ready = set() if ready is None else ready
        if stage.name in ready:
            return run.result(stage.name)
        self._check(run, stage, ready)
        for needed in (*stage.inputs(run.settings), *stage.uses):
            if needed in self and self[needed].implicit:
                self.perform(run, self[needed], watch=watch, ready=ready, asked=False)
        self._check(run, stage, ready)  # what was just done may be read by a stage that was not
        watch.begin(stage.name)
        done = perform(run, stage, watch=watch, force=force, engine=self._engine)
        ready.add(stage.name)
        shown = watch if done or asked else SILENT
        shown.end(stage.name, seconds=(run.finished(stage.name) or {})["seconds"] if done else None)
        for text in stage.check(run):
            shown.warn(text)
        if done:
            self.keep_settings(run, ready)
        return run.result(stage.name)

    # --- what is fresh ----------------------------------------------------------------------------

    def outlook(self, run: Run) -> list[Outlook]:
        """What ``run`` would do with each stage, and why; nothing is done or written."""
        return outlook(self.of(run.settings), run)

    def kept(self, run: Run, stage: Stage) -> Path | None:
        """Where the result of a stage will be kept when it is done again; None where it will not."""
        return run.kept(stage.name) if stage.keep and not run.damaged(stage.name) else None

    def require(self, run: Run, *names: str) -> None:
        """Refuse a run in which one of these stages, or one before it, is missing, damaged or out of date."""
        wanted = self._before(run, names, uses=False)
        for name in self.names:
            if name in wanted:
                self._refuse(run, name)

    def require_current(self, run: Run) -> None:
        """Refuse a run in which a finished stage is damaged or out of date; stages may be missing."""
        for stage in self.of(run.settings):
            run.refuse_damaged(stage.name)
            if run.finished(stage.name):
                self._refuse(run, stage.name)

    def decided_since(self, run: Run) -> bool:
        """Whether a person has decided something that finished stages do not know."""
        finished = [stage for stage in self.of(run.settings) if run.finished(stage.name)]
        return any(DECIDED in outdated(stage, run) for stage in finished)

    def _check(self, run: Run, stage: Stage, ready: Iterable[str]) -> None:
        """Refuse a stage that would read what is missing or out of date and has a command of its own."""
        self._check_inputs(run, stage, set(ready))

    def _check_inputs(self, run: Run, stage: Stage, checked: set[str]) -> None:
        """Check what a stage reads, directly or not, each stage once: those before it first."""
        for needed in (*stage.inputs(run.settings), *stage.uses):
            if needed in checked:
                continue
            checked.add(needed)
            if needed in self:
                self._check_inputs(run, self[needed], checked)
            if needed not in self or not self[needed].implicit:
                self._refuse(run, needed)

    def _refuse(self, run: Run, name: str) -> None:
        """Stop where a stage is missing, damaged or out of date."""
        run.refuse_damaged(name)
        if run.finished(name) is None:
            everything = self.command("run", run.place) + _as_options(run)
            own = f"`{self.command(name, run.place)}` first, or " if name in self and name != "scan" else ""
            raise RunError(
                f"{run.place}: the {name} stage has not finished",
                hint=f"run {own}`{everything}` for all stages",
            )
        if name in self and (why := outdated(self[name], run)):
            everything = self.command("run", run.place) + _as_options(run)
            raise RunError(
                f"{run.place}: the {name} stage is out of date: {'; '.join(why)}",
                hint=f"`{everything}` does it again, and the stages after it",
            )

    def _before(self, run: Run, names: Iterable[str], *, uses: bool = True) -> set[str]:
        """Stages and all that they read (and use), directly or not."""
        found, waiting = set[str](), [*names]
        while waiting:
            name = waiting.pop()
            if name in self and name not in found:
                found.add(name)
                stage = self[name]
                waiting += [*stage.inputs(run.settings), *(stage.uses if uses else ())]
        return found

    def _say_redone(self, run: Run, names: Sequence[str], watch: Watch) -> None:
        """Name the finished stages that are about to be replaced, and why."""
        if not is_main_process():
            return
        before = self._before(run, names)  # no stage that is not needed is imported
        for each in outlook([self[name] for name in self.names if name in before], run):
            stage = self[each.stage]
            if each.state == "stale" and (stage.name in names or stage.implicit):
                place = self.kept(run, stage)
                old = f"; the old result is kept in {place}" if place else ""
                watch.say(f"{stage.name} is done again: {each.why}{old}")

    # --- settings ---------------------------------------------------------------------------------

    def _refuse_unused(self, run: Run, names: Sequence[str]) -> None:
        """Refuse a changed setting that decides a finished stage, but none that is done here."""
        stored, used = run.stored(), self._before(run, names)
        for name in config.differences(stored, run.settings):
            deciding = self._decided_by(run.with_settings(stored), name, run.settings)
            if deciding and not used.intersection(deciding):
                raise ConfigError(
                    f"{config.override(run.settings, name)}: a setting of the {deciding[0]} stage, "
                    "which this command does not do",
                    hint=f"`{self.command('run', run.place)}{_as_options(run)}` changes it and does that stage again",
                )

    def keep_settings(self, run: Run, ready: Iterable[str] = ()) -> None:
        """Write the changed settings that decide a stage done just now, or no finished stage at all."""
        if not is_main_process():
            return
        with run.alone():
            stored = run.stored()
            before, kept = run.with_settings(stored), []
            for name in config.differences(stored, run.settings):
                deciding = self._decided_by(before, name, run.settings)
                if not deciding or set(ready).intersection(deciding):
                    kept.append(name)
            run.with_settings(config.taking(stored, run.settings, kept)).write_settings()

    def _decided_by(self, run: Run, name: str, new: Settings) -> list[str]:
        """The finished stages that a changed setting decides."""
        finished = [self[each] for each in self.names if run.finished(each)]
        return [each.name for each in finished if each.when(new) and decides(each, run, name, new)]


def _as_options(run: Run) -> str:
    """The settings that a run does not hold yet, as options of a command."""
    stored = run.stored() if is_run(run.path) else run.settings
    given = [config.override(run.settings, name) for name in config.differences(stored, run.settings)]
    return "".join(f" --set {shlex.quote(text)}" for text in given)
