"""Enhance texts through the visual graph: a stage of its own, so that other anchors share it."""

from __future__ import annotations

import shutil
from typing import Any

from capro.graph.budget import Budget
from capro.graph.smooth import enhance
from capro.run.artefacts import ADJACENCY, ENHANCED_TEXTS, TEXTS, VISUAL
from capro.run.directory import Run
from capro.run.fingerprints import fingerprint
from capro.run.stage import Job, Stage
from capro.stages.shared_search import SharedSearch


def _settings(run: Run) -> dict[str, Any]:
    chosen = run.settings.match
    exact = chosen.enhancer == "none" or len(run.read(VISUAL)) < chosen.exact_below
    return {
        **chosen.model_dump(include={"enhancer", "k", "exact_below", "index", "recall"}),
        "seed": None if exact else run.settings.seed,  # an exact search has nothing random
    }


def _work(job: Job) -> dict[str, Any]:
    chosen, ranks = job.settings.match, job.ranks
    scratch, search = job.folder / "scratch", job.folder / "search"
    budget = Budget.of(chosen.memory_gb, scratch)
    shared = SharedSearch(ranks, search, fingerprint([job.key, chosen.memory_gb]))
    if not ranks.main:
        if chosen.enhancer != "none":
            shared.assist(budget)
        return {}
    shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed
    with job.bar(f"graph ({chosen.enhancer})", None):
        enhanced = enhance(
            job.read(VISUAL),
            job.read(TEXTS),
            enhancer=chosen.enhancer,
            k=chosen.k,
            exact_below=chosen.exact_below,
            seed=job.settings.seed,
            budget=budget,
            index_kind=chosen.index,
            recall=chosen.recall,
            through=shared,
        )
    job.write(ENHANCED_TEXTS, enhanced.texts)
    job.remove(ADJACENCY)
    if enhanced.adjacency is not None:
        job.write(ADJACENCY, enhanced.adjacency)
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.rmtree(search, ignore_errors=True)
    return {"recall": enhanced.recall}


STAGE = Stage(
    "graph",
    _work,
    summary="text enhancement",
    settings=_settings,
    reads=["embed"],
    implicit=True,
    command="match",
    ranks="share",
)
