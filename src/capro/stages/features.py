"""Frozen mode: features of every image, and of a few augmented views of the training images."""

from __future__ import annotations

from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capro.config import Settings
from capro.data.manifest import manifest_of
from capro.data.views import KEY, QUERY
from capro.nets.backbones import Backbone
from capro.nets.inference import for_inference
from capro.run.artefacts import KEY_FEATURES, PLAIN_FEATURES, QUERY_FEATURES
from capro.run.directory import Run
from capro.run.fingerprints import fingerprint
from capro.run.progress import Step
from capro.run.ranks import Ranks
from capro.run.shards import Shards, chosen_rows, planned, sharded, write_rows
from capro.run.stage import Job, Stage
from capro.stages.train import has_step2
from capro.train.batches import PLAIN, Inputs
from capro.train.setup import cost_line, encoder_cost, image_inputs, pretrained, size_line

CPU_BATCH = 16  # stays in the cache: EfficientNet-Lite0 runs 2.3 times as fast as with 64


def image_shards(folder: Path, count: int, run: Run, *, key: Any) -> Shards:
    """Where the features of images go, by blocks; ``key`` decides their values."""
    size = run.settings.embed.shard_size
    return planned(folder, count, key=fingerprint([run.need("scan"), key]), size=size)


def embed_images(
    shards: Shards,
    inputs: Inputs,
    encoder: torch.nn.Module,
    rows: NDArray[np.int64],
    settings: Settings,
    ranks: Ranks,
    *,
    view: int,
    epoch: int,
    step: Step,
) -> Shards:
    """Features of images, (n, d_v), into this rank's shards; ``step`` counts its rows."""
    device = ranks.accelerator.device
    encoder = encoder.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    quick = cache(lambda shape: for_inference(encoder, shape))
    size = settings.embed.batch_size
    if device.type == "cpu":
        size = min(size, CPU_BATCH)

    @torch.no_grad()
    def compute(begin: int, end: int) -> NDArray[np.float32]:
        parts = []
        for at in range(begin, end, size):
            block = rows[at : min(at + size, end)]
            raw = inputs.raw(block, epoch=epoch, view=view)
            x = inputs.ready(raw, block, epoch=epoch, view=view, device=device)
            if x.ndim == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            parts.append(quick(x.shape[1:])(x).float().cpu().numpy())
            step(len(block))
        return np.concatenate(parts)

    return sharded(shards, compute, team=ranks, progress=step)


def _augmented(settings: Settings) -> tuple[int, int]:
    """How many augmented views are cached: query views, and key views, which step 2 alone looks at."""
    step2 = has_step2(settings)
    views = settings.net.frozen_views
    if views is None:
        views = 3 if step2 else 0  # plus gains nothing from more than the plain view: docs/plus.md
    keys = max(1, views // 2) if step2 else 0
    return max(0, views - keys), keys


def _settings(run: Run) -> dict[str, Any]:
    settings = run.settings
    query, keys = _augmented(settings)
    return {
        "net": settings.net.model_dump(include={"backbone", "weights"}) | {"frozen_views": query + keys},
        "views": settings.views.model_dump(exclude={"cache_gb"}),
        **({} if keys else {"key views": 0}),
    }


def say_encoder(job: Job, backbone: Backbone, cost: dict[str, Any]) -> None:
    """Name the encoder with its cost, and say where it sees smaller pictures than it was made for."""
    job.watch.say(cost_line("encoder", cost))
    if smaller := size_line(backbone, job.settings.views.size or backbone.size):
        job.watch.say(smaller)


def _work(job: Job) -> dict[str, Any]:
    settings, ranks, manifest = job.settings, job.ranks, manifest_of(job.run)
    backbone = pretrained(settings).eval()
    cost = encoder_cost(backbone, settings.views.size or backbone.size)
    say_encoder(job, backbone, cost)
    # one seed for all runs: the cached views are data, and trainings of any seed share them
    images = image_inputs(job.run, backbone, seed=0)
    train, everyone = manifest.split("train"), np.arange(len(manifest.samples))
    queries, keys = _augmented(settings)
    views = [("plain", PLAIN, 0, everyone)]
    views += [("query", QUERY, number, train) for number in range(queries)]
    views += [("key", KEY, number, train) for number in range(keys)]
    shards = [
        image_shards(
            job.folder / f"{name}{number}", len(rows), job.run, key=[name, number, _settings(job.run)]
        )
        for name, _, number, rows in views
    ]
    with job.bar("features of views", sum(part.rows(ranks) for part in shards)) as step:
        for part, (_, view, number, rows) in zip(shards, views, strict=True):
            embed_images(part, images, backbone, rows, settings, ranks, view=view, epoch=number, step=step)
    ranks.meet()
    if ranks.main:
        named = [(name, part) for (name, *_), part in zip(views, shards, strict=True)]
        _join(job, named, train, (len(everyone), backbone.dim))
    return {"encoder": cost}


def _join(
    job: Job, shards: list[tuple[str, Shards]], train: NDArray[np.int64], shape: tuple[int, int]
) -> None:
    """Write the arrays from the shards, block by block; then the shards go."""
    parts = {name: [part for n, part in shards if n == name] for name in ("plain", "query", "key")}
    blocks = {name: (b for part in of for b in part.blocks()) for name, of in parts.items()}
    write_rows(job.file(PLAIN_FEATURES), shape, blocks["plain"])
    unaugmented = chosen_rows(job.read(PLAIN_FEATURES), train)
    query = (1 + len(parts["query"]), len(train), shape[1])
    write_rows(job.file(QUERY_FEATURES), query, chain(unaugmented, blocks["query"]))
    key = (len(parts["key"]), len(train), shape[1])
    write_rows(job.file(KEY_FEATURES), key, blocks["key"])
    for _, part in shards:
        part.drop()
        part.folder.parent.rmdir()


STAGE = Stage(
    "features",
    _work,
    summary="image encoder: features of all views (frozen mode)",
    settings=_settings,
    reads=["scan"],
    uses=["pixels"],
    implicit=True,
    command="pretrain",
    ranks="share",
    when=lambda settings: settings.net.mode == "frozen",
)
