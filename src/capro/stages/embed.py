"""Text features s of the samples and s^c of the classes, visual features v, and the joint space of CLIP-like models."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capro.data.manifest import manifest_of
from capro.models.backbones import Backbone, load_backbone
from capro.models.classes import ClassSpec, class_prompts, class_text, classes_of, meant_sense, other_senses
from capro.models.nouns import ClassNouns
from capro.models.text_cleaning import training_fields, training_texts
from capro.models.text_encoders import TextEncoder, load_text_encoder
from capro.pipeline.artefacts import (
    CLASS_NAME_TEXTS,
    CLASS_TEXTS,
    FIELD_TEXTS,
    JOINT_PICTURES,
    JOINT_PROMPTS,
    JOINT_TEXTS,
    NAMED,
    OTHER_SENSES,
    PLAIN_FEATURES,
    STEP1,
    TEXTS,
    VISUAL,
    Artefact,
    read_array,
)
from capro.pipeline.checksums import fingerprint, seed_for
from capro.pipeline.engine import Portable
from capro.pipeline.progress import Step
from capro.pipeline.ranks import ranks_of
from capro.pipeline.run import Run
from capro.pipeline.shards import Shards, chosen_rows, planned, sharded, write_rows
from capro.pipeline.stage import Job
from capro.stages.features import ImageEncoder, ImageFeatures, image_shards, say_encoder, with_images
from capro.train.batches import Inputs
from capro.train.setup import cost_line, encoder_cost, image_inputs, load_net, new_net, training_set

SHARDS = ("text-shards", "image-shards")  # folders that go when the arrays are there


def _encoder(run: Run) -> TextEncoder:
    settings = run.settings.embed
    device = str(ranks_of(run.settings).accelerator.device)
    return load_text_encoder(settings.text_encoder, device=device, max_tokens=settings.max_tokens)


def _columns(run: Run) -> dict[str, list[str]]:
    """The texts of the training samples under "", and with the method plus each of their fields."""
    manifest = manifest_of(run)
    fields = training_fields(manifest) if run.settings.by_posterior else {}
    return {"": training_texts(manifest), **fields}


def work(job: Job) -> dict[str, Any]:
    source = DistinctTexts(job.run, _encoder, _columns)
    encoder = source.encoder
    cost = text_cost(encoder)
    job.watch.say(cost_line("text encoder", cost))
    encoded = embed_texts(job, source)
    figures = {"text_encoder": cost, **_write_visual(job)}
    write_texts(job, {"": TEXTS, **FIELD_TEXTS}, source, encoded)
    specs = classes_of(job.run)
    job.write(CLASS_TEXTS, encoder.encode([class_text(spec) for spec in specs]))
    if job.settings.by_posterior:
        fields = [name for name in source.columns if name]
        figures |= {"fields": fields, "sense_owners": _write_senses(job, specs, encoder)}
        job.write(NAMED, named_classes(job.run, specs, fields))
    for name in SHARDS:
        shutil.rmtree(job.folder / name, ignore_errors=True)
    return figures


def text_cost(encoder: TextEncoder) -> dict[str, Any]:
    """Name, parameters and multiply-adds of a text encoder, as stage.json keeps them."""
    return {
        "name": encoder.name,
        "parameters": encoder.parameters,
        "gflops": encoder.gflops(),
        "at": f"{encoder.max_tokens} tokens",
    }


@dataclass(frozen=True)
class DistinctTexts(Portable):
    """The texts of a run that are encoded, each once, and their encoder; loaded once in each process.

    Attributes:
        run: The run.
        load: Makes the encoder; a function of a module, as ``read``.
        read: Gives columns of texts by name.
    """

    run: Run
    load: Callable[[Run], TextEncoder]
    read: Callable[[Run], Mapping[str, list[str]]]

    @cached_property
    def encoder(self) -> TextEncoder:
        """On this process's device."""
        return self.load(self.run)

    @cached_property
    def columns(self) -> Mapping[str, list[str]]:
        """The texts of the samples, by name of the column."""
        return self.read(self.run)

    @cached_property
    def unique(self) -> list[str]:
        """Each text once, sorted by length: a shard's batches waste little on padding."""
        texts = {text for column in self.columns.values() for text in column}
        return sorted(texts, key=lambda text: (len(text), text))

    def __call__(self, begin: int, end: int, step: Step) -> NDArray[np.float32]:
        """Features of distinct texts, (n, d_t), begin to end."""
        size = self.run.settings.embed.batch_size
        return self.encoder.encode(self.unique[begin:end], batch_size=size, progress=step)


def embed_texts(job: Job, source: DistinctTexts) -> Shards:
    """Features of distinct texts, (n, d_t), in shards."""
    key = fingerprint([source.encoder.fingerprint, fingerprint(source.unique)])
    size = job.settings.embed.shard_size
    shards = planned(job.folder / SHARDS[0], len(source.unique), key=key, size=size)
    with job.bar("encoding texts", shards.count) as step:
        return sharded(shards, source, engine=job.engine, gpu=True, progress=step)


