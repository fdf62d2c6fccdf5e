"""The classes with senses or definitions: from data.classes, from the source, else suggested."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from capro.data.labels import labels_of
from capro.data.manifest import manifest_of
from capro.errors import ConfigError
from capro.run.artefacts import CLASSES, CLASSES_DRAFT, PUBLISHED_CLASSES
from capro.run.directory import Run
from capro.run.progress import SILENT, Watch
from capro.run.stage import Job, Stage
from capro.text import classes as class_texts
from capro.text.classes import ClassSpec, classes_of
from capro.text.cleaning import training_texts
from capro.text.encoders import load_text_encoder
from capro.text.senses import Suggestion, rank_senses

SHOWN = 5  # names in a warning
EAGER = 0.8  # with a lower gamma the rule per class adds labels that it half believes


def suggest(run: Run, *, watch: Watch = SILENT) -> list[Suggestion]:
    """All noun senses of every label in the manifest, ranked by the class's own texts."""
    settings, manifest = run.settings.embed, manifest_of(run)
    texts: dict[str, list[str]] = {name: [] for name in manifest.label_names("train")}
    names = manifest.samples["labels"].iloc[manifest.split("train")]
    for text, labels in zip(training_texts(manifest), names, strict=True):
        for label in labels:
            texts[label].append(text)
    encoder = load_text_encoder(settings.text_encoder, max_tokens=settings.max_tokens)
    with watch.bar("ranking senses", None) as step:
        return rank_senses(texts, lambda batch: encoder.encode(batch, progress=step))


def _given(run: Run) -> list[ClassSpec]:
    """The classes of data.classes."""
    path = run.settings.data.classes
    return class_texts.load_classes(Path(path)) if path else []


def _work(job: Job) -> None:
    specs = _given(job.run)
    if not specs and job.settings.data.unlabelled:
        raise ConfigError(
            "data.unlabelled: no label names the classes", hint="list them: --set data.classes=classes.yaml"
        )
    if not specs:
        suggestions: list[Suggestion] = []
        specs = [ClassSpec(**hint) for hint in job.run.find(PUBLISHED_CLASSES) or []]
        if not specs:
            suggestions = suggest(job.run, watch=job.watch)
            specs = [class_texts.draft(suggestion) for suggestion in suggestions]
        class_texts.save_classes(job.file(CLASSES_DRAFT), specs, suggestions=suggestions)
    job.write(CLASSES, [asdict(spec) for spec in specs])


def _settings(run: Run) -> dict[str, Any]:
    given, embed = _given(run), run.settings.embed
    known = bool(given) or bool(run.find(PUBLISHED_CLASSES))
    return {
        "classes": [asdict(spec) for spec in given] or None,
        "encoder": None if known else [embed.text_encoder, embed.max_tokens],
    }


def _check(run: Run) -> list[str]:
    """Refuse labels outside the list; warn of classes without samples and of senses to look at."""
    settings, manifest, specs = run.settings, manifest_of(run), classes_of(run)
    if settings.data.unlabelled and settings.method != "plus":
        raise ConfigError("data.unlabelled: CAPro as published needs labels", hint="--set method=plus")
    names = [spec.name for spec in specs]
    labels_of(manifest, manifest.split("train"), names)
    found = []
    empty = sorted(set(names) - set(manifest.label_names("train")))
    if empty and not settings.data.unlabelled:
        found.append(f"{len(empty)} classes have no training sample: {', '.join(empty[:SHOWN])}")
    if manifest.task == "multi" and settings.train.gamma < EAGER:
        found.append(
            f"samples carry several labels, and train.gamma {settings.train.gamma} changes them eagerly: "
            "the paper has 0.9 here (--set train.gamma=0.9; --preset small-multi for frozen features)"
        )
    if not settings.data.classes and not run.find(PUBLISHED_CLASSES):
        unsure = [spec.name for spec in specs if spec.ambiguous or not spec.sense]
        found.append(
            f"the senses of the classes were chosen by the texts; check {len(unsure)} of {len(specs)} "
            f"({', '.join(unsure[:SHOWN])}): edit a copy of {run.file(CLASSES_DRAFT)}, then "
            "--set data.classes=COPY"
        )
    return found


STAGE = Stage(
    "classes",
    _work,
    summary="what each class means",
    settings=_settings,
    reads=["scan"],
    implicit=True,
    command="classes show",
    check=_check,
)
