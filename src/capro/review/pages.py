"""What the pages show of a sample and of a class; web texts are cut into pieces that match the class or not."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from capro.errors import ConfigError
from capro.models import wordnet
from capro.models.classes import (
    IN_RUN,
    OWN_CLASSES,
    ClassSpec,
    class_file,
    class_text,
    classes_of,
    load_classes,
    save_classes,
)
from capro.pipeline.artefacts import atomic_path
from capro.pipeline.run import Run
from capro.results.store import VERDICT_NAMES
from capro.review.pictures import similarity
from capro.review.queue import ReviewTable
from capro.review.session import ReviewSession
from capro.review.views import View
from capro.wording import many, plain, share

CLASSES_SHOWN = 5
SIMILAR_SHOWN, ANCHORS_SHOWN = 12, 6
FLOWS_SHOWN, CLASS_ANCHORS_SHOWN = 8, 24
NUMBERS = {
    "classifier_probability": "classifier probability",
    "prototype_similarity": "prototype similarity",
    "text_probability": "text probability",
    "text_distance": "text distance",
    "outlier_score": "outlier score",
    "near_duplicate_score": "near-duplicate score",
}  # columns of the verdicts
BESIDE = View(order="row")  # of a sample that is shown beside another, not asked


# --- one sample -----------------------------------------------------------------------------------


def tile(session: ReviewSession, row: int, view: View = BESIDE) -> dict[str, Any]:
    """A sample in the grid of a view."""
    table = session.table
    given, after = (table.labels(row, before=before) for before in (True, False))
    members = session.members(row, view)
    return {
        "row": row,
        "id": plain(table.sample_id(row), 120),
        "after": [plain(name, 80) for name in after],
        "verdict": VERDICT_NAMES[int(table.decision[row])],
        "move": label_change(given, after),
        "title": plain(next(iter(table.text(row).values()), ""), 120),
        "members": members,
        "random": session.is_random(row, view),
        "reason": reason(session, row, members, view) if view.order == "gain" else "",
        "group": int(table.duplicate_group[row]),
        "state": session.state(row),
    }


def label_change(given: tuple[str, ...], after: tuple[str, ...]) -> str:
    """What the method did with the labels, in words.

    >>> label_change(("cat",), ("dog",)), label_change(("cat",), ()), label_change(("a", "b"), ("b", "c"))
    ('cat → dog', 'cat, dropped', 'b, + c, − a')
    """
    if given == after:
        return ", ".join(given) or "no label"
    if not after:
        return f"{', '.join(given) or 'no label'}, dropped"
    if len(given) <= 1 and len(after) == 1:
        return f"{given[0] if given else 'no label'} → {after[0]}"
    parts = [name for name in given if name in after]
    parts += [f"+ {name}" for name in after if name not in given]
    parts += [f"\N{MINUS SIGN} {name}" for name in given if name not in after]
    return ", ".join(parts)


def reason(session: ReviewSession, row: int, members: list[int], view: View) -> str:
    """Why a question is asked, in a sentence."""
    table = session.table
    if session.is_random(row, view):
        return "Drawn at random: such answers show how many labels are right."
    error = float(table.error[row])
    if table.multi_label:
        text = f"About {error:.1f} of its labels are expected to be wrong"
    else:
        after = table.labels(row, before=False)
        what = f"'{plain(after[0], 60)}'" if after else "none of the classes"
        text = f"The method says {what}, wrong with a probability of {share(error, 1)}"
    more = f"; {many(len(members) - 1, 'near duplicate')} decided with it" if len(members) > 1 else ""
    return f"{text}{more}."


def sheet(session: ReviewSession, row: int, view: View) -> dict[str, Any]:
    """Everything about one sample."""
    table = session.table
    classes = _classes_of(table, row)[:3]
    words = meaning_words([t for c in classes for t in (table.names[c], class_text(table.classes[c])[0])])
    detail = table.detail(row)
    numbers = [(text, detail.get(name)) for name, text in NUMBERS.items()]
    return tile(session, row, view) | {
        "texts": [(field, marked(text, words)) for field, text in table.text(row).items()],
        "evidence": plain(detail.get("evidence"), 600),
        "scores": class_scores(table, row, classes),
        "numbers": [
            (text, f"{value:.2f}") for text, value in numbers if value is not None and np.isfinite(value)
        ],
        "history": history(session, row),
        "copies": len(table.group_of(row)) - 1,
    }


def _classes_of(table: ReviewTable, row: int) -> list[int]:
    """Numbers of the method's labels of a row, then of its web labels."""
    both = np.stack([table.corrected[row], table.given[row]])
    return [*dict.fromkeys(np.nonzero(table.kind.membership(both, len(table.names)))[1].tolist())]


