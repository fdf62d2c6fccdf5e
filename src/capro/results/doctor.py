"""`capro doctor`: what data and results mean for the settings, by the paper's guidelines.

``examine`` gathers facts from a run directory, ``diagnose`` turns facts into findings (pure). The
rules are those of the paper's appendix "Guidelines on Tuning of Hyper-Parameters"; where it gives a
direction and no number, the number is ours and the reason says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import Any, Literal, get_args

import numpy as np

from capro.config import Settings
from capro.core.anchors import anchor_choice
from capro.data.summary import FEW_TEXTS
from capro.models.classes import has_meaning
from capro.pipeline.artefacts import DETAILS, SUMMARY
from capro.pipeline.run import Run
from capro.results.label_changes import class_findings, finding_text, wrong_share
from capro.results.neighbourhood import noise_from_anchors
from capro.results.store import VerdictStore
from capro.wording import many, some

SMALL_CLASS = 20  # samples; fewer give no prototype worth the name
DROPS_OFF, FEW_DROPS = 0.5, 0.01  # of the expected number, of the samples: nearer than that is near enough
UNEVEN = 3  # the largest class over the smallest from which balance is advised
Level = Literal["warning", "advice", "fine"]
LEVELS = get_args(Level)


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
    positive_ratio: float | None = None  # multi-label: positives over negatives, class mean
    harmed: list[str] = field(default_factory=list)  # classes worse than vanilla
    compared: int = 0
    emptied: list[str] = field(default_factory=list)  # classes that cleaning left nearly empty
    classes_wrong: list[str] = field(default_factory=list)  # sentences about them, method plus
    drops: Mapping[float, int] = field(default_factory=dict)  # samples by value of plus.drop_above
    none_expected: float = 0.0  # sum of the probabilities of none of the classes, method plus


# --- facts ----------------------------------------------------------------------------------------


def examine(run: Run) -> Facts:
    """Facts of a scanned run; the further it has come, the more there are."""
    store, summary = VerdictStore(run), run.read(SUMMARY)
    n, splits = len(store), summary["splits"]
    sizes = store.kind.counts(store.given, len(store.names))
    bare = store.kind.counts(store.given[store.without_text], len(store.names))
    classes_known = run.finished("classes") is not None
    ratios = [size / max(1, n - size) for size in sizes.tolist() if size and store.multi_label]
    noise, origin = _noise(store)
    return Facts(
        task=store.kind.task,
        sizes=dict(zip(store.names, sizes.tolist(), strict=True)),
        samples=n,
        no_text=summary["without_text"].get("train", 0) / n if n else 0.0,
        no_text_by_class={store.names[c]: float(bare[c] / sizes[c]) for c in np.flatnonzero(sizes)},
        test_samples=splits.get("test", 0),
        quarantined=int(summary["quarantined"]),
        duplicates=summary["duplicates"],
        ambiguous=[spec.name for spec in store.classes if classes_known and spec.ambiguous],
        undefined=[spec.name for spec in store.classes if classes_known and not has_meaning(spec)],
        classes_known=classes_known,
        noise=noise,
        noise_from=origin,
        positive_ratio=float(np.mean(ratios)) if ratios else None,
        classes_wrong=[finding_text(each) for each in class_findings(run)],
        **_results(store),
    )


def _noise(store: VerdictStore) -> tuple[float | None, str]:
    """Noise from anchors against the rest, else from what cleaning called noise."""
    # an image of several things is like many others: in multi-label data neighbours have no vote
    if store.visual is not None and len(store.anchors) and not store.multi_label:
        # drawn ones are as noisy as the rest, and typical pictures agree with their class by choice
        by_text = anchor_choice(store.anchors) == "text"
        noise = noise_from_anchors(
            np.asarray(store.visual),
            store.given,
            store.anchors["row"].to_numpy(dtype=np.int64)[by_text],
            exact_below=store.run.settings.match.exact_below,
        )
        if noise is not None:
            return noise, "from comparing anchors with the other samples"
    if store.has_verdicts:
        share = wrong_share(store.changes.counts(len(store.names)).sum(axis=0))
        return float(share), f"the labels that cleaning {'removed' if store.multi_label else 'changed'}"
    return None, ""


def _results(store: VerdictStore) -> dict[str, Any]:
    """What evaluation and cleaning did to the classes."""
    results: dict[str, Any] = {}
    details = store.run.find_sealed(DETAILS)
    if details is not None:
        rows = details.get("classes", [])
        results["harmed"] = [row["class"] for row in rows if row["difference"] < 0]
        results["compared"] = len(rows)
    if store.has_verdicts:
        before, left = (
            store.kind.counts(labels, len(store.names)) for labels in (store.given, store.corrected)
        )
        results["drops"] = {level.value: level.dropped for level in store.drop_levels}
        results["none_expected"] = 0.0 if store.none_score is None else float(store.none_score.sum())
        results["emptied"] = [store.names[c] for c in np.flatnonzero((before > 0) & (left < 0.1 * before))]
    return results


# --- rules ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A finding, and when there is one.

    Attributes:
        level: How urgent.
        topic: In a few words.
        problem: What is wrong: nothing if falsy, else `{problem}` in text and action; names are listed.
        text: What and why, a format with ``problem``, the facts ``f`` and the settings ``s``.
        action: What to do about it, a format as well.
    """

    level: Level
    topic: str
    problem: Callable[[Facts, Settings], Any]
    text: str
    action: str = ""

    def finding(self, facts: Facts, settings: Settings) -> Finding | None:
        """The finding, if there is one."""
        problem = self.problem(facts, settings)
        if not problem:
            return None
        problem = some(problem) if isinstance(problem, list) else problem
        text, action = (
            form.format(problem=problem, f=facts, s=settings) for form in (self.text, self.action)
        )
        return Finding(self.level, self.topic, text, action)


