"""Decode small data once into a memory map; frozen mode: features of every image and of augmented views."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capro.data.manifest import manifest_of
from capro.data.pixels import decoded_bytes, pixels_of
from capro.data.views import KEY, QUERY
from capro.models.backbones import Backbone
from capro.models.inference import for_inference
from capro.pipeline.artefacts import KEY_FEATURES, PIXEL_INDEX, PLAIN_FEATURES, QUERY_FEATURES
from capro.pipeline.checksums import fingerprint
from capro.pipeline.engine import Portable
from capro.pipeline.progress import Step
from capro.pipeline.ranks import ranks_of
from capro.pipeline.run import Run
from capro.pipeline.shards import Shards, chosen_rows, planned, sharded, write_rows
from capro.pipeline.stage import Job
from capro.stages.plan import augmented_views
from capro.train.batches import PLAIN, Inputs
from capro.train.setup import cost_line, encoder_cost, image_inputs, pretrained, size_line

WORTH_CONVERTING = 1000  # samples from which ONNX Runtime saves more time than the conversion takes
CPU_BATCH = 16  # stays in the cache: EfficientNet-Lite0 runs 2.3 times as fast as with 64


def image_shards(folder: Path, count: int, run: Run, *, key: Any) -> Shards:
    """Where the features of images go, by blocks; ``key`` decides their values."""
    size = run.settings.embed.shard_size
    return planned(folder, count, key=fingerprint([run.identity("scan"), key]), size=size)


@dataclass(frozen=True)
class ImageEncoder(Portable):
    """An encoder of images and where its input comes from; loaded once in each process that needs it.

    Attributes:
        run: The run.
        load: Makes both; a function of a module where an engine may send it to another process.
    """

    run: Run
    load: Callable[[Run], tuple[Backbone, Inputs]]

    @cached_property
    def loaded(self) -> tuple[Backbone, Inputs]:
        """The encoder as it was made, and its input."""
        return self.load(self.run)

    @cached_property
    def ready(self) -> tuple[Callable[[torch.Size], torch.nn.Module], Inputs, torch.device, int]:
        """The encoder by the shape of an image, its input, the device here, and how many images it takes at once."""
        settings, (encoder, inputs) = self.run.settings, self.loaded
        device = ranks_of(settings).accelerator.device
        encoder = encoder.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        size = settings.embed.batch_size
        onnx = settings.net.runtime == "auto" and len(manifest_of(self.run).samples) >= WORTH_CONVERTING
        quick = cache(lambda shape: for_inference(encoder, shape, onnx=onnx))
        return quick, inputs, device, min(size, CPU_BATCH) if device.type == "cpu" else size


@dataclass(frozen=True)
class ImageFeatures(Portable):
    """Features of images, (n, d_v), begin to end.

    Attributes:
        encoder: What encodes them.
        split: Whose images; None is all samples of the input.
        view: Plain, or which kind of augmented view.
        epoch: Number of the view.
    """

    encoder: ImageEncoder
    split: str | None = None
    view: int = PLAIN
    epoch: int = 0

    @cached_property
    def _rows(self) -> NDArray[np.int64] | None:
        return None if self.split is None else manifest_of(self.encoder.run).split(self.split)

    @torch.no_grad()
    def __call__(self, begin: int, end: int, step: Step) -> NDArray[np.float32]:
        encoder, inputs, device, size = self.encoder.ready
        parts = []
        for at in range(begin, end, size):
            block = np.arange(at, min(at + size, end))
            block = block if self._rows is None else self._rows[block]
            raw = inputs.raw(block, epoch=self.epoch, view=self.view)
            x = inputs.ready(raw, block, epoch=self.epoch, view=self.view, device=device)
            if x.ndim == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            parts.append(encoder(x.shape[1:])(x).float().cpu().numpy())
            step(len(block))
        return np.concatenate(parts)


def with_images(run: Run) -> tuple[Backbone, Inputs]:
    """The backbone that the settings name, before any training, and the images of a run."""
    backbone = pretrained(run.settings)
    return backbone, image_inputs(run, backbone, seed=run.settings.seed)


def say_encoder(job: Job, backbone: Backbone, cost: dict[str, Any]) -> None:
    """Name the encoder with its cost, and say where it sees smaller pictures than it was made for."""
    job.watch.say(cost_line("encoder", cost))
    if smaller := size_line(backbone, job.settings.views.size or backbone.size):
        job.watch.say(smaller)


def _frozen(run: Run) -> tuple[Backbone, Inputs]:
    backbone = pretrained(run.settings).eval()
    # one seed for all runs: the cached views are data, and trainings of any seed share them
    return backbone, image_inputs(run, backbone, seed=0)


def work(job: Job) -> dict[str, Any]:
    settings, manifest = job.settings, manifest_of(job.run)
    encoder = ImageEncoder(job.run, _frozen)
    backbone, _ = encoder.loaded
    cost = encoder_cost(backbone, settings.views.size or backbone.size)
    say_encoder(job, backbone, cost)
    train, everyone = manifest.split("train"), len(manifest.samples)
    queries, keys = augmented_views(settings)
    views = [("plain", PLAIN, 0)]
    views += [("query", QUERY, number) for number in range(queries)]
    views += [("key", KEY, number) for number in range(keys)]
    shards: dict[str, list[Shards]] = {"plain": [], "query": [], "key": []}
    with job.bar("features of views", everyone + len(train) * (queries + keys)) as step:
        for name, view, number in views:
            split, count = (None, everyone) if view == PLAIN else ("train", len(train))
            key = [name, number, job.stage.settings(job.run)]
            part = image_shards(job.folder / f"{name}{number}", count, job.run, key=key)
            features = ImageFeatures(encoder, split, view, number)
            shards[name].append(sharded(part, features, engine=job.engine, gpu=True, progress=step))
    _join(job, shards, train, (everyone, backbone.dim))
    return {"encoder": cost}


def _join(
    job: Job, shards: dict[str, list[Shards]], train: NDArray[np.int64], shape: tuple[int, int]
) -> None:
    """Write the arrays from the shards, block by block; then the shards go."""
    blocks = {name: (b for part in of for b in part.blocks()) for name, of in shards.items()}
    write_rows(job.file(PLAIN_FEATURES), shape, blocks["plain"])
    unaugmented = chosen_rows(job.read(PLAIN_FEATURES), train)
    query = (1 + len(shards["query"]), len(train), shape[1])
    write_rows(job.file(QUERY_FEATURES), query, chain(unaugmented, blocks["query"]))
    key = (len(shards["key"]), len(train), shape[1])
    write_rows(job.file(KEY_FEATURES), key, blocks["key"])
    for part in chain.from_iterable(shards.values()):
        shutil.rmtree(part.folder.parent)


def decode_pixels(job: Job) -> dict[str, Any]:
    job.remove(PIXEL_INDEX)
    manifest = manifest_of(job.run)
    needed = decoded_bytes(manifest)
    if needed > job.settings.views.cache_gb * 2**30:
        return {"cached": False, "bytes": needed}
    with job.bar("decoding images", len(manifest.samples)) as step:
        pixels = pixels_of(job.run, job.stage.settings(job.run)["size"], cached=False)
        pixels.build(job.folder, needed=needed, progress=step)
    return {"cached": True, "bytes": needed}