def class_scores(table: ReviewTable, row: int, classes: list[int]) -> list[dict[str, Any]]:
    """Scores of the most probable classes and of some more: by all evidence, by the words, by the picture."""
    fused = np.asarray(table.scores[row])
    best = np.argsort(-fused, kind="stable")[:CLASSES_SHOWN].tolist()
    chosen = sorted(dict.fromkeys([*classes, *best]), key=lambda c: -float(fused[c]))
    rows = [(plain(table.names[c], 60), float(fused[c]), c) for c in chosen]
    if table.evidence_parts is None:
        return [{"name": name, "all": score, "words": None, "picture": None} for name, score, _ in rows]
    if not table.multi_label:
        rows.append(("none of these", max(0.0, 1.0 - float(fused.sum())), -1))
    probability = expit if table.multi_label else np.exp
    words, picture = (probability(np.array(part[row], dtype=np.float64)) for part in table.evidence_parts)
    return [
        {"name": name, "all": score, "words": float(words[c]), "picture": float(picture[c])}
        for name, score, c in rows
    ]


def history(session: ReviewSession, row: int) -> list[str]:
    """What was decided about a sample, in words, the last first."""
    lines = []
    for action, decision, undone in reversed(session.log.replay.history(session.table.sample_id(row))):
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(action.time))
        more = f" with {many(len(action.decisions) - 1, 'other')}" if len(action.decisions) > 1 else ""
        end = " (undone)" if undone else ""
        lines.append(f"{when}, {plain(action.person, 40)}: {plain(decision.words, 200)}{more}{end}")
    return lines


def similar(session: ReviewSession, row: int) -> dict[str, Any]:
    """The pictures most similar to one, and the nearest anchors of its classes."""
    table = session.table
    if table.visual is None:
        return {"near": [], "anchors": []}
    cosines = similarity(table.visual, row)

    def nearest(among: NDArray[np.int64], count: int) -> list[dict[str, Any]]:
        order = among[np.argsort(-cosines[among], kind="stable")]
        return [tile(session, int(other)) for other in order[order != row][:count]]

    classes = _classes_of(table, row)[:2]
    return {
        "near": nearest(np.arange(len(table)), SIMILAR_SHOWN),
        "anchors": [
            (plain(table.names[c], 80), nearest(table.anchors_of(c), ANCHORS_SHOWN)) for c in classes
        ],
    }


LONGEST = 2000  # characters of a text in the page
_WORD = re.compile(r"(\w+)")
_COMMON = frozenset(
    "a an and any are as at be by can for from has have in into is it its not of on one or other some such "
    "that the their these they this to used usually very was which who with you your".split()
)


