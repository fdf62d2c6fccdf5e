"""The state behind the pages: a run's table, its log, its pictures; decisions by row, kept up to date."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.errors import ConfigError
from capro.models.classes import (
    IN_RUN,
    OWN_CLASSES,
    ClassSpec,
    class_file,
    classes_of,
    load_classes,
    save_classes,
)
from capro.pipeline import files
from capro.pipeline.artefacts import REVIEW
from capro.pipeline.checksums import fingerprint
from capro.pipeline.run import Run
from capro.review.copies import BestCopy, keep_best
from capro.review.log import Action, Decision, Log, log_file
from capro.review.pictures import Pictures
from capro.review.progress import findings
from capro.review.table import load_table
from capro.review.views import View, Views
from capro.wording import many

MOST = 100_000  # samples that one action may decide


class OutOfDate(ConfigError):
    """A page shows what is no longer so."""


class ReviewSession:
    """Everything that the pages of one run are made from; safe to use from threads."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.log = Log(log_file(run))
        self._lock = threading.RLock()
        self.reload()

    def reload(self) -> None:
        """Read the run again, after it has been done anew."""
        run = Run.open(self.run.path)
        table = load_table(run)
        pictures = Pictures(
            table.images, run.settings.scan, run.path / REVIEW / "pictures" / run.need("scan")
        )
        with self._lock:
            self.run, self.table, self.views, self.pictures = run, table, Views(table), pictures
            self.decided = np.zeros(len(table), dtype=bool)
            self.said: dict[int, Decision] = {}
            self._row_of: dict[str, int] = {}
            self._take(self.log.replay.of_sample)
            self.scan = fingerprint(run.need("scan"))  # a row is the same picture as long as this is the same
            self.version = fingerprint([self.scan, run.need("clean")])

    def _take(self, samples: Iterable[str]) -> list[int]:
        """Note what is decided now of some samples; returns their rows."""
        wanted = [*dict.fromkeys(samples)]
        found = []
        for sample, row in zip(wanted, self._rows(wanted), strict=True):
            if row < 0:
                continue
            decision = self.log.replay.current(sample)
            self.decided[row] = decision is not None
            if decision is None:
                self.said.pop(row, None)
            else:
                self.said[row] = decision
            found.append(row)
        return found

    def _rows(self, samples: Sequence[str]) -> list[int]:
        """Rows of samples, -1 for none; kept, since a search over a million ids takes a fifth of a second."""
        new = [sample for sample in samples if sample not in self._row_of]
        if new:
            self._row_of |= dict(zip(new, self.table.rows_of(new).tolist(), strict=True))
        return [self._row_of[sample] for sample in samples]

    def follow(self) -> None:
        """Take in what other processes appended."""
        with self._lock:
            self._took(self.log.refresh())

    def _took(self, actions: Sequence[Action]) -> list[int]:
        return self._take(self.touched(actions))

    def touched(self, actions: Iterable[Action]) -> list[str]:
        """Samples that actions changed, those of an undone one included."""
        found: list[str] = []
        for action in actions:
            target = self.log.replay.actions.get(action.target) if action.target else action
            found += [each.sample for each in (target or action).decisions]
        return found

    @contextmanager
    def at(self, version: object, sent: str = "") -> Iterator[None]:
        """Do a write that was made from this version of the table, while it stays; another one is refused.

        What is in the log already may come again under any version: its answer was lost.
        """
        with self._lock:
            if version != self.version:
                self.follow()
                if self.log.replay.known(sent) is None:
                    raise OutOfDate("the queue is new", hint="reload the page")
            yield

    # --- deciding ---------------------------------------------------------------------------------

    def decide(
        self, rows: Sequence[int], verb: str, label: str | None, *, who: str, view: View, reason: str = "",
        sent: str = "",
    ) -> list[int]:  # fmt: skip
        """Append one action for some rows, once however often it is sent; returns the rows that changed."""
        if not rows or len(rows) > MOST or not all(0 <= row < len(self.table) for row in rows):
            raise ConfigError(f"{len(rows)} rows", hint=f"1 to {MOST:,} rows of this run")
        if verb in ("label", "add", "remove") and label not in self.table.names:
            raise ConfigError(f"no class {label!r}", hint="choose one of the list")
        if verb in ("add", "remove") and not self.table.several:
            raise ConfigError("samples have one label here", hint="choose another one instead")
        with self._lock:
            if verb == "best":
                rows = [other for row in self._one_of_each_group(rows) for other in self.best_copy(row).out]
                if len(rows) > MOST:
                    raise ConfigError(f"{len(rows)} near duplicates", hint=f"at most {MOST:,} at once")
            made = [self._decision(row, verb, label, view) for row in dict.fromkeys(rows)]
            self._row_of |= {each.sample: row for each, row in zip(made, dict.fromkeys(rows), strict=True)}
            shown = {"view": view.query(), "verb": verb, "label": label, "reason": reason, "count": len(made)}
            shown |= {"sent": sent} if sent else {}
            return self._took(self.log.decide(made, who=who, shown=shown)) if made else []

    def _decision(self, row: int, verb: str, label: str | None, view: View) -> Decision:
        table = self.table
        given, proposed = (table.labels(row, before=before) for before in (True, False))
        shown: dict[str, Any] = {
            "sample": table.sample_id(row),
            "given": given,
            "proposed": proposed,
            "random": self.is_random(row, view),
        }
        chosen = (label or "",)
        if verb == "accept":
            return Decision(
                answer="labels" if proposed or (table.several and not given) else "out", yes=proposed, **shown
            )
        if verb in ("out", "unsure"):
            return Decision(answer="out" if verb == "out" else "unsure", **shown)
        if verb == "best":
            return Decision(answer="copy", **shown)
        if verb == "label":
            return Decision(answer="labels", yes=chosen, **shown)
        if verb == "anchor":
            before = self.said.get(row)
            own = before.yes if before is not None and before.answer == "labels" else proposed or given
            if not own:
                raise ConfigError(f"{shown['sample']} has no label", hint="give it one first")
            return Decision(answer="labels", yes=own, anchor=True, **shown)
        if verb == "add":
            return Decision(answer="labels", yes=chosen, whole=False, **shown)
        if verb == "remove":
            return Decision(answer="labels", no=chosen, whole=False, **shown)
        raise ConfigError(f"no decision {verb!r}", hint="reload the page")

    def best_copy(self, row: int) -> BestCopy:
        """What "keep the best" does with a row's whole group of near duplicates."""
        with self._lock:
            return keep_best(self.table, self.said, row)

    def _one_of_each_group(self, rows: Sequence[int]) -> list[int]:
        found = {int(self.table.copies[row]): row for row in rows}
        return [row for group, row in found.items() if group >= 0]

    def undo(self, who: str, sent: str = "") -> tuple[str, list[int]]:
        """Take the person's last action back; what it was, and the rows that changed."""
        with self._lock:
            actions = self.log.undo(who, sent)
            return self._turned(actions, "undo", "undone"), self._took(actions)

    def redo(self, who: str, sent: str = "") -> tuple[str, list[int]]:
        """Bring the action back that was taken back last."""
        with self._lock:
            actions = self.log.redo(who, sent)
            return self._turned(actions, "redo", "done again"), self._took(actions)

    def _turned(self, actions: Sequence[Action], kind: str, word: str) -> str:
        target = next((a.target for a in reversed(actions) if a.kind == kind), None)
        if target is None:
            return f"Nothing to {kind}."
        action = self.log.replay.actions[target]
        label = action.shown.get("label")
        what = f"{action.shown.get('verb', 'decision')}{f' {label!r}' if label else ''}"
        return f"{word[0].upper()}{word[1:]}: {what}, {many(len(action.decisions), 'picture')}."

    def changes(self, since: int) -> dict[str, Any]:
        """Rows that changed after an action, with their present state."""
        self.follow()
        with self._lock:
            replay = self.log.replay
            new = [replay.actions[n] for n in range(since + 1, replay.last + 1) if n in replay.actions]
            samples = [*dict.fromkeys(self.touched(new))][:MOST]
            rows = [row for row in self._rows(samples) if row >= 0]
            return {"last": replay.last, "version": self.version, "rows": [self.state(row) for row in rows]}

    def state(self, row: int) -> dict[str, Any]:
        """What the page shows of a row's decision."""
        said = self.said.get(row)
        if said is None:
            return {"row": row, "kind": "", "word": ""}
        words = {"out": "dropped", "copy": "dropped: near duplicate", "unsure": "not sure"}
        names = ", ".join(said.yes) or "no label"
        if said.answer == "labels" and not said.whole:
            names = ", ".join(
                [*(f"+ {name}" for name in said.yes), *(f"\N{MINUS SIGN} {name}" for name in said.no)]
            )
        word = words.get(said.answer, names + (" (anchor)" if said.anchor else ""))
        return {"row": row, "kind": said.answer, "word": word}

    # --- questions --------------------------------------------------------------------------------

    def is_random(self, row: int, view: View) -> bool:
        """Whether the queue asks this sample because it was drawn at random."""
        return view.is_queue and bool(self.random_rows[row])

    @property
    def random_rows(self) -> NDArray[np.bool_]:
        """Rows that the queue drew at random, (n,)."""
        queue = self.table.queue
        if self._random is None or len(self._random[1]) != len(self.table) or self._random[0] is not queue:
            found = np.zeros(len(self.table), dtype=bool)
            found[queue.order[queue.random]] = True
            self._random = queue, found
        return self._random[1]

    _random: tuple[Any, NDArray[np.bool_]] | None = None

    def members(self, row: int, view: View) -> list[int]:
        """The rows that a question of the queue decides together, this one first."""
        table = self.table
        if view.order != "gain" or self.is_random(row, view) or table.copies[row] < 0:
            return [row]
        same = table.group_of(row)
        same = same[table.queue.leader[same] == table.queue.leader[row]]
        open_ = [int(other) for other in same if other != row and not self.decided[other]]
        return [row, *open_]

    def picture(self, scan: str, row: int, size: str) -> bytes | None:
        """The thumbnail of a row; None where it is of another scan, or cannot be read any more."""
        with self._lock:
            if scan != self.scan:
                return None
            pictures, position = self.pictures, int(self.table.positions[row])
        return pictures.read(position, size)

    # --- figures ----------------------------------------------------------------------------------

    def progress(self) -> dict[str, Any]:
        """Decided, left, agreement by class, and the estimate from the random part."""
        with self._lock:
            said = {each.sample: each for each in self.said.values()}
            answers = {name: sum(each.answer == name for each in said.values()) for name in
                       ("labels", "out", "copy", "unsure")}  # fmt: skip
            found = findings(said, self._drawn(max(1000, 10 * len(said))))
            return {**found, "left": len(self.table) - len(said), "answers": answers}

    def _drawn(self, most: int) -> list[str]:
        return [str(i) for i in self.table.ids.take(self.table.queue.drawn[:most]).to_pylist()]

    # --- classes ----------------------------------------------------------------------------------

    def change_class(self, number: int, sense: str, definition: str, *, who: str) -> None:
        """Write another meaning of a class; the run takes it from its own copy of classes.yaml."""
        if self.run.copy is not None:  # run.yaml would name a file that other machines do not have
            raise ConfigError(
                f"{self.run.place}: in an object store, so a class's meaning cannot be changed here",
                hint="write a classes.yaml, and give it with --set data.classes=FILE",
            )
        own = self.run.path / OWN_CLASSES
        with self._lock, self.run.alone():
            run = Run.open(self.run.path)  # another process may have changed a setting since
            specs = load_classes(own) if class_file(run) == own else classes_of(run)
            old = specs[number]
            specs[number] = ClassSpec(old.name, sense or None, definition or None, old.query, old.ambiguous)
            trial = own.with_suffix(".new.yaml")
            try:
                save_classes(trial, specs)
                load_classes(trial)
                files.rename(trial, own)
            finally:
                trial.unlink(missing_ok=True)
            data = run.settings.data.model_copy(update={"classes": f"{IN_RUN}{OWN_CLASSES}"})
            self.run = run.with_settings(run.settings.model_copy(update={"data": data}))
            self.run.write_settings()
            self.log.note(
                "class", who=who, shown={"class": old.name, "sense": sense, "definition": definition}
            )
