"""A stage is declared once: its name, what it reads, the settings that decide it, its command, its work.

The plan of a run, freshness, hints, the order of ``--help``, the report's list of stages and the cost
table are derived from these declarations (``capro.stages`` holds them).
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from capro.config import Settings
from capro.errors import RunError
from capro.run import processes
from capro.run.artefacts import Artefact
from capro.run.directory import Run
from capro.run.progress import SILENT, Step, Watch
from capro.run.shards import wait_until

if TYPE_CHECKING:
    from capro.run.ranks import Ranks

T = TypeVar("T")
Result = Mapping[str, Any] | None


@dataclass(frozen=True)
class Stage:
    """One step of a run.

    Attributes:
        name: Of the stage and of its folder.
        work: Writes the artefacts; what it returns is kept in stage.json. Under ``content`` it may
            return a hash of what it wrote.
        settings: From the run to everything that decides the result, beside what is read.
        reads: Stages whose artefacts are read, in the order of the fingerprint; by settings where they
            decide it.
        uses: Stages that only make it quicker: done before it, no part of its fingerprint.
        implicit: Done without being asked for where a stage needs it.
        command: The command line that does it; ``capro NAME`` where it is the stage's own.
        summary: What it does, in a few words.
        ranks: Who works where several processes were launched: ``main`` alone, all of them sharing rows
            (``share``), or all of them exchanging tensors (``train``).
        when: Whether a run with these settings goes through it.
        after: Called on the main rank once the result is there: what is no longer needed goes.
        check: Called after the stage, done or fresh: returns warnings, may refuse.
    """

    name: str
    work: Callable[[Job], Result]
    summary: str = ""
    settings: Callable[[Run], Mapping[str, Any]] = lambda _: {}
    reads: Sequence[str] | Callable[[Settings], Sequence[str]] = ()
    uses: Sequence[str] = ()
    implicit: bool = False
    command: str = ""
    ranks: Literal["main", "share", "train"] = "main"
    when: Callable[[Settings], bool] = lambda _: True
    after: Callable[[Job], None] = lambda _: None
    check: Callable[[Run], Sequence[str]] = lambda _: ()

    def inputs(self, settings: Settings) -> list[str]:
        """The stages it reads under these settings."""
        return [*(self.reads(settings) if callable(self.reads) else self.reads)]

    def key(self, run: Run) -> str:
        """Its fingerprint in a run, as things are now."""
        return run.key(self.name, self.settings(run), self.inputs(run.settings))

    def is_fresh(self, run: Run) -> bool:
        """Whether it has finished with these settings and these inputs."""
        done = run.finished(self.name)
        return done is not None and done["fingerprint"] == self.key(run)


@dataclass(frozen=True)
class Job:
    """A stage at work: where it writes, what decides it, who shares it, and where progress is shown."""

    run: Run
    stage: Stage
    key: str
    watch: Watch = SILENT

    @property
    def settings(self) -> Settings:
        """Of the run."""
        return self.run.settings

    @property
    def folder(self) -> Path:
        """The stage's own folder."""
        return self.run.folder(self.stage.name)

    @cached_property
    def ranks(self) -> Ranks:
        """This process among those that were launched together."""
        from capro.run.ranks import ranks_of

        training = self.stage.ranks == "train"
        return ranks_of(self.settings, self.run.folder("log") if training else None)

    def bar(self, label: str, total: int | None) -> AbstractContextManager[Step]:
        """Progress of a part of the work."""
        return self.watch.bar(label, total)

    def file(self, artefact: Artefact[Any]) -> Path:
        """Where this stage writes an artefact."""
        return self.folder / artefact.file

    def write(self, artefact: Artefact[T], value: T) -> None:
        """Write an artefact of this stage."""
        artefact.save(self.file(artefact), value)

    def read(self, artefact: Artefact[T]) -> T:
        """An artefact of another stage, or one that this stage has just written."""
        if artefact.stage == self.stage.name:
            return artefact.load(self.file(artefact))
        return self.run.read(artefact)

    @contextmanager
    def scratch(self, name: str = "scratch") -> Iterator[Path]:
        """A folder for temporary files, empty at the start though a run was killed; it goes at the end."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        yield folder
        shutil.rmtree(folder, ignore_errors=True)

    def remove(self, artefact: Artefact[Any]) -> None:
        """Remove an artefact that other settings have left."""
        self.file(artefact).unlink(missing_ok=True)


def perform(run: Run, stage: Stage, *, watch: Watch = SILENT, force: bool = False) -> bool:
    """Do a stage unless it is fresh; True if it was done."""
    key = stage.key(run)
    job = Job(run, stage, key, watch)
    if processes.count() > 1:
        return _with_others(job, force=force)
    return _alone(job, stage.work, force=force)


def _alone(job: Job, work: Callable[[Job], Result], *, force: bool) -> bool:
    run, name = job.run, job.stage.name
    run.claim(name, job.key)
    done = run.finished(name)
    fresh = done is not None and done["fingerprint"] == job.key and not force
    if fresh:
        run.event("skipped", stage=name)
    else:
        with run.working(name, job.key) as result:
            result.update(work(job) or {})
        if name == "scan":
            run.write_settings()  # run.yaml names the data fingerprint
    job.stage.after(job)
    return not fresh


def _with_others(job: Job, *, force: bool) -> bool:
    """With several ranks the main one leads: it checks freshness, and its result counts."""
    stage, here = job.stage, job.ranks

    def work(job: Job) -> Result:
        # while tensors are exchanged a rank that fails cannot report it: the others see its process end
        here.exchanging = stage.ranks == "train"
        result = stage.work(job)
        here.exchanging = False
        here.meet()
        return result

    def lead(job: Job) -> Result:
        here.meet(True)  # under the lock: now the others may begin
        return work(job)

    with here.together():
        if here.main:
            done = _alone(job, lead, force=force)
            if not done:
                here.meet(False)
            here.meet((job.run.finished(stage.name) or {}).get("fingerprint"))
        else:
            done = bool(here.meet()[0])
            if done and stage.ranks != "main":
                work(job)
            elif done:
                here.meet()
            _see(job, fingerprint=here.meet()[0])
        here.meet()
    return done


def _see(job: Job, *, fingerprint: str | None) -> None:
    """Wait until this rank sees that the main one has finished the stage."""
    run, name = job.run, job.stage.name

    def seen() -> bool:
        return (run.finished(name) or {}).get("fingerprint") == fingerprint

    wait_until(seen, f"{run.folder(name)}: rank 0 has finished it, but this rank does not see it")


class Plan:
    """The stages of a run, in order.

    Args:
        names: Of the stages.
        load: From a name to the stage's declaration; called when a stage is first needed.
    """

    def __init__(self, names: Sequence[str], load: Callable[[str], Stage]) -> None:
        self.names = [*names]
        self._load = load

    def __iter__(self) -> Iterator[Stage]:
        return (self[name] for name in self.names)

    def __getitem__(self, name: str) -> Stage:
        return self._load(name)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def replacing(self, *stages: Stage) -> Plan:
        """The same plan with stages of these names done in another way."""
        others = {stage.name: stage for stage in stages}
        return Plan(self.names, lambda name: others[name] if name in others else self[name])

    def of(self, settings: Settings) -> list[Stage]:
        """The stages that a run with these settings goes through."""
        return [stage for stage in self if stage.when(settings)]

    def command(self, stage: str, path: Path) -> str:
        """The command that does a stage of a run, ready to be copied; ``run`` is all of them."""
        name = self[stage].command or stage if stage in self else "run"
        return f"capro {name} --run {shlex.quote(str(path))}"

    def do(self, run: Run, *names: str, watch: Watch = SILENT, force: bool = False) -> dict[str, Any]:
        """Do stages, each after the implicit ones that it needs; returns the last one's result."""
        ready: set[str] = set()
        for name in names:
            self.perform(run, self[name], watch=watch, force=force, ready=ready)
        return run.result(names[-1])

    def announce(
        self, run: Run, watch: Watch, *, first: Sequence[str] = (), last: Sequence[str] = ()
    ) -> None:
        """Name the stages to come; ``first`` and ``last`` are parts that are no stages of the plan."""
        watch.plan([*first, *(stage.name for stage in self.of(run.settings)), *last])

    def run(self, run: Run, *, watch: Watch = SILENT) -> None:
        """Do every stage in order; what is fresh is skipped, so this is also how a run resumes."""
        self.announce(run, watch)
        self.do(run, *(stage.name for stage in self.of(run.settings)), watch=watch)

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

        A stage that is missing is named before any work is done.

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
        for missing in self._unfinished(run, stage):
            own = f"`{self.command(missing, run.path)}` first, or " if missing != "scan" else ""
            raise RunError(
                f"{run.path}: the {missing} stage has not finished",
                hint=f"run {own}`{self.command('run', run.path)}` for all stages",
            )
        for needed in (*stage.inputs(run.settings), *stage.uses):
            if needed in self and self[needed].implicit:
                self.perform(run, self[needed], watch=watch, ready=ready, asked=False)
        watch.begin(stage.name)
        done = perform(run, stage, watch=watch, force=force)
        ready.add(stage.name)
        shown = watch if done or asked else SILENT
        shown.end(stage.name, seconds=(run.finished(stage.name) or {})["seconds"] if done else None)
        for text in stage.check(run):
            shown.warn(text)
        return run.result(stage.name)

    def _unfinished(self, run: Run, stage: Stage) -> Iterator[str]:
        """Stages that must be done by a command of their own before this one can be, in order."""
        for needed in (*stage.inputs(run.settings), *stage.uses):
            implicit = needed in self and self[needed].implicit
            if needed in self and (implicit or run.finished(needed) is None):
                yield from self._unfinished(run, self[needed])
            if not implicit and run.finished(needed) is None:
                yield needed