def stem(word: str) -> str:
    """A word without case and plural.

    >>> stem("Snakes"), stem("glass"), stem("boxes")
    ('snake', 'glass', 'box')
    """
    word = word.lower()
    if len(word) > 4 and word.endswith(("xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def meaning_words(texts: Iterable[str]) -> set[str]:
    """The words of names and definitions that carry meaning.

    >>> sorted(meaning_words(["tiger cat", "a cat of the woods"]))
    ['cat', 'tiger', 'wood']
    """
    stems = {stem(word) for text in texts for word in _WORD.findall(text.replace("_", " "))}
    return {word for word in stems if word not in _COMMON and len(word) > 1}


def marked(text: str, words: set[str]) -> list[tuple[str, bool]]:
    """Pieces of a web text in order, and whether each is a word that matches.

    >>> marked("two Snakes here", {"snake"})
    [('two ', False), ('Snakes', True), (' here', False)]
    """
    pieces = filter(None, _WORD.split(plain(text, LONGEST)))
    grouped = groupby(pieces, key=lambda piece: stem(piece) in words)
    return [("".join(group), matches) for matches, group in grouped]


# --- classes --------------------------------------------------------------------------------------


def class_list(session: ReviewSession) -> list[dict[str, Any]]:
    """All classes with counts and agreement, those with most change first."""
    agreement = session.progress()["agreement"]
    counts = _class_counts(session.table)
    rows = [
        {"number": c, "name": plain(name, 80), **counts[c], "decided": agreement.get(name)}
        for c, name in enumerate(session.table.names)
    ]
    return sorted(rows, key=lambda row: -(row["given"] + row["after"] - 2 * row["stay"]))


def class_page(session: ReviewSession, number: int) -> dict[str, Any]:
    """One class."""
    table, spec = session.table, session.table.classes[number]
    counts = _class_counts(table)[number]
    came, left = flows(table, number)
    anchors = table.anchors_of(number)
    return {
        **counts,
        "number": number,
        "name": spec.name,
        "next": (number + 1) % len(table.names),
        "sense": spec.sense or "",
        "definition": spec.definition or "",
        "text": plain(class_text(spec)[0], 600),
        "senses": [(s.name, plain(s.definition, 200)) for s in wordnet.senses(spec.name)],
        "noise": 1 - counts["stay"] / counts["given"] if counts["given"] else None,
        "came": came,
        "left": left,
        "anchors": [tile(session, int(row)) for row in anchors[:CLASS_ANCHORS_SHOWN]],
        "anchor_count": len(anchors),
        "agreement": session.progress()["agreement"].get(spec.name),
    }


def _class_counts(table: ReviewTable) -> list[dict[str, int]]:
    """How many samples have each class before and after, and how many keep it."""
    same = np.where(table.given == table.corrected, table.given, -1)
    columns = [table.kind.counts(labels, len(table.names)) for labels in (table.given, table.corrected, same)]
    return [
        {"given": int(given), "after": int(after), "stay": int(stay)}
        for given, after, stay in zip(*columns, strict=True)
    ]


def flows(table: ReviewTable, c: int) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Where samples of a class came from and went to, the most frequent first; "-" is dropped, "" no label."""
    had, has = (table.kind.has_class(labels, c) for labels in (table.given, table.corrected))
    came, left = has & ~had, had & ~has
    if table.multi_label:
        dropped = table.kind.dropped(table.corrected)
        return [("", int(came.sum()))], [
            ("-", int((left & dropped).sum())),
            ("", int((left & ~dropped).sum())),
        ]
    return _most_frequent(table, table.given[came], ""), _most_frequent(table, table.corrected[left], "-")


def _most_frequent(table: ReviewTable, labels: NDArray[np.int64], none: str) -> list[tuple[str, int]]:
    counts = Counter(np.sort(labels).tolist()).most_common(FLOWS_SHOWN)
    return [(table.names[c] if c >= 0 else none, count) for c, count in counts]


def change_class(session: ReviewSession, number: int, sense: str, definition: str, *, person: str) -> None:
    """Write another meaning of a class; the run then reads its own copy of classes.yaml."""
    if session.run.copy is not None:  # run.yaml would name a file that other machines do not have
        raise ConfigError(
            f"{session.run.place}: in an object store, so a class's meaning cannot be changed here",
            hint="write a classes.yaml, and give it with --set data.classes=FILE",
        )
    own = session.run.path / OWN_CLASSES
    with session.run.alone():
        run = Run.open(session.run.path)  # another process may have changed a setting since
        specs = load_classes(own) if class_file(run) == own else classes_of(run)
        old = specs[number]
        specs[number] = ClassSpec(old.name, sense or None, definition or None, old.query, old.ambiguous)
        with atomic_path(own) as trial:
            save_classes(trial, specs)
            load_classes(trial)  # what was written can be read
        data = run.settings.data.model_copy(update={"classes": f"{IN_RUN}{OWN_CLASSES}"})
        session.run = run.with_settings(run.settings.model_copy(update={"data": data}))
        session.run.save_settings()
        context = {"class": old.name, "sense": sense, "definition": definition}
        session.log.append("class", person, context)
