"""Enhance texts through the visual graph: a stage of its own, so that other anchors share it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from capro.graph.budget import Budget
from capro.graph.smooth import enhance
from capro.run.artefacts import ADJACENCY, ENHANCED_TEXTS, TEXTS, VISUAL
from capro.run.fingerprints import fingerprint
from capro.run.stage import Job
from capro.stages.shared_search import SharedSearch


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


def work(job: Job) -> dict[str, Any]:
    chosen, ranks = job.settings.match, job.ranks
    search = job.folder / "search"
    budget = Budget.of(chosen.memory_gb, job.folder / "scratch")
    shared = SharedSearch(ranks, search, fingerprint([job.key, chosen.memory_gb]), job.engine, budget)
    visual = job.read(VISUAL)
    if not ranks.main:
        if chosen.enhancer != "none":
            shared.assist()
        return {}
    with job.bar(f"graph ({chosen.enhancer})", shared.own(len(visual))) as step, job.scratch() as scratch:
        options = search_options(job, scratch) | {"through": replace(shared, progress=step)}
        how = chosen.model_dump(include={"enhancer", "k", "own_neighbour"})
        enhanced = enhance(visual, job.read(TEXTS), **how, **options)
    job.write(ENHANCED_TEXTS, enhanced.texts)
    job.remove(ADJACENCY)
    if enhanced.adjacency is not None:
        job.write(ADJACENCY, enhanced.adjacency)
    shutil.rmtree(search, ignore_errors=True)
    return {"recall": enhanced.recall}
