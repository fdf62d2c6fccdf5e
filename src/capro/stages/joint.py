"""Pictures, class prompts and texts in the space of an image-text model: evidence of the method `plus`.

Only where `net.backbone` has a text tower of its own (CLIP, SigLIP). A picture's vector is the projection of the
features that the model came with: those of the frozen encoder, or a pass over the pictures before an encoder learns.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.data.manifest import manifest_of
from capro.run.artefacts import JOINT_PICTURES, JOINT_PROMPTS, JOINT_TEXTS, PLAIN_FEATURES
from capro.run.directory import Run
from capro.run.ranks import ranks_of
from capro.run.shards import chosen_rows, write_rows
from capro.run.stage import Job
from capro.stages.embed import SHARDS, DistinctTexts, embed_texts, text_cost, write_texts
from capro.stages.features import ImageEncoder, ImageFeatures, embed_images, image_shards, with_images
from capro.text.classes import class_prompts, classes_of
from capro.text.cleaning import training_fields
from capro.text.encoders import TextEncoder, load_text_encoder
from capro.train.setup import cost_line


def _tower(run: Run) -> TextEncoder:
    return load_text_encoder(run.settings.net.backbone, device=str(ranks_of(run.settings).accelerator.device))


def _columns(run: Run) -> dict[str, list[str]]:
    return {"": [""], **training_fields(manifest_of(run))}  # there may be no text at all


def work(job: Job) -> dict[str, Any]:
    ranks = job.ranks
    source = DistinctTexts(job.run, _tower, _columns)
    encoder = source.encoder
    cost = text_cost(encoder)
    job.watch.say(cost_line("text tower", cost))
    encoded = embed_texts(job, source)
    features = _features(job)
    ranks.meet()
    if not ranks.main:
        return {}
    write_texts(job, JOINT_TEXTS, source, encoded)
    count = len(manifest_of(job.run).split("train"))
    write_rows(job.file(JOINT_PICTURES), (count, encoder.dim), map(encoder.project, features()))
    job.write(
        JOINT_PROMPTS, np.stack([_prompt(class_prompts(spec), encoder) for spec in classes_of(job.run)])
    )
    for name in SHARDS:
        shutil.rmtree(job.folder / name, ignore_errors=True)
    return {"text_tower": cost}


def _prompt(texts: list[str], encoder: TextEncoder) -> NDArray[np.float32]:
    """The mean direction of a class's prompts, (d_j,)."""
    mean: NDArray[np.float32] = encoder.encode(texts).mean(axis=0)
    return mean / max(float(np.linalg.norm(mean)), 1e-6)


def _features(job: Job) -> Callable[[], Iterable[NDArray[Any]]]:
    """Pooled picture features of the training samples, (n, d_v), block by block."""
    run, settings = job.run, job.settings
    train = manifest_of(run).split("train")
    if settings.net.mode == "frozen":
        plain = run.read(PLAIN_FEATURES)
        return lambda: chosen_rows(plain, train)
    shards = image_shards(job.folder / SHARDS[1], len(train), run, key=["joint", job.stage.settings(run)])
    with job.bar("pictures in the joint space", shards.rows(job.ranks)) as step:
        embed_images(job, shards, ImageFeatures(ImageEncoder(run, with_images), "train", step=step))
    return shards.blocks
