"""`capro doctor`: what data and results mean for the settings, by the paper's guidelines.

``examine`` gathers facts from a run directory, ``diagnose`` turns facts into findings (pure). The
rules are those of the paper's appendix "Guidelines on Tuning of Hyper-Parameters"; where it gives a
direction and no number, the number is ours and the reason says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import Any, Literal, get_args

import numpy as np

from capro.config import Settings, value_of
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
TOPICS = {"match.top_k": "K", "train.update_every": "frequency"}  # the paper's names of settings, if others
LOSS_WEIGHTS = {
    "lambda_pro": "a higher value moves samples closer to the prototype of their class",
    "lambda_ins": "a higher value moves samples of one class apart",
    "lambda_prj": "a higher value keeps more details of the feature in the embedding",
}


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
    compared = (run.find_sealed(DETAILS) or {}).get("classes", [])
    noise, origin = _noise(store)
    none = store.none_score if store.has_verdicts else None
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
        harmed=[row["class"] for row in compared if row["difference"] < 0],
        compared=len(compared),
        emptied=_emptied(store),
        drops={} if none is None else {level.value: level.dropped for level in store.drop_levels},
        none_expected=0.0 if none is None else float(none.sum()),
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


def _emptied(store: VerdictStore) -> list[str]:
    """Classes of which cleaning left less than a tenth."""
    if not store.has_verdicts:
        return []
    before, left = (store.kind.counts(labels, len(store.names)) for labels in (store.given, store.corrected))
    return [store.names[c] for c in np.flatnonzero((before > 0) & (left < 0.1 * before))]


# --- rules ----------------------------------------------------------------------------------------


def diagnose(facts: Facts, settings: Settings) -> list[Finding]:
    """Findings, warnings first."""
    look = "check its pictures in the report, then its entry in classes.yaml"
    findings = [
        *_about_data(facts, settings),
        *_about_classes(facts),
        # the method plus has none of the paper's thresholds to choose
        *([] if settings.by_posterior else _about_thresholds(facts, settings)),
        *_about_results(facts),
        *_about_dropping(facts, settings),
        *(Finding("warning", "class", text, look) for text in facts.classes_wrong),
    ]
    return sorted(findings, key=lambda each: LEVELS.index(each.level))


def _about_data(f: Facts, s: Settings) -> Iterator[Finding]:
    """Copies, texts, sizes."""
    if leaked := f.duplicates.get("held_out_also_in_train", 0):
        images = many(leaked, "test or val image is", "test or val images are")
        pairs = "; ".join(f"{held} = {train}" for train, held in f.duplicates.get("examples", [])[:2])
        yield Finding(
            "warning",
            "duplicates across splits",
            f"{images} in the training set as well ({pairs}): figures measured on such images are too good",
            "remove them from the training data",
        )
    if copies := f.duplicates.get("groups_with_different_labels", 0):
        yield Finding(
            "warning",
            "copies with different labels",
            f"{many(copies, 'image occurs', 'images occur')} several times in training with different labels: at "
            "least one label of each is wrong, unless images have several labels",
        )
    if not f.test_samples:
        action = "give one: --set data.test=PATH, or a column with --split-column"
        yield Finding("warning", "no test split", "nothing can be measured", action)
    name_columns = "name the columns with texts: --text-column, --description-column, --tags-column"
    if FEW_TEXTS < f.no_text < 1:
        yield Finding(
            "warning",
            "texts missing",
            f"{f.no_text:.0%} of the training samples have no text: texts of similar pictures are used for them",
            name_columns,
        )
    if f.no_text == 1 and not s.data.without_texts:
        yield Finding(
            "warning",
            "no texts",
            "no training sample has a text: only labels and pictures are left to decide, and a run stops",
            f"{name_columns}; or continue without: --set data.without_texts=true",
        )
    if f.no_text == 1 and s.data.without_texts:
        yield Finding(
            "advice",
            "no texts",
            "no training sample has a text: labels and pictures decide, and anchors are the most typical pictures",
        )
    bare = [name for name, share in f.no_text_by_class.items() if share > FEW_TEXTS]
    if bare and f.no_text <= FEW_TEXTS:
        text = f"more than half of the samples have no text in these classes: {some(bare)}"
        yield Finding("warning", "texts missing in classes", text)
    half = max(1, f.samples // 2)
    if s.has_step2 and s.train.queue > half:
        yield Finding(
            "advice",
            "dictionary",
            f"train.queue is {s.train.queue:,} for {f.samples:,} samples: many embeddings "
            "in the dictionary come from past epochs (our rule: at most half of the samples)",
            f"--set train.queue={half}",
        )
    present = [size for size in f.sizes.values() if size and f.task == "single"]
    if present and max(present) >= UNEVEN * min(present) and s.finetune.balance is None:
        yield Finding(
            "advice",
            "uneven classes",
            f"the largest class has {max(present):,} samples, the smallest {min(present):,}: the classifier will "
            f"favour the large ones (our rule: balance them if the ratio is {UNEVEN} or more)",
            "--set finetune.balance=0.5, or 0 if classes are as uneven where the model will be used",
        )


def _about_classes(f: Facts) -> Iterator[Finding]:
    """Classes that are too small, and what is known of their meaning."""
    small = [name for name, size in sorted(f.sizes.items(), key=itemgetter(1)) if size < SMALL_CLASS]
    if small:
        yield Finding(
            "warning",
            "small classes",
            f"fewer than {SMALL_CLASS} training samples in {some(small)}: too few for anchors "
            "and other samples to correct",
            "collect more images of these classes, or join classes",
        )
    if f.undefined and f.no_text < 1:
        yield Finding(
            "warning",
            "classes without meaning",
            f"neither sense nor definition: {some(f.undefined)}; texts are compared with their bare names",
            "add a sense or a definition in classes.yaml",
        )
    if f.ambiguous and f.no_text < 1:
        yield Finding(
            "advice",
            "ambiguous names",
            f"several senses: {some(f.ambiguous)}; the class text alone decides which of them the anchors show",
            "check `capro classes show --run RUN` and match/anchors.png",
        )
    if not f.classes_known:
        yield Finding(
            "advice",
            "senses",
            "the senses of the classes are not chosen yet, so ambiguous classes are not known",
            "run `capro classes suggest --run RUN`",
        )
    if f.noise is not None:
        text = f"about {f.noise:.0%} of the web labels seem wrong ({f.noise_from}); an estimate, not a measurement"
        yield Finding("fine", "noise", text)


def _about_results(f: Facts) -> Iterator[Finding]:
    """Classes that came off badly."""
    if f.harmed:
        yield Finding(
            "advice",
            "classes made worse",
            f"worse than vanilla in {len(f.harmed)} of {f.compared} classes: {some(f.harmed)} "
            "(the paper: 312 of 1,000)",
            "check their anchors and senses first",
        )
    if f.emptied:
        yield Finding(
            "warning",
            "emptied classes",
            f"cleaning kept less than a tenth of the samples of {some(f.emptied)}",
            "check their anchors: the sense may be wrong",
        )


def _about_dropping(facts: Facts, settings: Settings) -> Iterator[Finding]:
    """Whether far more or fewer samples are dropped than probable, and a value that fits better."""
    drops, now, expected = facts.drops, settings.plus.drop_above, facts.none_expected
    if now not in drops:
        return
    better = min(drops, key=lambda value: (abs(drops[value] - expected), abs(value - now)))
    far = abs(drops[now] - expected) > max(DROPS_OFF * expected, FEW_DROPS * facts.samples)
    if far and better != now:
        yield Finding(
            "advice",
            "dropping",
            f"plus.drop_above = {now:g} seems too {'strict' if drops[now] > expected else 'lax'}: it drops "
            f"{drops[now]:,} samples, and by their probabilities about {expected:,.0f} show none of the classes "
            "(our rule)",
            f"look at what was dropped in the report; --set plus.drop_above={better:g} drops {drops[better]:,}",
        )


# --- settings that the paper's guidelines speak about ---------------------------------------------


def _about_thresholds(facts: Facts, settings: Settings) -> Iterator[Finding]:
    """Whether each setting fits: within some slack of the value that follows from the facts."""
    gamma, k, frequency = recommended_gamma(facts), recommended_k(facts), recommended_frequency(facts)
    bts = "balances the label and the predictions for similar samples; much more smooths too much"
    guidelines = {
        "train.gamma": (*gamma, 0.1),
        "match.top_k": (*k, 0.35 * k[0]),
        "train.update_every": (*frequency, 9 if frequency[0] > 1 else 4),
        "train.lambda_bts": (0.1, bts, 0.1),
        **{f"train.{name}": (1, f"{why}; try 0 and 1 first", 0.5) for name, why in LOSS_WEIGHTS.items()},
    }
    for name, (wanted, why, slack) in guidelines.items():
        topic, value = TOPICS.get(name, name.partition(".")[2]), value_of(settings, name)
        if abs(value - wanted) <= slack + 1e-9:
            yield Finding("fine", topic, f"{name} = {value:g} fits: {why}")
        else:
            text = f"{name} is {value:g}, {wanted:g} is better: {why}"
            yield Finding("advice", topic, text, f"--set {name}={wanted:g}")


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


def advice(run: Run) -> dict[str, Any]:
    """Facts and findings as plain data."""
    facts = examine(run)
    findings = diagnose(facts, run.settings)
    return {"facts": asdict(facts), "findings": [asdict(finding) for finding in findings]}
