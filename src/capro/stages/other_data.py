"""Another source to evaluate on: scanned and scored in ``on/NAME/``, so that the run's stages stay."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from capro.config import Settings
from capro.data.labels import known_labels
from capro.data.manifest import Manifest, manifest_of
from capro.data.pixels import Pixels
from capro.data.readers import find_to_evaluate
from capro.data.readers.base import Reader
from capro.errors import DataError
from capro.models.classes import classes_of
from capro.pipeline.artefacts import DETAILS, MANIFEST, MODELS, SCORES, Artefact
from capro.pipeline.checksums import fingerprint
from capro.pipeline.progress import Watch
from capro.pipeline.run import Run
from capro.pipeline.shards import sharded
from capro.pipeline.stage import Job, Stage, perform
from capro.results.comparison import Evaluated
from capro.stages.features import ImageEncoder, ImageFeatures, image_shards
from capro.stages.scan import Sources, limit_settings, reading_settings, scan_into
from capro.train.batches import FeatureInputs, ImageInputs, Inputs
from capro.train.setup import pretrained, scores_of, training_set


def folder_of(source: str) -> str:
    """Where another source's stages are, below the run directory."""
    name = re.sub(r"[^\w.-]+", "-", Path(source.removeprefix("hub:")).name) or "data"
    return f"on/{name}-{fingerprint(source)[:6]}"


def details_of(source: str) -> Artefact[Any]:
    """The file with the figures of another source."""
    return DETAILS.of(folder_of(source))


def readers_to_evaluate(run: Run, source: str) -> list[Reader]:
    """Readers of a source to evaluate on: of its test part where it names one, else of all of it."""
    # the run's source stays: ImageNet takes its class names from the WebVision tree of the run
    changed = {"test": None, "format": "auto", "split_column": None}
    return find_to_evaluate(run.settings.data.model_copy(update=changed), source)


def _class_names(run: Run) -> list[str]:
    return [spec.name for spec in classes_of(run)]


def _scan(source: str) -> Stage:
    def settings(run: Run) -> dict[str, Any]:
        return {
            "data": reading_settings(run.settings.data, leave_out=("source", "test")),
            "scan": limit_settings(run.settings.scan),
            "source": source,
            **({"classes": _class_names(run)} if run.settings.data.join_labels else {}),
        }

    def work(job: Job) -> None:
        scan_into(job, classes=_class_names(job.run))

    def sources(run: Run) -> Sources:
        return Sources(readers_to_evaluate(run, source))

    return Stage(f"{folder_of(source)}/scan", work, settings=settings, sources=sources)


def _scores(source: str, manifest: Manifest) -> Stage:
    base = folder_of(source)

    def work(job: Job) -> None:
        training = training_set(job.run)
        inputs = _inputs(job, manifest, job.run.identity(f"{base}/scan"))
        everyone = np.arange(len(manifest.samples))
        for name, model in MODELS.items():
            job.write(SCORES[name], scores_of(job.run, training, model, everyone, inputs))

    reads = [f"{base}/scan", "classes", *(model.stage for model in MODELS.values())]
    return Stage(f"{base}/scores", work, reads=reads)


def score_other(run: Run, source: str, watch: Watch, *, reading: Settings | None = None) -> Evaluated:
    """Scores of exactly the samples of another source, which may be read by settings of its own."""
    scan = _scan(source)
    perform(run.with_settings(reading or run.settings), scan, watch=watch)
    manifest = run.read_with(MANIFEST.of(scan.name), Manifest.load)
    if manifest.task != manifest_of(run).task:
        raise DataError(
            f"{source}: holds {_kind(manifest)}, the run {_kind(manifest_of(run))}",
            hint="give data of the same kind, or set data.label_separator",
        )
    scored = _scores(source, manifest)
    perform(run, scored, watch=watch)
    names = [row[0] if row else "" for row in manifest.samples["labels"]]
    everyone = np.arange(len(manifest.samples))
    return Evaluated(
        source,
        known_labels(manifest, everyone, training_set(run).classes),
        names,
        {name: np.array(run.read(scores.of(scored.name))) for name, scores in SCORES.items()},
    )


def _kind(manifest: Manifest) -> str:
    return "one label per sample" if manifest.task == "single" else "several labels per sample"


def _inputs(job: Job, manifest: Manifest, key: str) -> Inputs:
    """Network input of another manifest: images, or in frozen mode features computed here."""
    settings = job.settings
    backbone = pretrained(settings)
    size = settings.views.size or backbone.size
    pixels = Pixels(manifest, settings.scan, min_side=2 * size)
    images = ImageInputs(pixels, backbone, settings.views, seed=settings.seed)
    if settings.net.mode == "full":
        return images
    rows = np.arange(len(manifest.samples))
    decides = [key, settings.net.model_dump(exclude={"runtime"}), size]
    shards = image_shards(job.folder / "features", len(rows), job.run, key=decides)
    with job.bar("features", len(rows)) as step:
        encoder = ImageEncoder(job.run, lambda _: (backbone, images))
        sharded(shards, ImageFeatures(encoder), progress=step)
    plain = shards.whole()
    nobody = np.zeros((1, 0, plain.shape[1]), dtype=np.float32)
    return FeatureInputs(plain, nobody, nobody, np.full(len(rows), -1), seed=settings.seed)
