"""The plan of a run: its stages in order, which of them are up to date, and doing those that are not.

Like make: to do a stage is to do first whatever it needs that is missing or out of date. What will be done is printed
before, with the reason: a setting, an input, a person's decisions or files that have changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from capro import config
from capro.config import Settings
from capro.errors import CaproError, RunError
from capro.pipeline.artefacts import FINISHED
from capro.pipeline.checksums import fingerprint
from capro.pipeline.engine import THIS_PROCESS, Engine
from capro.pipeline.progress import SILENT, Watch, duration
from capro.pipeline.ranks import is_main_process, process_count
from capro.pipeline.run import Run
from capro.pipeline.stage import Sources, Stage, perform

MISSING = "missing"
FORCED = "asked for"
FILES = "files of the source changed"
DECIDED = "decisions of a person changed"
OTHERWISE = "this version of capro makes it in another way"
LONG = 30 * 60  # seconds of work that are not replaced without asking

# asks a person whether what the lines name may be replaced; raises if not
Agree = Callable[[Sequence[str]], None]
Prepare = Callable[[Run, Sequence[str], Watch], None]  # checks, before stages of these names are done


@dataclass(frozen=True)
class Outlook:
    """What will be done with a stage, and why.

    Attributes:
        stage: Its name.
        state: As it is now.
        why: It is to be done; empty where it is fresh.
        certain: False where it is done again only if what it reads comes out different.
        settings: Whether settings that decide it have changed.
        sources: What it reads outside of the run directory, where that was looked at.
    """

    stage: str
    state: Literal["fresh", "stale", "to do"]
    why: str = ""
    certain: bool = True
    settings: bool = field(default=False, compare=False)
    sources: Sources = field(default=None, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"stage": self.stage, "state": self.state, "why": self.why, "certain": self.certain}


class Plan:
    """The stages of a run, in order.

    Args:
        stages: Their declarations.
        engine: Who does the stages' work that is split into parts.
        prepare: Called before stages are done, with the run and their names.
    """

    def __init__(
        self, stages: Iterable[Stage], engine: Engine = THIS_PROCESS, prepare: Prepare = lambda *_: None
    ) -> None:
        self._stages = {stage.name: stage for stage in stages}
        self.names = [*self._stages]
        self._engine, self._prepare = engine, prepare

    def __iter__(self) -> Iterator[Stage]:
        return iter(self._stages.values())

    def __getitem__(self, name: str) -> Stage:
        return self._stages[name]

    def replacing(self, *stages: Stage) -> Plan:
        """The same plan with stages of these names done in another way."""
        return Plan(
            (self._stages | {stage.name: stage for stage in stages}).values(), self._engine, self._prepare
        )

    def on(self, engine: Engine) -> Plan:
        """The same plan, whose work is done by another engine."""
        return Plan(self, engine, self._prepare)

    def of(self, settings: Settings) -> list[Stage]:
        """The stages that a run with these settings goes through."""
        return [stage for stage in self if stage.when(settings)]

    def all_names(self, run: Run) -> list[str]:
        """The names of the stages that a run goes through."""
        return [stage.name for stage in self.of(run.settings)]

    def needed(self, settings: Settings, names: Iterable[str]) -> list[Stage]:
        """Stages and all that they need, directly or not, in order."""
        needed, waiting = set[str](), [*names]
        while waiting:
            name = waiting.pop()
            if name not in needed:
                needed.add(name)
                waiting += [*self[name].inputs(settings), *self[name].uses]
        return [stage for stage in self if stage.name in needed]

    # --- what will be done ------------------------------------------------------------------------

    def look(
        self, run: Run, *names: str, force: bool = False, outside: bool = True, decisions: bool = True
    ) -> list[Outlook]:
        """What `do` would do with each stage that is needed, and why; nothing is done or written.

        Args:
            run: The run.
            names: Of the stages.
            force: Do them even if they are fresh.
            outside: Look at the files outside of the run directory that these stages read. Those of other stages are
                not looked at: results of a source that has grown, or is gone, still belong together.
            decisions: Whether what a person has decided since makes a stage stale.
        """
        stages = self.needed(run.settings, names)
        # by what each stage will be known; None where that cannot be said yet
        known: dict[str, str | None] = {}
        outlooks: dict[str, Outlook] = {}
        for stage in stages:
            named = stage.name in names
            outlooks[stage.name], known[stage.name] = _look_at(
                stage, run, known, force=force and named, outside=outside and named, decisions=decisions
            )
        done = {name for name, each in outlooks.items() if each.state != "fresh"}
        for stage in stages:  # what only makes others quicker is not done for those that are fresh
            users = [each.name for each in stages if stage.name in each.uses]
            if users and stage.name not in names and not done.intersection(users):
                outlooks[stage.name] = Outlook(stage.name, "fresh")
        return [*outlooks.values()]

    def in_words(self, run: Run, outlooks: Sequence[Outlook]) -> list[str]:
        """Stages that will be done, in lines for people: missing ones together, others with their reasons."""
        missing = [each.stage for each in outlooks if each.why == MISSING]
        others = [each for each in outlooks if each.why != MISSING]
        lines = [f"to do: {', '.join(missing)} ({MISSING})"] if missing else []
        return [*lines, *(f"to do: {each.stage} ({each.why}{self.kept(run, each)})" for each in others)]

    def kept(self, run: Run, outlook: Outlook) -> str:
        """Where the result of a stage goes that is done again, as a clause; empty where it is not kept."""
        keep = self[outlook.stage].keep and outlook.state == "stale" and not run.damaged(outlook.stage)
        return f"; the old result is kept in {run.next_number(outlook.stage)}" if keep else ""

    # --- doing it ---------------------------------------------------------------------------------

    def do(
        self, run: Run, *names: str, watch: Watch = SILENT, force: bool = False, agree: Agree | None = None
    ) -> dict[str, Any]:
        """Do stages, each after what it needs; returns the last one's result.

        What is fresh is skipped, so this is also how a run resumes. The settings of the run are written first.

        Args:
            run: The run.
            names: Of the stages.
            watch: Where progress is shown.
            force: Do them even if they are fresh.
            agree: Asked before long work, or what a person decided, is replaced; nobody is asked if unset.
        """
        self._prepare(run, names, watch)
        outlooks: dict[str, Outlook] = {}
        if is_main_process():
            outlooks = {each.stage: each for each in self.look(run, *names, force=force)}
            todo = [each for each in outlooks.values() if each.state != "fresh"]
            asked_for = [(names[0], MISSING)]
            if [(each.stage, each.why) for each in todo] != asked_for:
                watch.todo(self.in_words(run, todo))
            self._ask(run, [each for each in outlooks.values() if each.certain], watch, agree)
        run.save_settings()
        # of several ranks each stage takes the lock where all hear of a failure
        with run.alone() if process_count() == 1 else nullcontext():
            for stage in self.needed(run.settings, names):
                outlook, named = outlooks.get(stage.name), stage.name in names
                if outlook and not outlook.certain and not stage.is_fresh(run):
                    self._ask(run, [outlook], watch, agree)  # now it is certain
                self._do_one(run, stage, outlook, watch, named=named, force=force and named)
            run.save_settings()  # with the identity of the data
        return run.result(names[-1])

    def refresh(
        self, run: Run, *names: str, watch: Watch = SILENT, agree: Agree | None = None, decisions: bool = True
    ) -> None:
        """Do stages that are not fresh, and what they need, for a command that reads them; silent where all are.

        Files that are damaged are refused: what damaged them should be known before they are made again.

        Args:
            run: The run.
            names: Of the stages; those that have finished if none is named.
            watch: Where progress is shown.
            agree: See `do`.
            decisions: Whether what a person has decided since is a reason.
        """
        names = names or tuple(stage.name for stage in self.of(run.settings) if run.finished(stage.name))
        outlooks = self.look(run, *names, outside=False, decisions=decisions)
        todo = [each.stage for each in outlooks if each.state != "fresh"]
        for name in todo:
            run.refuse_damaged(name)
        if todo:
            self.do(run, *names, watch=watch, agree=agree)

    def _do_one(
        self, run: Run, stage: Stage, outlook: Outlook | None, watch: Watch, *, named: bool, force: bool
    ) -> None:
        """Do a stage unless it is fresh, and show what came of it."""
        fresh = outlook is not None and outlook.state == "fresh"
        done = False
        # with several ranks each stage is entered: only the main one knows what is fresh
        if named or not fresh or process_count() > 1:
            if named or not fresh:
                watch.begin(stage.name)
            sources = outlook.sources if outlook else None
            done = perform(
                run, stage, watch=watch, force=force, engine=self._engine, sources=sources, outside=named
            )
        record = run.finished(stage.name)
        if record is None:  # it would only make a stage quicker that is fresh
            return
        shown = watch if done or named else SILENT
        shown.end(stage.name, seconds=record["seconds"] if done else None)
        for text in stage.check(run):
            shown.warn(text)

    def _ask(self, run: Run, outlooks: Iterable[Outlook], watch: Watch, agree: Agree | None) -> None:
        """Ask before hours of work, or decisions of a person, are replaced."""
        if agree is None:
            return
        lines = []
        for each in outlooks:
            done = run.finished(each.stage) or {}
            if each.state == "stale" and done["seconds"] >= LONG:
                lines.append(f"{each.stage} took {duration(done['seconds'])} and is replaced ({each.why})")
            if each.state == "stale" and each.settings and self._decided_about(run, self[each.stage]):
                lines.append(f"{each.stage} is replaced ({each.why}): decisions on what is gone are not used")
        if lines:
            with watch.paused():
                agree(lines)

    def _decided_about(self, run: Run, stage: Stage) -> bool:
        """Whether a person has decided on what a stage finds, and it is not that which changes it."""
        own = stage.decisions(run) == (run.finished(stage.name) or {})["decisions"]
        return stage.subject and own and any(each.decisions(run) for each in self if not each.subject)


def _look_at(
    stage: Stage, run: Run, known: Mapping[str, str | None], *, force: bool, outside: bool, decisions: bool
) -> tuple[Outlook, str | None]:
    """What will be done with a stage, and by what it will be known."""
    name, done = stage.name, run.finished(stage.name)
    reads = {each: known[each] for each in stage.inputs(run.settings)}
    changed = _changed_settings(stage, run, done)
    try:
        causes = stage.causes(run, reads, outside=outside or bool(changed))
    except RunError:
        if all(run.finished(each) for each in reads):
            raise
        causes = None  # what decides it is in a stage that has not finished
    except CaproError:
        if done is None or outside or changed:
            raise
        # a file is gone that a setting names, not its result
        return Outlook(name, "fresh"), run.identity(name)
    if causes and done and not decisions:
        causes = replace(causes, decisions=done["decisions"])
    key = causes.fingerprint if causes else None
    sources = causes.sources if causes else None
    later = None if stage.sources or (done and "content" in done["result"]) else key
    if done is None:
        damaged = (run.folder(name) / FINISHED).exists()
        return Outlook(
            name, "to do", "its stage.json is damaged" if damaged else MISSING, sources=sources
        ), later
    reasons = [FORCED] if force else [*changed]
    sure = [each for each, identity in reads.items() if identity not in (None, done["reads"].get(each))]
    if sure and not reasons:
        reasons = [f"it reads {', '.join(sure)}"]
    if causes:
        reasons += [DECIDED] if causes.decisions != done["decisions"] else []
        reasons += [FILES] if causes.source != done["source"] else []
    if reasons:
        why = "; ".join(reasons)
        return Outlook(name, "stale", why, sources=sources, settings=bool(changed)), later
    unsure = [each for each, identity in reads.items() if identity is None]
    if unsure:
        why = f"only if the result of {', '.join(unsure)} is different"
        return Outlook(name, "stale", why, certain=False), None
    if damaged_files := run.damaged(name):
        return Outlook(name, "stale", f"{damaged_files[0]} is damaged", sources=sources), run.identity(name)
    if key != done["fingerprint"]:
        return Outlook(name, "stale", OTHERWISE, sources=sources), later
    return Outlook(name, "fresh", sources=sources), run.identity(name)


def _changed_settings(stage: Stage, run: Run, done: Mapping[str, Any] | None) -> list[str]:
    """The settings that decide a finished stage and have changed since, with both values."""
    if done is None or done["settings"] == run.settings.model_dump():
        return []
    made = config.validate(done["settings"], place=stage.name)
    before = _decided(stage, run.with_settings(made))
    if before == _decided(stage, run):
        return []
    names = config.differences(made, run.settings)
    taken = {name: run.with_settings(config.taking(made, run.settings, [name])) for name in names}
    alone = [name for name in names if _decided(stage, taken[name]) != before]
    values = {
        name: [config.plain_value(config.value_of(each, name)) for each in (made, run.settings)]
        for name in alone or names
    }
    return [f"{name} changed {old} -> {new}" for name, (old, new) in values.items()]


def _decided(stage: Stage, run: Run) -> str:
    """What the settings of a run say about a stage; a setting that cannot be used says that."""
    try:
        return fingerprint([stage.settings(run), stage.inputs(run.settings)])
    except CaproError as error:
        return str(error)
