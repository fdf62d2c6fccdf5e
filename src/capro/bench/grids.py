"""Tables of the paper as data: rows are settings of the pipeline, or baselines.

``paper`` are the paper's own figures for a row, on Google500 (top-1, Tab. 1 and the ablations) and on
NUS-WIDE (C-F1, mAP): other data, another scale, so only the order of rows can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from capro.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class GridRow:
    """One method or setting of a table."""

    label: str
    overrides: tuple[str, ...] = ()
    baseline: str | None = None  # a name of capro.baselines; None: the whole pipeline
    x: float | None = None  # place on a numeric axis
    paper: Mapping[str, float] = field(default_factory=dict)


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


def _paper(
    top1: float | None = None, c_f1: float | None = None, m_ap: float | None = None
) -> dict[str, float]:
    named = {"top1": top1, "C-F1": c_f1, "mAP": m_ap}
    return {name: value for name, value in named.items() if value is not None}


PAPER = ("method=paper", "train.text_weight=0", "finetune.balance=null")  # whatever the preset


def _with(reference: str) -> tuple[str, ...]:
    return (f"train.reference={reference}", *PAPER)


NO_REFERENCE, CB, MIXED = _with("none"), _with("cb"), _with("cb+mixup")
MOPRO = ("match.anchors=random", "train.policy=mopro", "train.start=web", *NO_REFERENCE)
NO_TEXT = ("match.anchors=random", *NO_REFERENCE)

OTHERS = {
    "Linear probe": "linear", "k-NN label vote": "knn", "Label smoothing": "smoothing", "Mix-up": "mixup",
    "Bootstrap": "bootstrap", "SCC": "scc", "NCR": "ncr", "Small-loss selection": "smallloss",
}  # fmt: skip
MAIN = Table(
    "main",
    "Methods under one backbone and schedule",
    (
        GridRow("Vanilla", baseline="vanilla", paper=_paper(69.9, 37.8, 38.3)),
        *(GridRow(label, baseline=name) for label, name in OTHERS.items()),
        GridRow("Co-teaching", baseline="coteaching", paper=_paper(67.6)),
        GridRow("Confident learning (cleanlab)", baseline="cleanlab"),
        GridRow("MoPro", MOPRO, paper=_paper(71.5, 37.2, 46.2)),
        GridRow("VSGraph", ("match.enhancer=knn", *NO_REFERENCE), paper=_paper(72.0, 39.2, 46.8)),
        GridRow("CAPro", CB, paper=_paper(76.0, 39.3, 48.0)),
        GridRow("CAPro + mix-up", MIXED, paper=_paper(76.5, 40.4, 49.9)),
    ),
    against="Vanilla",
    note="MoPro: random anchors that are not protected, no references (the paper's first ablation "
    "row). VSGraph: its k-NN graph in our pipeline, no references (the second row). The paper's "
    "Co-teaching is of another group of runs, whose vanilla has 66.9.",
)


def _text_rows() -> tuple[GridRow, ...]:
    figures = {
        ("minilm", "knn"): _paper(72.0, 39.2, 46.8),
        ("minilm", "reciprocal"): _paper(75.5, 39.3, 47.4),
        ("xlnet", "knn"): _paper(71.6, 38.6, 47.6),
        ("xlnet", "reciprocal"): _paper(75.4, 39.3, 47.5),
        ("gpt-neo", "knn"): _paper(72.0, 39.2, 47.4),
        ("gpt-neo", "reciprocal"): _paper(75.7, 39.2, 47.6),
    }
    words = {"none": "no enhancement", "knn": "VSGraph", "reciprocal": "ours"}
    rows = [GridRow("no text: random anchors", NO_TEXT, paper=_paper(71.5, 37.2, 46.2))]
    for encoder in ("minilm", "xlnet", "gpt-neo"):
        for enhancer, word in words.items():
            chosen = (f"embed.text_encoder={encoder}", f"match.enhancer={enhancer}", *NO_REFERENCE)
            paper = figures.get((encoder, enhancer), {})
            rows.append(GridRow(f"{encoder}, {word}", chosen, paper=paper))
    return tuple(rows)


TEXT = Table(
    "text",
    "Text encoder and text enhancement, without references",
    _text_rows(),
    against="no text: random anchors",
    note="XLNet and GPT-Neo come from the Hugging Face hub; where they cannot be had, the row says so.",
)

REFERENCE = Table(
    "reference",
    "Reference provider",
    (
        GridRow("none", NO_REFERENCE, paper=_paper(75.5, 39.3, 47.4)),
        GridRow("mix-up", _with("mixup"), paper=_paper(75.7, 38.7, 47.2)),
        GridRow("bootstrap", _with("bootstrap"), paper=_paper(75.5, 38.1, 46.0)),
        GridRow("label smoothing", _with("smoothing"), paper=_paper(75.4, 36.9, 46.8)),
        GridRow("SCC", _with("scc"), paper=_paper(73.8, 35.6, 45.0)),
        GridRow("NCR", _with("ncr"), paper=_paper(75.5, 37.6, 46.8)),
        GridRow("CB (ours)", CB, paper=_paper(76.0, 39.3, 48.0)),
        GridRow("CB (ours) + mix-up", MIXED, paper=_paper(76.5, 40.4, 49.9)),
    ),
    against="none",
    note="All with the same weight, train.lambda_bts.",
)


def _sweep(
    name: str, values: tuple[float, ...], *more: str, paper: Mapping[float, Mapping[str, float]] | None = None
) -> tuple[GridRow, ...]:
    return tuple(
        GridRow(f"{value:g}", (f"{name}={value:g}", *more), x=value, paper=(paper or {}).get(value, {}))
        for value in values
    )


GAMMA = Table(
    "gamma",
    "Threshold gamma of the label rule, without references",
    _sweep(
        "train.gamma",
        (0.2, 0.4, 0.6, 0.8, 0.9),
        *NO_REFERENCE,
        paper={0.6: _paper(72.0, 8.3, 6.9), 0.8: _paper(71.2), 0.9: _paper(None, 39.2, 46.8)},
    ),
    against="0.6",
    axis="gamma",
)
FREQUENCY = Table(
    "frequency",
    "Epochs per prototype update (0: renewed from the anchors alone)",
    _sweep(
        "train.update_every",
        (0, 1, 5, 10),
        *CB,
        paper={
            0: _paper(75.5, 39.2, 47.2),
            1: _paper(76.0, 39.3, 48.0),
            5: _paper(75.9, 39.6, 47.6),
            10: _paper(76.0, 39.3, 48.2),
        },
    ),
    against="1",
    axis="epochs per update",
)
POLICY = Table(
    "policy",
    "Noise removal policy",
    (
        GridRow("MoPro's", ("train.policy=mopro", *CB), paper=_paper(75.8, 38.8, 47.2)),
        GridRow("CAPro's", ("train.policy=capro", *CB), paper=_paper(76.0, 39.3, 48.0)),
    ),
    against="MoPro's",
)
K = Table(
    "k",
    "Anchors per class, top-K",
    _sweep("match.top_k", (5, 10, 20, 50, 100, 200), *CB),
    against="50",
    axis="K",
    note="The paper shows this as a figure without numbers: a trade-off of diversity and purity.",
)
LAMBDA = Table(
    "lambda",
    "Weight of collective bootstrapping, lambda_bts",
    _sweep("train.lambda_bts", (0, 0.05, 0.1, 0.2, 0.5, 1.0), *CB),
    against="0.1",
    axis="lambda_bts",
    note="The paper shows this as a figure without numbers: larger weights are worse.",
)
OPENSET = Table(
    "openset",
    "Open-set recognition: C-F1 over known classes and the open one",
    (
        GridRow("Vanilla", baseline="vanilla", paper={"C-F1 mean": 54.6}),
        GridRow("CAPro without text enhancement and CB", ("match.enhancer=none", *NO_REFERENCE)),
        GridRow("CAPro without CB", NO_REFERENCE),
        GridRow("CAPro", CB, paper={"C-F1 mean": 62.2}),
        GridRow("CAPro + mix-up", MIXED),
    ),
    against="Vanilla",
    note="Trained on half of the classes (drawn by the seed of the settings, or --novel); a tenth of "
    "their training samples is held out for the threshold; tested on all test samples.",
    kind="openset",
)
COST = Table(
    "cost",
    "Parameters, GFLOPs (multiply-adds) and measured time of each part",
    REFERENCE.rows,
    against="none",
    kind="cost",
)

_ALL = (MAIN, TEXT, REFERENCE, GAMMA, FREQUENCY, POLICY, K, LAMBDA, OPENSET, COST)
TABLES: dict[str, Table] = {table.name: table for table in _ALL}


def table_of(name: str) -> Table:
    """A table by name."""
    if name not in TABLES:
        raise ConfigError(f"no table '{name}'", hint=did_you_mean(name, TABLES))
    return TABLES[name]
