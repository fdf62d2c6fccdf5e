"""The classes with senses or definitions: from data.classes, from the source, else suggested."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from capro.data.labels import labels_of
from capro.data.manifest import Manifest, manifest_of
from capro.data.summary import FEWEST_TEXTS
from capro.errors import ConfigError, DataError
from capro.models import classes as class_texts
from capro.models.classes import (
    ClassSpec,
    class_file,
    classes_of,
    given_ambiguous,
    given_classes,
    has_meaning,
)
from capro.models.folders import has_text_tower
from capro.models.senses import Suggestion, rank_senses
from capro.models.text_cleaning import training_texts
from capro.models.text_encoders import load_text_encoder
from capro.pipeline.artefacts import CLASSES, CLASSES_DRAFT, PUBLISHED_CLASSES, SUMMARY
from capro.pipeline.progress import SILENT, Watch
from capro.pipeline.run import Run
from capro.pipeline.stage import Job
from capro.wording import many, some

EAGER = 0.8  # with a lower gamma the rule per class adds labels that it half believes


def suggest(run: Run, *, watch: Watch = SILENT) -> list[Suggestion]:
    """All noun senses of every label in the manifest, ranked by the class's own texts."""
    settings, manifest = run.settings.embed, manifest_of(run)
    texts = _by_class(manifest, training_texts(manifest))
    encoder = load_text_encoder(settings.text_encoder, max_tokens=settings.max_tokens)
    with watch.bar("ranking senses", None) as step:
        return rank_senses(texts, lambda batch: encoder.encode(batch, progress=step))


def _by_class(manifest: Manifest, texts: list[str]) -> dict[str, list[str]]:
    """The texts of the training samples of each label; empty ones are left out."""
    texts_of: dict[str, list[str]] = {name: [] for name in manifest.label_names("train")}
    names = manifest.samples["labels"].iloc[manifest.split("train")]
    for text, labels in zip(texts, names, strict=True):
        for label in labels if text else ():
            texts_of[label].append(text)
    return texts_of


def work(job: Job) -> dict[str, Any]:
    specs, manifest = given_classes(job.run), manifest_of(job.run)
    if not specs and job.settings.data.unlabelled:
        raise ConfigError(
            "data.unlabelled: without labels the classes are not known",
            hint="list them: --set data.classes=classes.yaml",
        )
    if not specs:
        suggestions: list[Suggestion] = []
        specs = [ClassSpec(**hint) for hint in job.run.find(PUBLISHED_CLASSES) or []]
        if not specs:
            suggestions = suggest(job.run, watch=job.watch)
            specs = [class_texts.draft(suggestion) for suggestion in suggestions]
        class_texts.save_classes(job.file(CLASSES_DRAFT), specs, suggestions=suggestions)
    if names := given_ambiguous(job.run):
        specs = class_texts.marked_ambiguous(specs, names)
    job.write(CLASSES, [asdict(spec) for spec in specs])
    texts = training_texts(manifest)
    by_class = {name: len(own) for name, own in _by_class(manifest, texts).items()}
    return {"texts": {"samples": sum(map(bool, texts)), "by_class": by_class}}


def check(run: Run) -> list[str]:
    """Refuse labels outside the list, and data without texts; warn of what decides badly."""
    settings, manifest, specs = run.settings, manifest_of(run), classes_of(run)
    if settings.data.unlabelled and settings.method != "plus":
        raise ConfigError("data.unlabelled: the method paper needs labels", hint="--set method=plus")
    names = [spec.name for spec in specs]
    labels_of(manifest, manifest.split("train"), names)
    warnings = []
    empty = sorted(set(names) - set(manifest.label_names("train")))
    if empty and not settings.data.unlabelled:
        warnings.append(f"{many(len(empty), 'class', 'classes')} without any training sample: {some(empty)}")
    if manifest.task == "multi" and settings.train.gamma < EAGER:
        warnings.append(
            f"samples carry several labels, and train.gamma {settings.train.gamma} changes many of them: "
            "the paper has 0.9 here (--set train.gamma=0.9; or --preset small-multi, which is for frozen mode)"
        )
    texts = run.result("classes")["texts"]  # how many samples have one, in all and by class
    count = texts["samples"]
    if count < FEWEST_TEXTS * len(manifest.split("train")):
        _refuse_without_texts(run, count)
        warnings.append(
            f"{_have_text(run, count)}: labels and pictures decide, and the anchors that have none are the most "
            "typical pictures of their class"
        )
    if count:
        warnings += _meaning_problems(run, specs, texts["by_class"])
    elif not settings.data.classes and not run.find(PUBLISHED_CLASSES):
        warnings.append(
            "there are no texts, so the senses of the classes were not chosen by texts, and have no effect"
        )
    return warnings


def _have_text(run: Run, count: int) -> str:
    total = many(len(manifest_of(run).split("train")), "training sample")
    return (
        f"{count:,} of {total} have a text"
        if count > 1
        else f"{'one' if count else 'none'} of {total} has a text"
    )


def _refuse_without_texts(run: Run, count: int) -> None:
    """Stop where nearly no training sample has a text, unless that is meant."""
    data, what = run.settings.data, f"{_have_text(run, count)} that can be used"
    unused = run.read(SUMMARY).get("columns", {}).get("not_read", [])
    columns = f"; columns that were not read: {some(unused, 8)}" if unused else ""
    name = "name the column with texts: --text-column, --description-column or --tags-column"
    if data.unlabelled and not has_text_tower(run.settings.net.backbone):
        raise DataError(f"{what}, and data.unlabelled leaves no labels either{columns}", hint=name)
    if not data.without_texts:
        raise DataError(
            f"{what}{columns}",
            hint=f"{name}; to continue with labels and pictures alone, --set data.without_texts=true",
        )


def _meaning_problems(run: Run, specs: list[ClassSpec], texts: dict[str, int]) -> list[str]:
    """Classes that their texts or their meaning cannot describe."""
    warnings = []
    silent = [name for name, count in texts.items() if not count]
    if silent:
        warnings.append(
            f"no sample of {some(silent)} has a text: anchors there are chosen by the texts of similar pictures, or "
            "are the most typical pictures of their class"
        )
    suggested = not run.settings.data.classes and not run.find(PUBLISHED_CLASSES)
    edit = f"edit a copy of {run.file(CLASSES_DRAFT)}, then --set data.classes=COPY"
    ambiguous = [spec.name for spec in specs if spec.ambiguous]
    if suggested and ambiguous:
        warnings.append(
            "the senses of the classes were chosen by the texts; check "
            f"{len(ambiguous)} of {len(specs)} with several meanings ({some(ambiguous)}): {edit}"
        )
    elif suggested:
        warnings.append(f"the senses of the classes were chosen by the texts: to change one, {edit}")
    bare = [spec.name for spec in specs if not has_meaning(spec)]
    if bare:
        given = class_file(run)
        how = f"write a definition in {given}" if given else f"to write a definition, {edit}"
        warnings.append(
            f"{many(len(bare), 'class', 'classes')} with neither a sense nor a definition, so texts are "
            f"compared with the bare name: {some(bare)}; {how}"
        )
    return warnings
