"""Tables of the paper as data: rows are settings of the pipeline, or baselines.

Rows are named as what they are: an ablation of CAPro never carries the name of another system. Rows of the method are
the paper's settings whatever the preset (`PAPER`); what a preset may decide (`PRESETS_DECIDE`) is the same for all
rows of a table. A product row has the settings as they were given, under its own name.

The paper's own figures stand beside a row (`capro.bench.published`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch

from capro import config
from capro.bench import published
from capro.bench.baselines.registry import BASELINES
from capro.bench.published import Published
from capro.config import Settings
from capro.errors import ConfigError, did_you_mean

# What a preset may decide, for all rows alike: the encoder and its input, the schedule, and what the paper itself
# chooses by dataset (k, gamma, Q, when encoders learn and correction starts) or by length of training (momenta).
# docs/bench.md lists them for readers. `baselines` are the user's, for the rows that have them.
PRESETS_DECIDE = (
    "seed", "data.*", "scan.*", "views.*", "plus.*", "log.*", "baselines.*",
    "net.backbone", "net.weights", "net.mode", "net.frozen_views", "net.precision", "net.runtime", "net.embedding_dim",
    "net.tau",
    "*.epochs", "*.batch_size", "*.lr", "*.warmup_epochs", "*.momentum", "*.weight_decay",
    "embed.max_tokens", "embed.shard_size",
    "match.k", "match.exact_below", "match.memory_gb", "match.index", "match.recall",
    "train.anchor_epochs", "train.frozen_epochs", "train.correct_after", "train.gamma", "train.queue",
    "train.key_momentum", "train.prototype_momentum",
)  # fmt: skip

PINNED = [
    name for name in config.setting_names() if not any(fnmatch(name, pattern) for pattern in PRESETS_DECIDE)
]
# what every row of the method has, whatever the preset: CAPro as published, which the defaults are
PAPER = tuple(config.override(Settings(), name) for name in PINNED)


def row_settings(given: Settings, overrides: Sequence[str]) -> Settings:
    """Settings of a row: those given, with its overrides.

    A row of the paper corrects no label before step 2 has had an epoch. A preset whose heads start from the anchors
    (`small`) may correct at once, but rows start from step 1, which has learnt the wrong labels too: where
    the preset does not wait, they wait for a sixth of the epochs, as the released scripts do (10 of 60, 20 of 120).
    """
    settings = config.update(given, list(overrides))
    train = settings.train
    if not set(PAPER) <= set(overrides) or train.correct_after > 0:
        return settings
    wait = min(max(1, round(train.epochs / 6)), train.epochs - 1)
    return config.update(settings, [f"train.correct_after={max(0, wait)}"])


@dataclass(frozen=True)
class GridRow:
    """One method or setting of a table."""

    label: str
    overrides: tuple[str, ...] = ()
    baseline: str | None = None  # a name of BASELINES; None: the whole pipeline
    x: float | None = None  # place on a numeric axis
    paper: Published = field(default_factory=dict)
    product: bool = False  # the settings as given: overrides nothing


@dataclass(frozen=True)
class Table:
    """A grid, and the row that the others are compared with, seed by seed."""

    name: str
    title: str
    rows: tuple[GridRow, ...]
    against: str
    axis: str = ""  # name of the numeric axis
    note: str = ""
    kind: str = "accuracy"  # accuracy, openset or cost

    def __post_init__(self) -> None:
        labels = [row.label for row in self.rows]
        if self.against not in labels or len(set(labels)) != len(labels):
            raise ValueError(f"table {self.name}: rows {labels}, compared with {self.against}")

    def with_product(self, label: str) -> Table:
        """The table with this name for its product row."""
        return replace(
            self, rows=tuple(replace(row, label=label) if row.product else row for row in self.rows)
        )


def _of_paper(label: str, *overrides: str, paper: Published | None = None) -> GridRow:
    """A row of the method: the paper's settings but for some."""
    return GridRow(label, (*PAPER, *overrides), paper=paper or {})