def write_texts(
    job: Job, artefacts: Mapping[str, Artefact[NDArray[Any]]], source: DistinctTexts, encoded: Shards
) -> None:
    """Text features in the order of the samples, from those of distinct texts; columns without an artefact stay out."""
    whole, width = encoded.folder.parent / "unique.npy", source.encoder.dim
    write_rows(whole, (len(source.unique), width), encoded.blocks())
    row_of = {text: row for row, text in enumerate(source.unique)}
    for name, texts in source.columns.items():
        if name in artefacts:
            rows = np.array([row_of[text] for text in texts], np.int64)
            write_rows(job.file(artefacts[name]), (len(texts), width), chosen_rows(read_array(whole), rows))


def _write_senses(job: Job, specs: list[ClassSpec], encoder: TextEncoder) -> list[int]:
    """Features of class names and of their other senses; returns the class of each sense."""
    job.write(CLASS_NAME_TEXTS, encoder.encode([spec.name.replace("_", " ") for spec in specs]))
    texts, owners = other_senses(specs)
    vectors = encoder.encode(texts) if texts else np.zeros((0, encoder.dim), np.float32)
    job.write(OTHER_SENSES, vectors)
    return owners


def class_nouns(specs: list[ClassSpec]) -> ClassNouns:
    """Finds the classes of a run in texts."""
    senses = map(meant_sense, specs)
    return ClassNouns([None if sense is None else sense.offset for sense in senses])


def named_classes(run: Run, specs: list[ClassSpec], fields: list[str]) -> NDArray[np.int64]:
    """The class that the nouns of each field name, (n, f); C for other things, -1 without a noun or without senses."""
    manifest = manifest_of(run)
    samples, nouns = manifest.samples.iloc[manifest.split("train")], class_nouns(specs)
    if not nouns.knows_a_class:
        return np.full((len(samples), len(fields)), -1, np.int64)
    columns = [nouns.answers(samples[name].tolist()) for name in fields]
    return np.stack(columns, axis=1) if columns else np.zeros((len(samples), 0), np.int64)


def _image_encoder(run: Run) -> tuple[Backbone, Inputs]:
    """Step 1's encoder, or a backbone by name, and the images of a run."""
    settings = run.settings
    if settings.embed.visual == "step1":
        net = new_net(run, training_set(run))
        load_net(run, STEP1, net)
        encoder = net.encoder
    else:
        torch.manual_seed(seed_for(0, "visual"))  # random weights are the same in all processes
        encoder = load_backbone(settings.embed.visual, image_size=settings.views.size)
    return encoder, image_inputs(run, encoder, seed=settings.seed)


def _write_visual(job: Job) -> dict[str, Any]:
    """Write features v of the training images: of step 1's encoder, or of a backbone by name, whose cost it returns."""
    run, settings, figures = job.run, job.settings, dict[str, Any]()
    train = manifest_of(run).split("train")
    if settings.embed.visual == "step1" and settings.net.mode == "frozen":
        plain = run.read(PLAIN_FEATURES)
        write_rows(job.file(VISUAL), (len(train), plain.shape[1]), chosen_rows(plain, train))
        return figures
    source = ImageEncoder(run, _image_encoder)
    encoder, _ = source.loaded
    size = settings.views.size or encoder.size
    if settings.embed.visual != "step1":
        figures["encoder"] = encoder_cost(encoder, size)
        say_encoder(job, encoder, figures["encoder"])
    key = [settings.embed.visual, size, run.finished("pretrain")]
    shards = _embed_training_images(job, source, "visual features", key)
    write_rows(job.file(VISUAL), (len(train), encoder.dim), shards.blocks())
    return figures


def _embed_training_images(job: Job, encoder: ImageEncoder, label: str, key: Any) -> Shards:
    """Features of the training images, (n, d_v), in shards; ``key`` decides their values."""
    count = len(manifest_of(job.run).split("train"))
    shards = image_shards(job.folder / SHARDS[1], count, job.run, key=key)
    with job.bar(label, count) as step:
        features = ImageFeatures(encoder, "train")
        return sharded(shards, features, engine=job.engine, gpu=True, progress=step)


def _tower(run: Run) -> TextEncoder:
    return load_text_encoder(run.settings.net.backbone, device=str(ranks_of(run.settings).accelerator.device))


def _joint_columns(run: Run) -> dict[str, list[str]]:
    return {"": [""], **training_fields(manifest_of(run))}  # there may be no text at all


def embed_jointly(job: Job) -> dict[str, Any]:
    source = DistinctTexts(job.run, _tower, _joint_columns)
    encoder = source.encoder
    cost = text_cost(encoder)
    job.watch.say(cost_line("text tower", cost))
    encoded = embed_texts(job, source)
    train, features = manifest_of(job.run).split("train"), _pooled_features(job)
    write_texts(job, JOINT_TEXTS, source, encoded)
    write_rows(job.file(JOINT_PICTURES), (len(train), encoder.dim), map(encoder.project, features))
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


def _pooled_features(job: Job) -> Iterator[NDArray[Any]]:
    """Pooled picture features of the training samples, (n, d_v), block by block."""
    run = job.run
    if job.settings.net.mode == "frozen":
        return chosen_rows(run.read(PLAIN_FEATURES), manifest_of(run).split("train"))
    key = ["joint", job.stage.settings(run)]
    encoder = ImageEncoder(run, with_images)
    return _embed_training_images(job, encoder, "pictures in the joint space", key).blocks()
