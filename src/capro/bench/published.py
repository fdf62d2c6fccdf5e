"""The paper's own figures, table by table, as they are printed in it (percent).

Its data are other data and its scale another scale, so only the order of rows can be compared, and only within one
group of rows: the paper's Table 1 quotes systems with other backbones, batch sizes and schedules. A test reads the
paper's source and compares every figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Figure = float | None
Published = Mapping[str, Sequence[Figure]]  # by dataset: a figure for each of its metrics

SINGLE, MULTI = ("top1", "top5"), ("C-F1", "O-F1", "mAP")
METRICS_OF: dict[str, tuple[str, ...]] = {
    "WebVision1k": SINGLE,
    "ImageNet1k": SINGLE,
    "Google500": SINGLE,
    "ImageNet500": SINGLE,
    "NUS-WIDE": MULTI,
    "WebVision1k, open set": ("C-F1 mean",),
    "ImageNet1k, open set": ("C-F1 mean",),
}
SECOND = ("ImageNet1k", "ImageNet500", "ImageNet1k, open set")  # the paper's second test sets


def _row(
    webvision: Sequence[Figure] = (), imagenet: Sequence[Figure] = (), google500: Sequence[Figure] = (),
    imagenet500: Sequence[Figure] = (), nuswide: Sequence[Figure] = (),
) -> dict[str, Sequence[Figure]]:  # fmt: skip
    columns = (webvision, imagenet, google500, imagenet500, nuswide)
    return {name: values for name, values in zip(METRICS_OF, columns, strict=False) if values}


def _ablation(*figures: Figure) -> dict[str, Sequence[Figure]]:
    """A row of an ablation: Google500, ImageNet500, NUS-WIDE."""
    google500, imagenet500, nuswide = figures[:2], figures[2:4], figures[4:]
    parts = (google500, imagenet500, nuswide)
    return _row((), (), *(part if any(value is not None for value in part) else () for part in parts))


# Table 1 (one label) and Table 2 (NUS-WIDE): systems under their own names. The paper's own vanilla and CAPro are
# one group, NCR to SOMNet and MoPro's vanilla another, Co-teaching and VSGraph a third (their vanilla: 66.9 on
# Google500, 74.2 on WebVision1k, 37.5 C-F1 on NUS-WIDE), SCC a fourth (R50D; its vanilla: 75.0).
MAIN: dict[str, Published] = {
    "Vanilla": _row((72.6, 89.7), (67.0, 86.8), (69.9, 86.5), (64.5, 83.1), (37.8, 42.4, 38.3)),
    "CAPro": _row((74.2, 90.5), (68.0, 87.2), (76.0, 91.3), (72.0, 89.2), (39.3, 45.4, 48.0)),
    "CAPro + mix-up": _ablation(76.5, 91.1, 71.9, 88.8, 40.4, 46.7, 49.9),
    "MentorNet": _row((72.6, 88.9), (64.2, 84.8)),
    "CurriculumNet": _row((70.7, 88.6), (62.7, 83.4)),
    "Multimodal": _row((73.2, 89.7)),
    "SCC": _row((75.3, 89.3), (67.9, 84.7), (76.4, 89.6), (69.7, 85.3)),
    "Co-teaching": _row((), (), (67.6, 84.0), (62.1, 80.9)),
    "VSGraph": _row((75.4, 90.1), (69.4, 87.2), (68.1, 84.4), (63.1, 81.4), (38.6, 40.2, 44.8)),
    "SOMNet": _row((72.2, 89.5), (65.0, 85.1)),
    "CleanNet": _row((70.3, 87.7), (63.4, 84.5)),
    "SINet": _row((73.8, 90.6), (66.8, 85.9)),
    "NCR": _row((73.9, None)),
    "MILe": _row((75.2, 90.3), (67.1, 85.6)),
    "MoPro": _row((73.9, 90.0), (67.8, 87.0)),
    "MCPL": _row(nuswide=(22.5, 17.2, 47.4)),
}

# Table 3 (open set).
OPENSET: dict[str, Published] = {
    name: {"WebVision1k, open set": (web,), "ImageNet1k, open set": (imagenet,)}
    for name, web, imagenet in (
        ("Vanilla", 54.6, 48.3), ("Co-teaching", 51.0, 47.7), ("VSGraph", 57.2, 52.8), ("CAPro", 62.2, 57.8),
    )
}  # fmt: skip

# Table 4: text encoding x enhancement, then the reference providers with MiniLM and our enhancement.
TEXT: dict[tuple[str, str], Published] = {
    ("none", "none"): _ablation(71.5, 87.8, 66.5, 84.6, 37.2, 42.4, 46.2),
    ("minilm", "knn"): _ablation(72.0, 88.0, 66.9, 85.4, 39.2, 44.4, 46.8),
    ("minilm", "reciprocal"): _ablation(75.5, 91.0, 71.5, 88.8, 39.3, 44.9, 47.4),
    ("xlnet", "knn"): _ablation(71.6, 87.8, 66.8, 84.8, 38.6, 43.4, 47.6),
    ("xlnet", "reciprocal"): _ablation(75.4, 91.0, 71.5, 88.8, 39.3, 45.1, 47.5),
    ("gpt-neo", "knn"): _ablation(72.0, 88.0, 67.2, 85.3, 39.2, 45.0, 47.4),
    ("gpt-neo", "reciprocal"): _ablation(75.7, 91.1, 71.6, 88.8, 39.2, 45.1, 47.6),
}
REFERENCE: dict[tuple[str, str], Published] = {
    ("minilm", "none"): TEXT["minilm", "reciprocal"],
    ("minilm", "mixup"): _ablation(75.7, 90.9, 71.4, 88.6, 38.7, 45.3, 47.2),
    ("minilm", "bootstrap"): _ablation(75.5, 90.8, 71.3, 88.4, 38.1, 43.2, 46.0),
    ("minilm", "smoothing"): _ablation(75.4, 90.8, 71.2, 88.4, 36.9, 42.1, 46.8),
    ("minilm", "scc"): _ablation(73.8, 89.9, 70.2, 88.0, 35.6, 41.3, 45.0),
    ("minilm", "ncr"): _ablation(75.5, 91.1, 71.5, 88.8, 37.6, 43.4, 46.8),
    ("minilm", "cb"): _ablation(76.0, 91.3, 72.0, 89.2, 39.3, 45.4, 48.0),
    ("minilm", "cb+mixup"): MAIN["CAPro + mix-up"],
    ("gpt-neo", "cb"): _ablation(76.1, 91.4, 72.1, 89.4, 39.3, 44.9, 47.7),
    ("gpt-neo", "cb+mixup"): _ablation(76.5, 91.2, 72.0, 88.8, 40.7, 45.2, 50.0),
}

# The appendix: gamma without references (its figures are those of the k-NN smoothing), update frequency, policy.
GAMMA: dict[float, Published] = {
    0.6: _ablation(72.0, 88.0, 66.9, 85.4, 8.3, 9.1, 6.9),
    0.8: _ablation(71.2, 87.7, 65.9, 84.8, None, None, None),
    0.9: _ablation(None, None, None, None, 39.2, 44.4, 46.8),
}
FREQUENCY: dict[float, Published] = {
    0: _ablation(75.5, 91.1, 71.6, 88.8, 39.2, 44.4, 47.2),
    1: _ablation(76.0, 91.3, 72.0, 89.2, 39.3, 45.4, 48.0),
    5: _ablation(75.9, 91.2, 71.8, 89.2, 39.6, 45.0, 47.6),
    10: _ablation(76.0, 91.2, 71.7, 89.1, 39.3, 45.8, 48.2),
}
POLICY: dict[str, Published] = {
    "mopro": _ablation(75.8, 91.1, 71.7, 89.0, 38.8, 42.2, 47.2),
    "capro": _ablation(76.0, 91.3, 72.0, 89.2, 39.3, 45.4, 48.0),
}
