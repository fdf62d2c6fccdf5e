"""`capro doctor`: what the data and the results say about settings, by the paper's guidelines.

``examine`` gathers facts from a run directory, ``diagnose`` turns facts into findings (pure). The
rules are those of the paper's appendix "Guidelines on Tuning of Hyper-Parameters"; where it gives a
direction and no number, the number is ours and the reason says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from capro.config import Settings
from capro.data.labels import labels_of
from capro.data.manifest import manifest_of
from capro.graph.neighbors import nearest
from capro.run.artefacts import ANCHORS, CLEANED_LABELS, DETAILS, SUMMARY, VISUAL
from capro.run.directory import Run
from capro.text.classes import classes_of

SMALL_CLASS = 20  # samples; fewer give no prototype worth the name
FEW_TEXTS = 0.5  # share without text above which anchors rest on neighbours' texts
SHOWN = 5
NEIGHBOURS = 20  # that vote on a sample, as many as in the baseline k-NN vote
LEAST = 0.1  # by which anchors must agree more than wrong labels would, or nothing can be told
UNEVEN = 3  # the largest class over the smallest from which balance is advised
BLOCK = 4096  # samples whose votes are in memory at once
Level = Literal["warning", "advice", "fine"]


@dataclass(frozen=True)
class Finding:
    """One thing to know: what, why, and what to do about it."""

    level: Level
    topic: str
    text: str
    action: str = ""


@dataclass(frozen=True)
class Facts:
    """What is known of the data, and of the results where there are any."""

    task: str
    sizes: Mapping[str, int]  # training samples by class
    samples: int
    no_text: float  # share of training samples
    no_text_by_class: Mapping[str, float] = field(default_factory=dict)
    test_samples: int = 0
    quarantined: int = 0
    duplicates: Mapping[str, Any] = field(default_factory=dict)
    ambiguous: list[str] = field(default_factory=list)
    undefined: list[str] = field(default_factory=list)  # neither sense nor definition
    classes_known: bool = False
    noise: float | None = None  # estimated share of wrong web labels
    noise_from: str = ""
    positive_ratio: float | None = None  # several labels: positives over negatives, class mean
    harmed: list[str] = field(default_factory=list)  # classes worse than vanilla
    compared: int = 0
    emptied: list[str] = field(default_factory=list)  # classes that cleaning left nearly empty


# --- facts ----------------------------------------------------------------------------------------


def examine(run: Run) -> Facts:
    """Facts of a scanned run; the further it has come, the more there are."""
    manifest = manifest_of(run)
    summary = run.read(SUMMARY)
    train = manifest.samples.iloc[manifest.split("train")]
    empty = (train["title"] + train["description"] + train["tags"]).str.strip().str.len() == 0
    by_class: dict[str, list[bool]] = {}
    for labels, blank in zip(train["labels"], empty, strict=True):
        for name in labels:
            by_class.setdefault(name, []).append(bool(blank))
    known: dict[str, Any] = {}
    if run.finished("classes"):
        specs = classes_of(run)
        known = {
            "classes_known": True,
            "ambiguous": [spec.name for spec in specs if spec.ambiguous],
            "undefined": [spec.name for spec in specs if not spec.sense and not spec.definition],
        }
        by_class = {spec.name: by_class.get(spec.name, []) for spec in specs}
    sizes = {name: len(values) for name, values in by_class.items()}
    if manifest.task == "multi" and len(train):
        ratios = [n / max(1, len(train) - n) for n in sizes.values() if n]
        known["positive_ratio"] = float(np.mean(ratios)) if ratios else None
    noise, origin = _noise(run)
    return Facts(
        task=manifest.task,
        sizes=sizes,
        samples=len(train),
        no_text=float(empty.mean()) if len(train) else 0.0,
        no_text_by_class={name: float(np.mean(v)) for name, v in by_class.items() if v},
        test_samples=len(manifest.split("test")),
        quarantined=int(summary["quarantined"]),
        duplicates=summary["duplicates"],
        noise=noise,
        noise_from=origin,
        **known,
        **_results(run),
    )


def _labels(run: Run) -> NDArray[np.int64]:
    """The web labels of the training samples."""
    manifest = manifest_of(run)
    return labels_of(manifest, manifest.split("train"), [spec.name for spec in classes_of(run)])


def _noise(run: Run) -> tuple[float | None, str]:
    """Noise from anchors against the rest, else from what cleaning called noise."""
    visual, anchors, after = run.find(VISUAL), run.find(ANCHORS), run.find(CLEANED_LABELS)
    # an image of several things is like many others: with several labels neighbours have no vote
    if visual is not None and anchors is not None and manifest_of(run).task == "single":
        chosen = ~anchors["random"].to_numpy(dtype=bool)  # drawn ones are as noisy as the rest
        found = noise_from_anchors(
            np.asarray(visual),
            _labels(run),
            anchors["row"].to_numpy(dtype=np.int64)[chosen],
            exact_below=run.settings.match.exact_below,
        )
        if found is not None:
            return found, "anchors against the rest"
    if after is not None:
        labels, given = np.array(after), _labels(run)
        if labels.ndim == 2:
            return float((labels <= 0)[given > 0].mean()), "labels that cleaning removed"
        return float((labels != given).mean()), "labels that cleaning changed"
    return None, ""


def noise_from_anchors(
    v: NDArray[np.float32],
    labels: NDArray[np.int64],
    anchors: NDArray[np.int64],
    *,
    exact_below: int = 200_000,
) -> float | None:
    """Share of wrong web labels, from how anchors and the other samples agree with their likes.

    A sample agrees when its label wins the vote of its nearest others, whatever these are: with
    anchors alone as voters, anchors would agree too well, since they are more like one another than
    like the rest. In a class, anchors agree with the share a and are taken to be right; the others
    agree with the share r. These are a mixture of right ones, who reach a, and wrong ones, who reach
    e = (1 - a) / (C - 1), as if lost votes fell on any class: their noise is (a - r) / (a - e).
    Cost: one k-NN search.

    Args:
        v: visual features, (n, d).
        labels: web labels, (n,).
        anchors: rows that are anchors, (m,).
        exact_below: exact search below this many samples.

    Returns:
        Noise of the whole set, or None where anchors tell nothing.
    """
    n_classes = int(labels.max()) + 1
    k = min(NEIGHBOURS, len(labels) // n_classes // 2)  # small classes: half of their mean size
    if k < 1 or n_classes < 2 or not len(anchors):
        return None
    agree = _votes(labels[nearest(v, k, exact_below=exact_below).index], n_classes) == labels
    anchored = np.zeros(len(labels), dtype=bool)
    anchored[anchors] = True
    sizes, hits = (
        np.stack([np.bincount(labels[at], minlength=n_classes) for at in (part, rest)])
        for part, rest in ((anchored, ~anchored), (anchored & agree, ~anchored & agree))
    )  # (2, C) each: anchors, the others
    a, r = np.divide(hits, sizes, out=np.zeros(hits.shape), where=sizes > 0)
    e = (1 - a) / (n_classes - 1)
    telling = (sizes > 0).all(axis=0) & (a - e >= LEAST)  # else the class looks like others
    counted = sizes[:, telling].sum()
    pooled = hits[0].sum() / sizes[0].sum()
    if counted < 0.5 * len(labels) or pooled - (1 - pooled) / (n_classes - 1) < LEAST:
        return None
    noise = np.clip((a - r)[telling] / (a - e)[telling], 0, 1)
    return float((noise * sizes[1][telling]).sum() / counted)


def _votes(near: NDArray[np.int64], n_classes: int) -> NDArray[np.int64]:
    """The class with most votes, (n, k) -> (n,); of equal ones the nearest voter's, else the lowest."""
    winners = np.empty(len(near), dtype=np.int64)
    for begin in range(0, len(near), BLOCK):
        block = near[begin : begin + BLOCK]
        rows = np.arange(len(block))
        votes = np.zeros((len(block), n_classes))
        for column in block.T:
            votes[rows, column] += 1
        votes[rows, block[:, 0]] += 0.5
        winners[begin : begin + BLOCK] = votes.argmax(axis=1)
    return winners