@dataclass(frozen=True)
class Parameter:
    """A setting that the paper's guidelines speak about.

    Attributes:
        topic: Its name in the paper.
        setting: Its path in the settings.
        recommended: The value that follows from the facts, and why.
        slack: By how much it may differ from that value.
    """

    topic: str
    setting: str
    recommended: Callable[[Facts], tuple[float, str]]
    slack: Callable[[float], float]

    def finding(self, facts: Facts, settings: Settings) -> Finding:
        """Whether the setting fits."""
        name, (wanted, why) = self.setting, self.recommended(facts)
        value = attrgetter(name)(settings)
        if abs(value - wanted) <= self.slack(wanted) + 1e-9:
            return Finding("fine", self.topic, f"{name} = {value:g} fits: {why}")
        text = f"{name} is {value:g}, {wanted:g} is better: {why}"
        return Finding("advice", self.topic, text, f"--set {name}={wanted:g}")


def _leaked(facts: Facts) -> tuple[str, str] | None:
    """How many held-out images are also training images, and some of them."""
    count = facts.duplicates.get("held_out_also_in_train", 0)
    pairs = [f"{held} = {train}" for train, held in facts.duplicates.get("examples", [])[:2]]
    images = many(count, "test or val image is", "test or val images are")
    return (images, "; ".join(pairs)) if count else None


def _labelled_differently(facts: Facts) -> str:
    count = facts.duplicates.get("groups_with_different_labels", 0)
    return many(count, "image occurs", "images occur") if count else ""


def _small(facts: Facts) -> list[str]:
    small = [name for name, size in facts.sizes.items() if size < SMALL_CLASS]
    return sorted(small, key=facts.sizes.__getitem__)


def _without_text(facts: Facts) -> list[str]:
    bare = [name for name, share in facts.no_text_by_class.items() if share > FEW_TEXTS]
    return bare if facts.no_text <= FEW_TEXTS else []


def _uneven(facts: Facts) -> tuple[int, int] | None:
    """The largest and the smallest class, where they are far apart."""
    present = [n for n in facts.sizes.values() if n]
    apart = facts.task == "single" and present and max(present) >= UNEVEN * min(present)
    return (max(present), min(present)) if apart else None


def _dropping(facts: Facts, settings: Settings) -> tuple[str, int, float, int] | None:
    """Whether far more or fewer samples are dropped than probable, how many, and a value that fits better."""
    drops, now, expected = facts.drops, settings.plus.drop_above, facts.none_expected
    if now not in drops:
        return None
    better = min(drops, key=lambda value: (abs(drops[value] - expected), abs(value - now)))
    far = abs(drops[now] - expected) > max(DROPS_OFF * expected, FEW_DROPS * facts.samples)
    if not far or better == now:
        return None
    return "strict" if drops[now] > expected else "lax", drops[now], better, drops[better]


