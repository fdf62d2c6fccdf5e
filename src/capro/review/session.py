"""The state behind the pages: the verdicts of a run, its log and its pictures, kept up to date."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from capro.errors import ConfigError
from capro.pipeline.artefacts import REVIEW
from capro.pipeline.checksums import fingerprint
from capro.pipeline.run import Run
from capro.review.answers import ANSWERS, COMMANDS, Decision, Question
from capro.review.log import Action, open_log
from capro.review.pictures import Pictures
from capro.review.progress import summary
from capro.review.queue import load_table
from capro.review.views import View, Views
from capro.wording import many

MOST = 100_000  # samples that one action may decide


class OutOfDate(ConfigError):
    """A page shows what is no longer so."""


class ReviewSession:
    """Everything that the pages of one run are made from; safe to use from threads.

    Attributes:
        table: The verdicts by row.
        decided: Whether a person has answered, by row, (n,).
        scan: A row is the same picture as long as this is the same.
        version: A row has the same verdict as long as this is the same.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.log = open_log(run)
        self._lock = threading.RLock()
        self.reload()

    def reload(self) -> None:
        """Read the run again, after its stages were done again."""
        run = Run.open(self.run.path)
        table, scan = load_table(run), run.identity("scan")
        pictures = Pictures(table.images, run.settings.scan, run.path / REVIEW / "pictures" / scan)
        with self._lock:
            self.run, self.table, self.views, self.pictures = run, table, Views(table), pictures
            self.decided = np.zeros(len(table), dtype=bool)
            self._row_of: dict[str, int] = {}
            self._update_decided([*self.log.replay.by_sample])
            self.scan, self.version = scan, fingerprint([scan, run.identity("clean")])

    def follow(self) -> dict[str, Any]:
        """Read what other processes appended to the log; returns how new a page is that is made now."""
        with self._lock:
            self._changed_rows(self.log.refresh())
            return {"last": self.log.replay.last, "version": self.version}

    def _changed_rows(self, actions: Sequence[Action]) -> list[int]:
        return self._update_decided(self.log.replay.samples_of(actions))

    def _update_decided(self, samples: Sequence[str]) -> list[int]:
        """Update `decided` for some samples; returns their rows."""
        rows = self._rows_of(samples)
        self.decided[rows] = [self.decision(row) is not None for row in rows]
        return rows

    def _rows_of(self, samples: Sequence[str]) -> list[int]:
        """Rows of samples that the run has; remembered, since a search over a million ids takes a fifth of a second."""
        new = [sample for sample in samples if sample not in self._row_of]
        if new:
            self._row_of |= dict(zip(new, self.table.rows_of(new).tolist(), strict=True))
        return [self._row_of[sample] for sample in samples if self._row_of[sample] >= 0]

    @contextmanager
    def writing_at(self, version: object, sent: str = "") -> Iterator[None]:
        """Write something that was decided with this version of the verdicts; another one is refused.

        A request that is in the log already may come again with any version: its answer was lost.
        """
        with self._lock:
            if version != self.version:
                self.follow()
                if sent not in self.log.replay.by_request:
                    raise OutOfDate("the queue is new", hint="reload the page")
            yield

    # --- decisions --------------------------------------------------------------------------------

    def decision(self, row: int) -> Decision | None:
        """What is decided about a row."""
        return self.log.replay.current(self.table.sample_id(row))

    def decisions(self) -> dict[int, Decision]:
        """Everything that is decided, by row."""
        rows = np.flatnonzero(self.decided).tolist()
        return {row: decision for row in rows if (decision := self.decision(row)) is not None}

    def state(self, row: int) -> dict[str, Any]:
        """What the page shows of a row's decision."""
        decision = self.decision(row)
        kind, word = (decision.answer, decision.words) if decision else ("", "")
        return {"row": row, "kind": kind, "word": word}

    def decide(
        self, rows: Sequence[int], verb: str, label: str | None = None, *, person: str, view: View, reason: str = "",
        sent: str = "",
    ) -> list[int]:  # fmt: skip
        """Append one action for some rows, once however often it is sent; returns the rows that changed."""
        if not rows or len(rows) > MOST or not all(0 <= row < len(self.table) for row in rows):
            raise ConfigError(many(len(rows), "row"), hint=f"1 to {MOST:,} rows of this run")
        command = COMMANDS.get(verb)
        if command is None:
            raise ConfigError(f"no decision {verb!r}", hint="reload the page")
        if command.asks and label not in self.table.names:
            raise ConfigError(f"no class {label!r}", hint="choose one of the list")
        if command.multi_label and not self.table.multi_label:
            raise ConfigError("samples have one label here", hint="choose another one instead")
        with self._lock:
            random = self._asked_at_random(rows, view)
            if verb == "best":
                row_of = {int(self.table.duplicate_group[row]): row for row in rows}
                leaders = [row for group, row in row_of.items() if group >= 0]
                rows = [other for row in leaders for other in self.best_duplicate(row)[1]]
                if len(rows) > MOST:
                    raise ConfigError(f"{len(rows)} near duplicates", hint=f"at most {MOST:,} at once")
            rows = [*dict.fromkeys(rows)]
            decisions = [command.decide(self._question(row, label, random=row in random)) for row in rows]
            if not decisions:
                return []
            self._row_of |= {each.sample: row for each, row in zip(decisions, rows, strict=True)}
            context = {
                "view": view.query(),
                "verb": verb,
                "label": label,
                "reason": reason,
                "count": len(decisions),
            }
            context |= {"sent": sent} if sent else {}
            return self._changed_rows(self.log.decide(decisions, person=person, context=context))

    def _question(self, row: int, label: str | None, *, random: bool) -> Question:
        table = self.table
        return Question(
            sample=table.sample_id(row),
            given=table.labels(row, before=True),
            proposed=table.labels(row, before=False),
            random=random,
            multi_label=table.multi_label,
            before=self.decision(row),
            label=label or "",
        )

    def undo_or_redo(self, kind: str, person: str, sent: str = "") -> tuple[str, list[int]]:
        """Take the person's last action back, or bring it back; what it was, and the rows that changed."""
        with self._lock:
            actions = self.log.append(kind, person, {"sent": sent} if sent else {})
            rows = self._changed_rows(actions)
            mine = [action for action in actions if (action.kind, action.person) == (kind, person)]
            if not mine or mine[-1].target is None:
                return f"Nothing to {kind}.", rows
            action = self.log.replay.actions[mine[-1].target]
            verb, label = action.context.get("verb", "decision"), action.context.get("label")
            done = "Undone" if kind == "undo" else "Done again"
            what = f"{verb} {label!r}" if label else verb
            return f"{done}: {what}, {many(len(action.decisions), 'picture')}.", rows

    def changes(self, since: int) -> dict[str, Any]:
        """Rows that changed after an action, with their present state."""
        with self._lock:
            newest, replay = self.follow(), self.log.replay
            new = [replay.actions[n] for n in range(since + 1, replay.last + 1) if n in replay.actions]
            rows = self._rows_of(replay.samples_of(new)[:MOST])
            return {**newest, "rows": [self.state(row) for row in rows]}

    # --- questions --------------------------------------------------------------------------------

    def is_random(self, row: int, view: View) -> bool:
        """Whether the queue asks this sample because it was drawn at random."""
        return view.is_queue and bool(self.table.queue.random[row])

    def _asked_at_random(self, rows: Sequence[int], view: View) -> set[int]:
        """Of the rows of one answer, those that were asked at random; not what a group question decides along."""
        leader = self.table.queue.leader
        together = Counter(leader[[*set(rows)]].tolist())
        return {row for row in rows if self.is_random(row, view) and together[int(leader[row])] == 1}

    def members(self, row: int, view: View) -> list[int]:
        """The rows that a question of the queue decides together, this one first."""
        table = self.table
        if view.order != "gain" or self.is_random(row, view) or table.duplicate_group[row] < 0:
            return [row]
        group = table.group_of(row)
        same = group[(table.queue.leader[group] == table.queue.leader[row]) & ~self.decided[group]]
        return [row, *(int(other) for other in same if other != row)]

    def best_duplicate(self, row: int) -> tuple[int | None, list[int]]:
        """What "keep the best" does with the whole group of near duplicates of a row, whatever a page shows of it.

        What a person has labelled is best, then most pixels, then the surest.

        Returns:
            The row that stays, None where a person has dropped all of them; and the rows that are dropped,
            without those that are dropped already.
        """
        table, rows = self.table, self.table.group_of(row).tolist()
        kinds = {other: decision.kind for other in rows if (decision := self.decision(other)) is not None}

        def quality(other: int) -> tuple[bool, int, float, int]:
            labelled = other in kinds and kinds[other].about_content
            return labelled, int(table.pixels[other]), -float(table.error[other]), -other

        left = [other for other in rows if other not in kinds or not kinds[other].drops]
        kept = max(left, key=quality, default=None)
        return kept, [other for other in left if other != kept]

    def picture(self, scan: str, row: int, size: str) -> bytes | None:
        """The thumbnail of a row; None where it is of another scan, or cannot be read any more."""
        with self._lock:
            if scan != self.scan:
                return None
            pictures, position = self.pictures, int(self.table.positions[row])
        return pictures.read(position, size)

    def progress(self) -> dict[str, Any]:
        """Decided, left, agreement by class, and the estimate from the random part."""
        with self._lock:
            decisions = self.decisions()
            answers, drawn = [decision.answer for decision in decisions.values()], self.table.queue.drawn
            return {
                **summary(decisions, drawn),
                "left": len(self.table) - len(decisions),
                "first_open": next((row for row in drawn.tolist() if not self.decided[row]), None),
                "answers": {kind.counted: answers.count(name) for name, kind in ANSWERS.items()},
            }