def _results(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {}
    details, after = run.find(DETAILS), run.find(CLEANED_LABELS)
    if details is not None:
        rows = details.get("classes", [])
        found["harmed"] = [row["class"] for row in rows if row["difference"] < 0]
        found["compared"] = len(rows)
    if after is not None:
        names = [spec.name for spec in classes_of(run)]
        before, left = (_class_sizes(labels, len(names)) for labels in (_labels(run), after))
        few = np.flatnonzero((before > 0) & (left < 0.1 * before))
        found["emptied"] = [names[c] for c in few]
    return found


def _class_sizes(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Samples of each class, (n,) or (n, C) -> (C,)."""
    if labels.ndim == 2:
        return np.asarray((labels > 0).sum(axis=0))
    return np.bincount(labels[labels >= 0], minlength=count)


# --- rules ----------------------------------------------------------------------------------------


def diagnose(facts: Facts, settings: Settings) -> list[Finding]:
    """Findings, warnings first."""
    found = [*_data(facts, settings), *_classes(facts), *_parameters(facts, settings)]
    found += _outcome(facts)
    order = {"warning": 0, "advice": 1, "fine": 2}
    return sorted(found, key=lambda each: order[each.level])


def _data(facts: Facts, settings: Settings) -> list[Finding]:
    found = []
    leaked = facts.duplicates.get("held_out_also_in_train", 0)
    if leaked:
        pairs = "; ".join(f"{b} = {a}" for a, b in facts.duplicates.get("examples", [])[:2])
        found.append(
            Finding(
                "warning", "duplicates across splits",
                f"{leaked:,} held-out images are in the training set as well ({pairs}): figures "
                "measured on them flatter",
                "remove them from the training data",
            )
        )  # fmt: skip
    conflicting = facts.duplicates.get("groups_with_different_labels", 0)
    if conflicting:
        found.append(
            Finding(
                "warning", "copies with different labels",
                f"{conflicting:,} images occur several times in training with different labels: at "
                "least one label of each is wrong, unless the data is multi-label",
            )
        )  # fmt: skip
    if not facts.test_samples:
        found.append(
            Finding(
                "warning", "no test split", "nothing can be compared with vanilla",
                "give one: --set data.test=PATH, or a column with --split-column",
            )
        )  # fmt: skip
    if facts.no_text > FEW_TEXTS:
        found.append(
            Finding(
                "warning", "texts missing",
                f"{facts.no_text:.0%} of the training samples have no text: anchors rest on the "
                "texts of neighbours",
                "check --text-column, or read captions and tags as well",
            )
        )  # fmt: skip
    bare = [name for name, share in facts.no_text_by_class.items() if share > FEW_TEXTS]
    if bare and facts.no_text <= FEW_TEXTS:
        found.append(
            Finding(
                "warning", "texts missing in classes",
                f"more than half of the samples have no text in {_names(bare)}",
            )
        )  # fmt: skip
    if settings.train.queue > max(1, facts.samples // 2):
        found.append(
            Finding(
                "advice", "dictionary",
                f"train.queue is {settings.train.queue:,} for {facts.samples:,} samples: keys of "
                "past epochs in it go stale (our rule: at most half of the samples)",
                f"--set train.queue={max(1, facts.samples // 2)}",
            )
        )  # fmt: skip
    present = [n for n in facts.sizes.values() if n]
    uneven = facts.task == "single" and present and max(present) >= UNEVEN * min(present)
    if uneven and settings.finetune.balance is None:
        found.append(
            Finding(
                "advice", "uneven classes",
                f"the largest class has {max(present):,} samples, the smallest {min(present):,}: the "
                "classifier will favour the large ones (our rule: balance by roots from "
                f"{UNEVEN} to 1 on)",
                "--set finetune.balance=0.5, or 0 if they are as uneven in use",
            )
        )  # fmt: skip
    return found


def _classes(facts: Facts) -> list[Finding]:
    found = []
    small = [name for name, n in sorted(facts.sizes.items(), key=lambda kv: kv[1]) if n < SMALL_CLASS]
    if small:
        found.append(
            Finding(
                "warning", "small classes",
                f"fewer than {SMALL_CLASS} training samples in {_names(small)}: too few for anchors "
                "and a rest that could be mended",
                "fetch more images of them, or merge classes",
            )
        )  # fmt: skip
    if facts.undefined:
        found.append(
            Finding(
                "warning", "classes without meaning",
                f"neither sense nor definition: {_names(facts.undefined)}; their bare names are "
                "matched, whatever they mean",
                "add a sense or a definition in classes.yaml",
            )
        )  # fmt: skip
    if facts.ambiguous:
        found.append(
            Finding(
                "advice", "ambiguous names",
                f"several senses: {_names(facts.ambiguous)}; the text of the class alone decides "
                "which of them becomes its anchors",
                "look at `capro classes show --run RUN` and at match/anchors.png",
            )
        )  # fmt: skip
    if not facts.classes_known:
        found.append(
            Finding(
                "advice", "senses",
                "the classes have not been resolved yet: ambiguous names are unknown",
                "`capro classes suggest --run RUN`",
            )
        )  # fmt: skip
    return found


def recommended_gamma(facts: Facts) -> tuple[float, str]:
    """Threshold of the label rule, and why."""
    noise, ratio = facts.noise, facts.positive_ratio
    if facts.task == "multi":
        if ratio is not None and ratio > 0.5:
            return 0.6, (
                f"positives are frequent ({ratio:.2f} per negative), so that they are in no danger "
                "of being drowned"
            )
        return 0.9, (
            f"{'few' if ratio is None else f'{ratio:.2f}'} positives per negative: a lower "
            "threshold calls everything negative (paper: 0.02 and 50 % noise, 0.9 beats 0.6)"
        )
    if noise is None:
        return 0.6, "the paper's value at 34 % noise; the noise here is not known yet"
    if noise > 0.45:
        return 0.4, (
            f"{noise:.0%} noise is more than the paper's 34 %: wrong labels must be corrected before "
            "they are learnt (the direction is the paper's, the number ours)"
        )
    if noise < 0.15:
        return 0.8, (
            f"{noise:.0%} noise is far less than the paper's 34 %: corrections should be sure (the "
            "direction is the paper's, the number ours)"
        )
    return 0.6, f"{noise:.0%} noise is near the paper's 34 %, where 0.6 beats 0.8"


def recommended_k(facts: Facts) -> tuple[int, str]:
    """Anchors per class, and why."""
    noise = facts.noise
    wanted, why = 50, "the paper's default; the noise here is not known yet"
    if noise is not None and noise < 0.3:
        wanted, why = 100, f"{noise:.0%} noise is below 30 %: more than 50 anchors add diversity"
    elif noise is not None:
        why = f"{noise:.0%} noise is 30 % or more: more than 50 anchors would not be pure"
    filled = sorted(n for n in facts.sizes.values() if n)
    if filled:
        clean = filled[len(filled) // 4] * (1 - (0.3 if noise is None else noise))
        most = max(5, int(clean / 2))
        if most < wanted:
            return most, (
                f"{why}; but a quarter of the classes have {filled[len(filled) // 4]} samples or "
                "fewer, and half of their right ones should stay for the rest (ours)"
            )
    return wanted, why


def recommended_frequency(facts: Facts) -> tuple[int, str]:
    """Epochs per prototype update, and why."""
    if facts.task == "multi":
        return 10, (
            "several labels: rarer updates keep prototypes from the overwhelming negatives (the "
            "paper's best on NUS-WIDE; differences are small)"
        )
    return 1, "one label: every epoch, for diversity (differences are small)"


def _parameters(facts: Facts, settings: Settings) -> list[Finding]:
    train, found = settings.train, []
    if facts.noise is not None:
        found.append(
            Finding(
                "fine", "noise",
                f"about {facts.noise:.0%} of the web labels seem wrong ({facts.noise_from}); an "
                "estimate, not a measurement",
            )
        )  # fmt: skip
    gamma, why = recommended_gamma(facts)
    found.append(_setting("gamma", "train.gamma", train.gamma, gamma, why, near=0.1))
    k, why = recommended_k(facts)
    found.append(_setting("K", "match.top_k", settings.match.top_k, k, why, near=0.35 * k))
    every, why = recommended_frequency(facts)
    slack = 9 if facts.task == "multi" else 4  # the paper sees little difference
    found.append(_setting("frequency", "train.update_every", train.update_every, every, why, slack))
    found.append(
        _setting(
            "lambda_bts", "train.lambda_bts", train.lambda_bts, 0.1,
            "balances a sample's own label and the collective reference; much more smooths too much",
            near=0.1,
        )
    )  # fmt: skip
    effects = {
        "lambda_pro": "more shrinks classes onto their prototypes",
        "lambda_ins": "more pushes samples of one class apart",
        "lambda_prj": "more keeps details of v in the embedding",
    }
    for name, effect in effects.items():
        value = getattr(train, name)
        why = f"{effect}; compare 0 and 1 before anything else"
        found.append(_setting(name, f"train.{name}", value, 1.0, why, near=0.5))
    return found


def _setting(topic: str, name: str, value: float, wanted: float, why: str, near: float) -> Finding:
    if abs(value - wanted) <= near + 1e-9:
        return Finding("fine", topic, f"{name} = {value:g} fits: {why}")
    return Finding(
        "advice", topic, f"{name} is {value:g}, {wanted:g} follows: {why}", f"--set {name}={wanted:g}"
    )


def _outcome(facts: Facts) -> list[Finding]:
    found = []
    if facts.harmed:
        found.append(
            Finding(
                "advice", "classes made worse",
                f"{len(facts.harmed)} of {facts.compared} classes are worse than vanilla: "
                f"{_names(facts.harmed)} (the paper: 312 of 1,000)",
                "look at their anchors and senses first",
            )
        )  # fmt: skip
    if facts.emptied:
        found.append(
            Finding(
                "warning", "emptied classes",
                f"cleaning left less than a tenth of {_names(facts.emptied)}",
                "look at their anchors: the sense may be wrong",
            )
        )  # fmt: skip
    return found


def _names(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def advice(run: Run) -> dict[str, Any]:
    """Facts and findings as plain data."""
    facts = examine(run)
    findings = diagnose(facts, run.settings)
    return {"facts": asdict(facts), "findings": [asdict(finding) for finding in findings]}
