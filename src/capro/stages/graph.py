"""Enhance texts through the visual graph: a stage of its own, so that other anchors share it."""

from __future__ import annotations

import shutil
from pathlib import Path
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
        **({"own_neighbour": True} if chosen.own_neighbour else {}),  # newer than runs without it
        "seed": None if exact else run.settings.seed,  # an exact search has nothing random
    }


def search_options(job: Job, scratch: Path) -> dict[str, Any]:
    """How neighbours are searched for in a run, with a folder for what does not fit into memory."""
    chosen = job.settings.match
    return {
        "exact_below": chosen.exact_below,
        "seed": job.settings.seed,
        "budget": Budget.of(chosen.memory_gb, scratch),
        "index_kind": chosen.index,
        "recall": chosen.recall,
    }


def _work(job: Job) -> dict[str, Any]:
    chosen, ranks = job.settings.match, job.ranks
    search = job.folder / "search"
    budget = Budget.of(chosen.memory_gb, job.folder / "scratch")
    shared = SharedSearch(ranks, search, fingerprint([job.key, chosen.memory_gb]), job.engine, budget)
    if not ranks.main:
        if chosen.enhancer != "none":
            shared.assist()
        return {}
    with job.bar(f"graph ({chosen.enhancer})", None), job.scratch() as scratch:
        options = search_options(job, scratch)
        enhanced = enhance(
            job.read(VISUAL), job.read(TEXTS), enhancer=chosen.enhancer, k=chosen.k,
            own_neighbour=chosen.own_neighbour, through=shared, **options,
        )  # fmt: skip
    job.write(ENHANCED_TEXTS, enhanced.texts)
    job.remove(ADJACENCY)
    if enhanced.adjacency is not None:
        job.write(ADJACENCY, enhanced.adjacency)
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
