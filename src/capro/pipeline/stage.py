"""A stage is declared once: its name, what it reads, the settings that decide it, its command, its work.

The plan of a run (``capro.pipeline.plan``), freshness, hints, the order of ``--help``, the report's list of
stages and the cost table are derived from these declarations (``capro.stages`` holds them).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from capro.config import Settings
from capro.pipeline.artefacts import Artefact
from capro.pipeline.checksums import fingerprint
from capro.pipeline.engine import THIS_PROCESS, Engine, lead
from capro.pipeline.progress import SILENT, Step, Watch
from capro.pipeline.ranks import Ranks, process_count, ranks_of
from capro.pipeline.run import Run
from capro.pipeline.shards import wait_until

T = TypeVar("T")
Result = Mapping[str, Any] | None
# what a stage reads outside of the run directory; its `fingerprint` is a hash of the files' state
Sources = Any


@dataclass(frozen=True)
class Causes:
    """What decides the result of a stage.

    Attributes:
        stage: Its name.
        settings: Those that decide it.
        reads: The stages that it reads, and by what each is known; None where that cannot be said yet.
        source: A hash of the files outside of the run directory; empty where it reads none.
        decisions: A hash of what a person has decided; empty where that does not decide it.
        sources: What it reads outside of the run directory, where that was looked at.
    """

    stage: str
    settings: Mapping[str, Any]
    reads: Mapping[str, str | None]
    source: str = ""
    decisions: str = ""
    sources: Sources = field(default=None, compare=False)

    @property
    def fingerprint(self) -> str | None:
        """Equal causes, equal fingerprint; None where it cannot be said yet."""
        reads = [*self.reads.values()]
        if None in reads:
            return None
        return fingerprint([self.stage, self.settings, reads, self.source, self.decisions])


@dataclass(frozen=True)
class Stage:
    """One step of a run.

    Attributes:
        name: Of the stage and of its folder.
        work: Writes the artefacts; what it returns is kept in stage.json. Under ``content`` it may
            return a hash of what it wrote.
        summary: What it does, in a few words.
        settings: From the run to the settings that decide the result.
        sources: From the run to what is read outside of its directory; such a stage returns a ``content``.
        decisions: From the run to a hash of what a person has decided, where that decides it; empty for nothing.
        subject: A person's decisions are about what it finds: samples, classes.
        reads: Stages whose artefacts are read, in the order of the fingerprint; by settings where they
            decide it.
        uses: Stages that only make it quicker: done before it, no part of its fingerprint.
        ranks: Who works where several processes were launched: ``main`` leads, and the others do the parts that it
            gives its engine; or all of them exchange tensors (``train``).
        when: Whether a run with these settings goes through it.
        keep: A result that is replaced is kept beside, under a number.
        check: Called after the stage, done or fresh: returns warnings, may refuse.
    """

    name: str
    work: Callable[[Job], Result]
    summary: str = ""
    settings: Callable[[Run], Mapping[str, Any]] = lambda _: {}
    sources: Callable[[Run], Sources] | None = None
    decisions: Callable[[Run], str] = lambda _: ""
    subject: bool = False
    reads: Sequence[str] | Callable[[Settings], Sequence[str]] = ()
    uses: Sequence[str] = ()
    ranks: Literal["main", "train"] = "main"
    when: Callable[[Settings], bool] = lambda _: True
    keep: bool = False
    check: Callable[[Run], Sequence[str]] = lambda _: ()

    def inputs(self, settings: Settings) -> list[str]:
        """The stages it reads under these settings."""
        return [*(self.reads(settings) if callable(self.reads) else self.reads)]

    def causes(
        self,
        run: Run,
        reads: Mapping[str, str | None] | None = None,
        *,
        sources: Sources = None,
        outside: bool = True,
    ) -> Causes:
        """What decides its result in a run, as things are now.

        Args:
            run: The run.
            reads: By what the stages that it reads will be known; as they are now if unset.
            sources: What it reads outside of the run directory, where that was looked at already.
            outside: Whether to look outside; otherwise it is taken to be as it was when the stage was done.
        """
        if reads is None:
            reads = {name: run.identity(name) for name in self.inputs(run.settings)}
        done, source = run.finished(self.name), ""
        if self.sources and done and not outside and not sources:
            source = done["source"]
        elif self.sources:
            sources = sources or self.sources(run)
            source = sources.fingerprint
        return Causes(self.name, self.settings(run), reads, source, self.decisions(run), sources)

    def is_fresh(self, run: Run, causes: Causes | None = None) -> bool:
        """Whether it has finished with these causes, or as things are now, and its files are whole."""
        done, causes = run.finished(self.name), causes or self.causes(run)
        return done is not None and done["fingerprint"] == causes.fingerprint and not run.damaged(self.name)


@dataclass(frozen=True)
class Job:
    """A stage at work: where it writes, what decides it, who shares it, and where progress is shown.

    Attributes:
        run: The run.
        stage: The stage.
        causes: What decides its result.
        folder: Where it writes.
        watch: Where progress is shown.
        engine: Who does work that is split into parts.
    """

    run: Run
    stage: Stage
    causes: Causes
    folder: Path
    watch: Watch = SILENT
    engine: Engine = THIS_PROCESS

    @property
    def key(self) -> str:
        """The fingerprint of its causes."""
        return str(self.causes.fingerprint)

    @property
    def settings(self) -> Settings:
        """Of the run."""
        return self.run.settings

    @cached_property
    def ranks(self) -> Ranks:
        """This process among those that were launched together."""
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


def perform(
    run: Run,
    stage: Stage,
    *,
    watch: Watch = SILENT,
    force: bool = False,
    engine: Engine = THIS_PROCESS,
    sources: Sources = None,
    outside: bool = True,
) -> bool:
    """Do a stage unless it is fresh; True if it was done.

    Args:
        run: The run.
        stage: The stage; what it reads must have finished.
        watch: Where progress is shown.
        force: Do it even if it is fresh.
        engine: Who does work that is split into parts.
        sources: What it reads outside of the run directory, where that was looked at already.
        outside: See `Stage.causes`.
    """
    # once: somebody may go on deciding meanwhile
    causes = stage.causes(run, sources=sources, outside=outside)
    job = Job(run, stage, causes, run.folder(stage.name), watch, engine)
    if process_count() > 1:
        return _with_others(job, force=force)
    with run.alone():
        return _alone(job, stage.work, force=force)


def _alone(job: Job, work: Callable[[Job], Result], *, force: bool) -> bool:
    run, stage, causes = job.run, job.stage, job.causes
    run.prepare_folder(stage.name, job.key)
    fresh = stage.is_fresh(run, causes) and not force
    if fresh:
        run.event("skipped", stage=stage.name)
    else:
        run.pull(*causes.reads, *stage.uses)
        made_of = {"reads": causes.reads, "source": causes.source, "decisions": causes.decisions}
        keep = stage.keep and not run.damaged(stage.name)
        with run.working(stage.name, job.key, made_of, keep=keep) as (folder, result):
            result.update(work(replace(job, folder=folder)) or {})
    run.remove_work(stage.name)
    return not fresh


def _with_others(job: Job, *, force: bool) -> bool:
    """With several ranks the main one leads: it checks freshness, and its result counts."""
    run, stage, ranks = job.run, job.stage, job.ranks

    def work(job: Job) -> Result:
        if stage.ranks == "main":
            return lead(ranks, lambda engine: stage.work(replace(job, engine=engine)))
        # while tensors are exchanged a rank that fails cannot report it: the others see its process end
        ranks.training = True
        result = stage.work(job)
        ranks.training = False
        ranks.exchange()
        return result

    def begin(job: Job) -> Result:
        ranks.exchange(str(job.folder))  # under the lock: now the others may begin
        return work(job)

    def finished() -> str | None:
        return (run.finished(stage.name) or {}).get("fingerprint")

    with ranks.together(), run.alone():
        if ranks.main:
            done = _alone(job, begin, force=force)
            if not done:
                ranks.exchange("")
            ranks.exchange(finished())
        else:
            folder = str(ranks.exchange()[0])
            done = bool(folder)
            if done:
                work(replace(job, folder=Path(folder)))
            fingerprint = ranks.exchange()[0]
            late = f"{run.folder(stage.name)}: rank 0 has finished it, but this rank does not see it"
            wait_until(lambda: finished() == fingerprint, late)
        ranks.exchange()
    return done
