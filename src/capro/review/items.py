"""One sample for the page: labels, reason, evidence, likes, history; texts cut into pieces that match the class."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from capro.models.classes import class_text
from capro.review.pictures import likeness, nearest_of
from capro.review.session import ReviewSession
from capro.review.table import VERDICT_NAMES, ReviewTable
from capro.review.views import View
from capro.wording import listed, many, plain, share

VERDICT_WORDS = {"anchor": "anchor", "keep": "kept", "relabel": "relabelled", "drop": "dropped"}
CLASSES_SHOWN = 5
LIKES, ANCHORS_SHOWN = 12, 6


ALONE = View(order="row")  # a sample that is shown beside another, not asked


def tile(desk: ReviewSession, row: int, view: View = ALONE) -> dict[str, Any]:
    """A sample in the grid of a view."""
    table = desk.table
    given, after = (table.labels(row, before=before) for before in (True, False))
    verdict = VERDICT_NAMES[int(table.verdict[row])]
    members = desk.members(row, view)
    text = table.text(row)
    return {
        "row": row,
        "id": plain(table.sample_id(row), 120),
        "given": [plain(name, 80) for name in given],
        "after": [plain(name, 80) for name in after],
        "verdict": verdict,
        "move": move(given, after),
        "score": float(table.score[row]),
        "title": plain(next(iter(text.values()), ""), 120),
        "members": members,
        "random": desk.is_random(row, view),
        "reason": reason(desk, row, members, view) if view.order == "gain" else "",
        "group": int(table.copies[row]),
        "state": desk.state(row),
    }


def move(given: tuple[str, ...], after: tuple[str, ...]) -> str:
    """What the method did with the labels, in words.

    >>> move(("cat",), ("dog",)), move(("cat",), ()), move(("a", "b"), ("b", "c"))
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


def reason(desk: ReviewSession, row: int, members: list[int], view: View) -> str:
    """Why a question is asked, in a sentence."""
    table = desk.table
    if desk.is_random(row, view):
        return "Drawn at random: such answers show how many labels are right."
    error = float(table.error[row])
    if table.several:
        text = f"About {error:.1f} of its labels are expected to be wrong"
    else:
        after = table.labels(row, before=False)
        what = f"'{plain(after[0], 60)}'" if after else "none of the classes"
        text = f"The method says {what}, wrong with a probability of {share(error, 1)}"
    more = f"; {many(len(members) - 1, 'near duplicate')} decided with it" if len(members) > 1 else ""
    return f"{text}{more}."


def sheet(desk: ReviewSession, row: int, view: View) -> dict[str, Any]:
    """Everything about one sample."""
    table = desk.table
    found = tile(desk, row, view)
    given, after = (table.labels(row, before=before) for before in (True, False))
    concerned = [*dict.fromkeys([*after, *given])][:3]
    specs = {spec.name: spec for spec in table.classes}
    words = meaning_words([t for name in concerned for t in (name, class_text(specs[name])[0])])
    detail = table.detail(row)
    texts = [(field, marked(text, words)) for field, text in table.text(row).items()]
    return found | {
        "concerned": [plain(name, 80) for name in concerned],
        "texts": texts,
        "evidence": plain(detail.get("evidence"), 600),
        "scores": class_scores(table, row, concerned),
        "numbers": _numbers(detail),
        "history": history(desk, row),
        "copies": [int(other) for other in table.group_of(row)[: LIKES + 1] if other != row][:LIKES],
    }


def class_scores(table: ReviewTable, row: int, concerned: list[str]) -> list[dict[str, Any]]:
    """Scores of the most probable classes and the concerned ones: by all evidence, by the words, by the picture."""
    fused = np.asarray(table.fused[row])
    best = [int(c) for c in np.argsort(-fused, kind="stable")[:CLASSES_SHOWN]]
    chosen = [*dict.fromkeys([*(table.names.index(name) for name in concerned), *best])]
    chosen.sort(key=lambda c: -float(fused[c]))
    parts = [None, None] if table.parts is None else [np.array(part[row]) for part in table.parts]
    rows = [
        {"name": plain(table.names[c], 60), "all": float(fused[c]), **_parts(parts, c, table)} for c in chosen
    ]
    if not table.several and table.parts is not None:
        left = max(0.0, 1.0 - float(fused.sum()))
        rows.append({"name": "none of these", "all": left, **_parts(parts, -1, table)})
    return rows