NO_REFERENCE, MIXED = "train.reference=none", "train.reference=cb+mixup"
SYSTEMS = {each.label: name for name, each in BASELINES.items()}


def _system(label: str, figures: Mapping[str, Published]) -> GridRow:
    """Another system under its own name."""
    return GridRow(label, PAPER, baseline=SYSTEMS[label], paper=figures.get(label, {}))


MAIN = Table(
    "main",
    "Systems under one backbone and schedule",
    (
        *(_system(label, published.MAIN) for label in SYSTEMS),
        _of_paper("CAPro", paper=published.MAIN["CAPro"]),
        _of_paper("CAPro + mix-up", MIXED, paper=published.MAIN["CAPro + mix-up"]),
        GridRow("capro, settings as given", product=True),
    ),
    against="Vanilla",
    note="The paper quotes other systems from their papers, with other backbones, batch sizes and schedules: its "
    "figures can be compared within such a group only (Co-teaching and VSGraph have a vanilla of 66.9 on Google500, "
    "SCC one of 75.4). The last row has the settings as they were given, not the paper's.",
)


def _text_rows() -> tuple[GridRow, ...]:
    words = {"none": "no enhancement", "knn": "VSGraph's smoothing", "reciprocal": "our enhancement"}
    nothing = ("match.anchors=random", NO_REFERENCE)
    rows = [_of_paper("no text: random anchors", *nothing, paper=published.TEXT["none", "none"])]
    for encoder in ("minilm", "xlnet", "gpt-neo"):
        for enhancer, word in words.items():
            chosen = (f"embed.text_encoder={encoder}", f"match.enhancer={enhancer}", NO_REFERENCE)
            figures = published.TEXT.get((encoder, enhancer))
            rows.append(_of_paper(f"{encoder}, {word}", *chosen, paper=figures))
    return tuple(rows)


TEXT = Table(
    "text",
    "CAPro without references, by text encoder and text enhancement",
    _text_rows(),
    against="no text: random anchors",
    note="All rows are CAPro: VSGraph's smoothing is its k-NN graph in place of ours, not VSGraph itself. XLNet and "
    "GPT-Neo come from the Hugging Face hub; where they cannot be had, the row says so.",
)

PROVIDERS = {
    "none": "none", "mix-up": "mixup", "bootstrap": "bootstrap", "label smoothing": "smoothing", "SCC": "scc",
    "NCR": "ncr", "CB (ours)": "cb", "CB (ours) + mix-up": "cb+mixup",
}  # fmt: skip


def _provider_rows(encoder: str, labels: Mapping[str, str], prefix: str = "") -> tuple[GridRow, ...]:
    return tuple(
        _of_paper(
            prefix + label,
            f"embed.text_encoder={encoder}",
            f"train.reference={name}",
            paper=published.REFERENCE[encoder, name],
        )
        for label, name in labels.items()
    )


WITH_CB = {label: name for label, name in PROVIDERS.items() if "cb" in name}
REFERENCE = Table(
    "reference",
    "Reference provider",
    (*_provider_rows("minilm", PROVIDERS), *_provider_rows("gpt-neo", WITH_CB, "gpt-neo, ")),
    against="none",
    note="Each with the weight that it has in the authors' released scripts: label smoothing and bootstrap 0.1 in "
    "their target, SCC and mix-up (Beta(0.8)) in place of the cross-entropy, NCR and CB with lambda_bts 0.1; with CB, "
    "mix-up is added beside the cross-entropy.",
)


def _sweep(
    name: str, values: tuple[float, ...], *more: str, paper: Mapping[float, Published] | None = None
) -> tuple[GridRow, ...]:
    return tuple(
        GridRow(
            f"{value:g}", (*PAPER, *more, f"{name}={value:g}"), x=value, paper=(paper or {}).get(value, {})
        )
        for value in values
    )


