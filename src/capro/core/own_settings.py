"""Which settings decide a reference provider: known without loading torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OWN = {
    "none": (),
    "mixup": ("mixup_alpha", "mixup_weight"),
    "bootstrap": ("bootstrap_beta", "bootstrap_hard"),
    "smoothing": ("smoothing",),
    "scc": ("scc_weight",),
    "ncr": ("neighbours", "ncr_temperature", "ncr_weight"),
    "cb": ("tau", "alpha", "to_classifier"),
    "cb+mixup": ("tau", "alpha", "to_classifier", "mixup_alpha", "mixup_weight"),
}


def own_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of a flat set of settings, those that decide this provider.

    >>> own_settings("smoothing", {"smoothing": 0.2, "mixup_alpha": 0.8})
    {'smoothing': 0.2}
    """
    return {key: value for key, value in settings.items() if key in OWN[name]}
