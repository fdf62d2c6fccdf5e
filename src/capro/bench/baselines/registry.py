"""The baselines by name: how each learns, and what decides its result beside step 1's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from capro.bench.baselines import (
    cleannet,
    coteaching,
    curriculumnet,
    mcpl,
    mentornet,
    mile,
    mopro,
    multimodal,
    ncr,
    scc,
    simple,
    sinet,
    somnet,
    vsgraph,
)
from capro.bench.baselines.work import Made, Work
from capro.config import Settings
from capro.core.own_settings import own_settings


@dataclass(frozen=True)
class Baseline:
    """One baseline.

    Attributes:
        learn: Trains it; returns networks to score (None: the vote of neighbours) and figures to keep.
        believes: Whether it reads cross-validated beliefs, from whether samples carry several labels.
        settings: The settings that decide it beside those of step 1.
        reads: Stages of the plan that it reads beside scan, classes and pretrain; done where missing.
        one: Whether it has a form for one label.
        several: Whether it has a form for several labels.
        verified: Whether it learns from verified samples (``baselines.verified``).
        version: Raise it when the baseline changes: stored results of the old one are then not fresh.
    """

    learn: Callable[[Work], Made]
    believes: Callable[[bool], bool] = lambda _: False
    settings: Callable[[Settings], dict[str, Any]] = lambda _: {}
    reads: tuple[str, ...] = ()
    one: bool = True
    several: bool = True
    verified: Literal["never", "if given", "always"] = "never"
    version: int = 1


def _referenced(name: str) -> Baseline:
    def own(settings: Settings) -> dict[str, Any]:
        found = own_settings(name, settings.reference.model_dump())
        return {"reference": found} if found else {}

    return Baseline(simple.referenced(name), settings=own)


def _one_label(several: bool) -> bool:
    return not several  # with several labels the noise is not estimated


BASELINES: dict[str, Baseline] = {
    "vanilla": Baseline(simple.vanilla),
    "linear": Baseline(simple.linear),
    "smoothing": _referenced("smoothing"),
    "mixup": _referenced("mixup"),
    "bootstrap": _referenced("bootstrap"),
    "scc": Baseline(scc.learn, version=2),
    "ncr": Baseline(ncr.learn, settings=ncr.own_settings, version=2),
    "coteaching": Baseline(coteaching.learn_from_small_losses(2), believes=_one_label, version=3),
    "smallloss": Baseline(coteaching.learn_from_small_losses(1), believes=_one_label, version=2),
    "cleanlab": Baseline(simple.cleanlab, believes=lambda _: True),
    "knn": Baseline(simple.knn),
    "cleannet": Baseline(cleannet.learn, several=False, verified="always"),
    "curriculumnet": Baseline(curriculumnet.learn, several=False),
    "mentornet": Baseline(
        mentornet.learn, believes=_one_label, several=False, verified="if given", version=2
    ),
    "mopro": Baseline(mopro.learn, settings=mopro.own_settings),
    "somnet": Baseline(somnet.learn, several=False),
    "vsgraph": Baseline(vsgraph.learn, settings=vsgraph.own_settings, reads=("embed",), version=2),
    "sinet": Baseline(sinet.learn, reads=("embed",), several=False),
    "mile": Baseline(mile.learn, several=False, version=2),
    "mcpl": Baseline(mcpl.learn, believes=lambda _: True, one=False),
    "multimodal": Baseline(multimodal.learn, reads=("embed",)),
}