GAMMA = Table(
    "gamma",
    "Threshold gamma of the label rule, without references, with VSGraph's smoothing",
    _sweep(
        "train.gamma", (0.2, 0.4, 0.6, 0.8, 0.9), "match.enhancer=knn", NO_REFERENCE, paper=published.GAMMA
    ),
    against="0.6",
    axis="gamma",
    note="The paper's figures at 0.6 (one label) and 0.9 (several) are those of its row with VSGraph's smoothing.",
)
FREQUENCY = Table(
    "frequency",
    "Epochs per prototype update (0: renewed from the anchors alone)",
    _sweep("train.update_every", (0, 1, 5, 10), paper=published.FREQUENCY),
    against="1",
    axis="epochs per update",
)
POLICY = Table(
    "policy",
    "Noise removal policy of CAPro",
    (
        _of_paper("MoPro's rule", "train.policy=mopro", paper=published.POLICY["mopro"]),
        _of_paper("CAPro's rule", paper=published.POLICY["capro"]),
    ),
    against="MoPro's rule",
)
K = Table(
    "k",
    "Anchors per class, top-K",
    _sweep("match.top_k", (5, 10, 20, 50, 100, 200)),
    against="50",
    axis="K",
    note="The paper shows this as a figure without numbers: a trade-off of diversity and purity.",
)
LAMBDA = Table(
    "lambda",
    "Weight of collective bootstrapping, lambda_bts",
    _sweep("train.lambda_bts", (0, 0.05, 0.1, 0.2, 0.5, 1.0)),
    against="0.1",
    axis="lambda_bts",
    note="The paper shows this as a figure without numbers: larger weights are worse.",
)
WEIGHTS = Table(
    "weights",
    "Loss weights 0 against 1",
    (
        _of_paper("all 1"),
        _of_paper("lambda_pro 0", "train.lambda_pro=0"),
        _of_paper("lambda_ins 0", "train.lambda_ins=0"),
        _of_paper("lambda_prj 0", "train.lambda_prj=0", "pretrain.lambda_prj=0"),
    ),
    against="all 1",
    note="The paper's guideline for data of one's own (App. Guidelines on tuning); it gives no figures. lambda_prj is "
    "0 in steps 1 and 2.",
)
OPENSET = Table(
    "openset",
    "Open-set recognition: C-F1 over known classes and the open one",
    (
        _system("Vanilla", published.OPENSET),
        _system("Co-teaching", published.OPENSET),
        _system("VSGraph", published.OPENSET),
        _of_paper("CAPro without text enhancement and CB", "match.enhancer=none", NO_REFERENCE),
        _of_paper("CAPro without CB", NO_REFERENCE),
        _of_paper("CAPro", paper=published.OPENSET["CAPro"]),
        _of_paper("CAPro + mix-up", MIXED),
    ),
    against="Vanilla",
    note="Trained on half of the classes (drawn by the seed of the settings, or --novel); a tenth of "
    "their training samples is held out for the threshold; tested on all test samples. The paper's Co-teaching "
    "and VSGraph are of another group of runs, whose vanilla has 50.5 and 46.4.",
    kind="openset",
)
COST = Table(
    "cost",
    "Parameters, GFLOPs (multiply-adds) and measured time of each part",
    _provider_rows("minilm", PROVIDERS),
    against="none",
    kind="cost",
)

_ALL = (MAIN, TEXT, REFERENCE, GAMMA, FREQUENCY, POLICY, K, LAMBDA, WEIGHTS, OPENSET, COST)
TABLES: dict[str, Table] = {table.name: table for table in _ALL}


def table_of(name: str) -> Table:
    """A table by name."""
    if name not in TABLES:
        raise ConfigError(f"no table '{name}'", hint=did_you_mean(name, TABLES))
    return TABLES[name]