def _parts(parts: list[Any], c: int, table: ReviewTable) -> dict[str, float | None]:
    """What words and picture say of a class alone."""
    if parts[0] is None:
        return {"words": None, "picture": None}
    values = [float(part[c]) for part in parts]
    probability = [1 / (1 + np.exp(-v)) if table.several else np.exp(v) for v in values]
    return {"words": float(probability[0]), "picture": float(probability[1])}


def _numbers(detail: dict[str, Any]) -> list[tuple[str, str]]:
    names = {
        "classifier_probability": "classifier probability",
        "prototype_similarity": "prototype similarity",
        "text_probability": "text probability",
        "text_distance": "text distance",
        "outlier_score": "outlier score",
        "near_duplicate_score": "near-duplicate score",
    }
    return [
        (text, f"{detail[name]:.2f}")
        for name, text in names.items()
        if detail.get(name) is not None and np.isfinite(detail[name])
    ]


def history(desk: ReviewSession, row: int) -> list[str]:
    """What was decided of a sample, in words, the last first."""
    found = []
    for action, said, undone in reversed(desk.log.replay.history(desk.table.sample_id(row))):
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(action.at))
        words = {"out": "dropped", "copy": "dropped as a near duplicate", "unsure": "not sure"}
        what = (
            words.get(said.answer) or listed([*said.yes, *(f"not {name}" for name in said.no)]) or "no label"
        )
        more = f" with {many(len(action.decisions) - 1, 'other')}" if len(action.decisions) > 1 else ""
        found.append(
            f"{when}, {plain(action.who, 40)}: {plain(what, 200)}{more}{' (undone)' if undone else ''}"
        )
    return found


def likes(desk: ReviewSession, row: int) -> dict[str, Any]:
    """The pictures most like one, and the anchors of its class that are nearest to it."""
    table = desk.table
    if table.visual is None:
        return {"near": [], "anchors": []}
    order = np.argsort(-likeness(table.visual, row), kind="stable")
    near = [int(other) for other in order[: LIKES + 1] if other != row][:LIKES]
    groups = []
    for name in [*dict.fromkeys([*table.labels(row, before=False), *table.labels(row, before=True)])][:2]:
        among = table.anchors[0][table.anchors[1] == table.names.index(name)]
        found = nearest_of(table.visual, row, among, ANCHORS_SHOWN).tolist()
        groups.append((plain(name, 80), [tile(desk, other) for other in found]))
    return {"near": [tile(desk, other) for other in near], "anchors": groups}


LONGEST = 2000  # characters of a text in the page
_WORD = re.compile(r"\w+")
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
    """The words of names and definitions that say something.

    >>> sorted(meaning_words(["tiger cat", "a cat of the woods"]))
    ['cat', 'tiger', 'wood']
    """
    found = {stem(word) for text in texts for word in _WORD.findall(text.replace("_", " "))}
    return {word for word in found if word not in _COMMON and len(word) > 1}


def marked(text: str, words: set[str]) -> list[tuple[str, bool]]:
    """Pieces of a web text in order, and whether each is a word that matches.

    >>> marked("two Snakes here", {"snake"})
    [('two ', False), ('Snakes', True), (' here', False)]
    """
    text = plain(text, LONGEST)
    pieces: list[tuple[str, bool]] = []
    at = 0
    for found in _WORD.finditer(text):
        if stem(found[0]) in words:
            if found.start() > at:
                pieces.append((text[at : found.start()], False))
            pieces.append((found[0], True))
            at = found.end()
    return [*pieces, *([(text[at:], False)] if at < len(text) else [])]
