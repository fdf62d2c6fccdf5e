"""Text features s of the training samples, s^c of the classes, and visual features v."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capro.config import Settings
from capro.data.manifest import manifest_of
from capro.nets.backbones import load_backbone
from capro.run.artefacts import (
    CLASS_NAME_TEXTS,
    CLASS_TEXTS,
    FIELD_TEXTS,
    OTHER_SENSES,
    PLAIN_FEATURES,
    STEP1,
    TEXTS,
    VISUAL,
    Artefact,
    read_array,
)
from capro.run.directory import Run
from capro.run.fingerprints import fingerprint, seed_for
from capro.run.shards import Shards, chosen_rows, planned, sharded, write_rows
from capro.run.stage import Job, Stage
from capro.stages.features import embed_images, image_shards, say_encoder
from capro.text.classes import ClassSpec, class_text, classes_of, other_senses
from capro.text.cleaning import training_fields, training_texts
from capro.text.encoders import TextEncoder, load_text_encoder
from capro.train.batches import PLAIN
from capro.train.setup import cost_line, encoder_cost, image_inputs, load_net, new_net, training_set

SHARDS = ("text-shards", "image-shards")  # folders that go when the arrays are there


def _work(job: Job) -> dict[str, Any]:
    settings, ranks = job.settings.embed, job.ranks
    texts = training_texts(manifest_of(job.run))
    encoder = load_text_encoder(
        settings.text_encoder, device=str(ranks.accelerator.device), max_tokens=settings.max_tokens
    )
    cost = {
        "name": encoder.name,
        "parameters": encoder.parameters,
        "gflops": encoder.gflops(),
        "at": f"{encoder.max_tokens} tokens",
    }
    job.watch.say(cost_line("text encoder", cost))
    fields = training_fields(manifest_of(job.run)) if job.settings.method == "plus" else {}
    unique = distinct(texts, *fields.values())
    encoded = embed_texts(job, unique, encoder)
    visual, found = _visual(job)
    ranks.meet()
    if not ranks.main:
        return {}
    arrays = {TEXTS: texts} | {FIELD_TEXTS[name]: field for name, field in fields.items()}
    write_texts(job, arrays, unique, encoded, encoder.dim)
    specs = classes_of(job.run)
    job.write(CLASS_TEXTS, encoder.encode([class_text(spec) for spec in specs]))
    if job.settings.method == "plus":
        found |= {"fields": [*fields], "sense_owners": _write_senses(job, specs, encoder)}
    write_rows(job.file(VISUAL), visual.shape, visual.blocks())
    for name in SHARDS:
        shutil.rmtree(job.folder / name, ignore_errors=True)
    return {"text_encoder": cost, **found}


def distinct(*columns: Iterable[str]) -> list[str]:
    """Each text once, sorted by length."""
    return sorted({text for column in columns for text in column}, key=lambda text: (len(text), text))


def embed_texts(job: Job, unique: list[str], encoder: TextEncoder) -> Shards:
    """Features of texts that are sorted by length: a shard's batches waste little on padding."""
    settings = job.settings.embed
    key = fingerprint([encoder.fingerprint, fingerprint(unique)])
    shards = planned(job.folder / SHARDS[0], len(unique), key=key, size=settings.shard_size)
    with job.bar("encoding texts", shards.rows(job.ranks)) as step:
        return sharded(
            shards,
            lambda begin, end: encoder.encode(
                unique[begin:end], batch_size=settings.batch_size, progress=step
            ),
            team=job.ranks,
            progress=step,
        )


def write_texts(
    job: Job,
    arrays: Mapping[Artefact[NDArray[Any]], list[str]],
    unique: list[str],
    encoded: Shards,
    width: int,
) -> None:
    """Text features in the order of the samples, from those of distinct texts."""
    whole = encoded.folder.parent / "unique.npy"
    write_rows(whole, (len(unique), width), encoded.blocks())
    place = {text: number for number, text in enumerate(unique)}
    for artefact, texts in arrays.items():
        rows = np.array([place[text] for text in texts], np.int64)
        write_rows(job.file(artefact), (len(texts), width), chosen_rows(read_array(whole), rows))


def _write_senses(job: Job, specs: list[ClassSpec], encoder: TextEncoder) -> list[int]:
    """Features of class names and of their other senses; returns the class of each sense."""
    job.write(CLASS_NAME_TEXTS, encoder.encode([spec.name.replace("_", " ") for spec in specs]))
    texts, owners = other_senses(specs)
    vectors = encoder.encode(texts) if texts else np.zeros((0, encoder.dim), np.float32)
    job.write(OTHER_SENSES, vectors)
    return owners


@dataclass(frozen=True)
class _Rows:
    """An array to be written block by block."""

    shape: tuple[int, int]
    blocks: Callable[[], Iterable[NDArray[Any]]]


def _visual(job: Job) -> tuple[_Rows, dict[str, Any]]:
    """Features v of the training images: of step 1's encoder, or of a backbone by name."""
    run, settings, ranks = job.run, job.settings, job.ranks
    train, found = manifest_of(run).split("train"), dict[str, Any]()
    if settings.embed.visual == "step1" and settings.net.mode == "frozen":
        plain = run.read(PLAIN_FEATURES)
        return _Rows((len(train), plain.shape[1]), lambda: chosen_rows(plain, train)), found
    if settings.embed.visual == "step1":
        net = new_net(run, training_set(run))
        load_net(run, STEP1, net)
        encoder = net.encoder
    else:
        torch.manual_seed(seed_for(0, "visual"))  # random weights are the same on all ranks
        encoder = load_backbone(settings.embed.visual, image_size=settings.views.size)
    size = settings.views.size or encoder.size
    if settings.embed.visual != "step1":
        found["encoder"] = encoder_cost(encoder, size)
        say_encoder(job, encoder, found["encoder"])
    images = image_inputs(run, encoder, seed=settings.seed)
    key = [settings.embed.visual, size, run.finished("pretrain")]
    shards = image_shards(job.folder / SHARDS[1], len(train), run, key=key)
    with job.bar("visual features", shards.rows(ranks)) as step:
        embed_images(shards, images, encoder, train, settings, ranks, view=PLAIN, epoch=0, step=step)
    return _Rows((len(train), encoder.dim), shards.blocks), found


def _settings(run: Run) -> dict[str, Any]:
    settings = run.settings
    return {
        **({"fields": True} if settings.method == "plus" else {}),
        "embed": settings.embed.model_dump(exclude={"batch_size", "shard_size"}),
        "net": settings.net.model_dump(include={"mode"}),
        "views": settings.views.model_dump(include={"size"}),
    }


def _reads(settings: Settings) -> list[str]:
    encoder = "features" if settings.net.mode == "frozen" else "pretrain"
    return ["scan", "classes", *([encoder] if settings.embed.visual == "step1" else [])]


STAGE = Stage(
    "embed", _work, summary="text encoder: texts and classes", settings=_settings, reads=_reads, ranks="share"
)