def recommended_gamma(facts: Facts) -> tuple[float, str]:
    """Threshold of the label rule, and why."""
    noise, ratio = facts.noise, facts.positive_ratio
    if facts.task == "multi" and (ratio or 0) > 0.5:
        return (
            0.6,
            f"positives are frequent ({ratio:.2f} per negative), so that the negatives do not dominate",
        )
    if facts.task == "multi":
        return 0.9, (
            f"{'few' if ratio is None else f'{ratio:.2f}'} positives per negative: with a lower "
            "threshold everything becomes negative (paper: with 0.02 and 50 % noise, 0.9 is better than 0.6)"
        )
    ours = "(the paper gives the direction, the number is ours)"
    if noise is None:
        return 0.6, "the paper's value at 34 % noise; the noise here is not known yet"
    if noise > 0.45:
        return 0.4, (
            f"{noise:.0%} noise is more than the paper's 34 %: wrong labels must be corrected before "
            f"the network learns them {ours}"
        )
    if noise < 0.15:
        return (
            0.8,
            f"{noise:.0%} noise is far less than the paper's 34 %: only sure corrections should be made {ours}",
        )
    return 0.6, f"{noise:.0%} noise is near the paper's 34 %, where 0.6 is better than 0.8"


def recommended_k(facts: Facts) -> tuple[int, str]:
    """Anchors per class, and why."""
    noise = facts.noise
    wanted, why = 50, "the paper's default; the noise here is not known yet"
    if noise is not None and noise < 0.3:
        wanted, why = 100, f"{noise:.0%} noise is below 30 %: more than 50 anchors add diversity"
    elif noise is not None:
        why = f"{noise:.0%} noise is 30 % or more: of more than 50 anchors too many would be wrong"
    filled = sorted(n for n in facts.sizes.values() if n)
    if not filled:
        return wanted, why
    quarter = filled[len(filled) // 4]
    most = max(5, int(quarter * (1 - (0.3 if noise is None else noise)) / 2))
    if most >= wanted:
        return wanted, why
    return most, (
        f"{why}; but a quarter of the classes have {quarter} samples or "
        "fewer, and at most half of their right samples should be anchors (our rule)"
    )


def recommended_frequency(facts: Facts) -> tuple[int, str]:
    """Epochs per prototype update, and why."""
    if facts.task == "multi":
        return 10, (
            "several labels: with rare updates the many negatives change the prototypes less (the "
            "paper's best on NUS-WIDE; differences are small)"
        )
    return 1, "one label: every epoch, for diversity (differences are small)"


def _fixed(value: float, why: str) -> Callable[[Facts], tuple[float, str]]:
    return lambda _: (value, why)


_WEIGHTS = {
    "lambda_pro": "a higher value moves samples closer to the prototype of their class",
    "lambda_ins": "a higher value moves samples of one class apart",
    "lambda_prj": "a higher value keeps more details of the feature in the embedding",
}

RULES: list[Rule | Parameter] = [  # adding an issue type is one entry here
    Rule(
        "warning", "duplicates across splits",
        lambda f, _: _leaked(f),
        "{problem[0]} in the training set as well ({problem[1]}): figures measured on such images are too good",
        "remove them from the training data",
    ),
    Rule(
        "warning", "copies with different labels",
        lambda f, _: _labelled_differently(f),
        "{problem} several times in training with different labels: at "
        "least one label of each is wrong, unless images have several labels",
    ),
    Rule(
        "warning", "no test split", lambda f, _: not f.test_samples, "nothing can be measured",
        "give one: --set data.test=PATH, or a column with --split-column",
    ),
    Rule(
        "warning", "texts missing", lambda f, _: FEW_TEXTS < f.no_text < 1,
        "{f.no_text:.0%} of the training samples have no text: texts of similar pictures are used for them",
        "name the columns with texts: --text-column, --description-column, --tags-column",
    ),
    Rule(
        "warning", "no texts", lambda f, s: f.no_text == 1 and not s.data.without_texts,
        "no training sample has a text: only labels and pictures are left to decide, and a run stops",
        "name the columns with texts: --text-column, --description-column, --tags-column; or continue without: "
        "--set data.without_texts=true",
    ),
    Rule(
        "advice", "no texts", lambda f, s: f.no_text == 1 and s.data.without_texts,
        "no training sample has a text: labels and pictures decide, and anchors are the most typical pictures",
    ),
    Rule(
        "warning", "texts missing in classes", lambda f, _: _without_text(f),
        "more than half of the samples have no text in these classes: {problem}",
    ),
    Rule(
        "advice", "dictionary",
        lambda f, s: (
            s.has_step2 and s.train.queue > max(1, f.samples // 2) and max(1, f.samples // 2)
        ),
        "train.queue is {s.train.queue:,} for {f.samples:,} samples: many embeddings "
        "in the dictionary come from past epochs (our rule: at most half of the samples)",
        "--set train.queue={problem}",
    ),
    Rule(
        "advice", "uneven classes", lambda f, s: s.finetune.balance is None and _uneven(f),
        "the largest class has {problem[0]:,} samples, the smallest {problem[1]:,}: the classifier will "
        f"favour the large ones (our rule: balance them if the ratio is {UNEVEN} or more)",
        "--set finetune.balance=0.5, or 0 if classes are as uneven where the model will be used",
    ),
    Rule(
        "warning", "small classes", lambda f, _: _small(f),
        f"fewer than {SMALL_CLASS} training samples in {{problem}}: too few for anchors "
        "and other samples to correct",
        "collect more images of these classes, or join classes",
    ),
    Rule(
        "warning", "classes without meaning", lambda f, _: f.no_text < 1 and f.undefined,
        "neither sense nor definition: {problem}; texts are compared with their bare names",
        "add a sense or a definition in classes.yaml",
    ),
    Rule(
        "advice", "ambiguous names", lambda f, _: f.no_text < 1 and f.ambiguous,
        "several senses: {problem}; the class text alone decides which of them the anchors show",
        "check `capro classes show --run RUN` and match/anchors.png",
    ),
    Rule(
        "advice", "senses", lambda f, _: not f.classes_known,
        "the senses of the classes are not chosen yet, so ambiguous classes are not known",
        "run `capro classes suggest --run RUN`",
    ),
    Rule(
        "fine", "noise", lambda f, _: f.noise is not None,
        "about {f.noise:.0%} of the web labels seem wrong ({f.noise_from}); an estimate, not a measurement",
    ),
    Rule(
        "advice", "dropping", _dropping,
        "plus.drop_above = {s.plus.drop_above:g} seems too {problem[0]}: it drops {problem[1]:,} samples, and by their "
        "probabilities about {f.none_expected:,.0f} show none of the classes (our rule)",
        "look at what was dropped in the report; --set plus.drop_above={problem[2]:g} drops {problem[3]:,}",
    ),
    Parameter("gamma", "train.gamma", recommended_gamma, lambda _: 0.1),
    Parameter("K", "match.top_k", recommended_k, lambda k: 0.35 * k),
    Parameter("frequency", "train.update_every", recommended_frequency, lambda epochs: 9 if epochs > 1 else 4),
    Parameter(
        "lambda_bts", "train.lambda_bts",
        _fixed(0.1, "balances the label and the predictions for similar samples; much more smooths too much"),
        lambda _: 0.1,
    ),
    *(
        Parameter(name, f"train.{name}", _fixed(1, f"{why}; try 0 and 1 first"), lambda _: 0.5)
        for name, why in _WEIGHTS.items()
    ),
    Rule(
        "advice", "classes made worse", lambda f, _: f.harmed and (len(f.harmed), some(f.harmed)),
        "worse than vanilla in {problem[0]} of {f.compared} classes: {problem[1]} (the paper: 312 of 1,000)",
        "check their anchors and senses first",
    ),
    Rule(
        "warning", "emptied classes", lambda f, _: f.emptied,
        "cleaning kept less than a tenth of the samples of {problem}",
        "check their anchors: the sense may be wrong",
    ),
]  # fmt: skip


def diagnose(facts: Facts, settings: Settings) -> list[Finding]:
    """Findings, warnings first."""
    # the method plus has none of the paper's thresholds to choose
    rules = [rule for rule in RULES if not settings.by_posterior or isinstance(rule, Rule)]
    findings = [each for rule in rules if (each := rule.finding(facts, settings))]
    look = "check its pictures in the report, then its entry in classes.yaml"
    findings += [Finding("warning", "class", text, look) for text in facts.classes_wrong]
    return sorted(findings, key=lambda each: LEVELS.index(each.level))


def advice(run: Run) -> dict[str, Any]:
    """Facts and findings as plain data."""
    facts = examine(run)
    findings = diagnose(facts, run.settings)
    return {"facts": asdict(facts), "findings": [asdict(finding) for finding in findings]}
