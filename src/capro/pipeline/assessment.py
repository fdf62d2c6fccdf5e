"""Where a run helped and where it hurt: `capro evaluate`, as plain data.

Everything is computed from the stored scores; only `--on` reads images, into a folder of its own
(``on/NAME/``), so that the run's stages stay as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from capro import assemble, progress
from capro.assemble import classes_of, manifest_of
from capro.data import readers as data_readers
from capro.data.manifest import Manifest
from capro.data.pixels import Pixels
from capro.data.readers.table import TableReader, parquet_splits
from capro.data.scan import scan as scan_rows
from capro.errors import DataError
from capro.evaluate import metrics, openset
from capro.evaluate.truth import label_accuracy, load_truth, membership, noise_detection, purity
from capro.pipeline.base import stage
from capro.pipeline.ingest import embed_images, image_shards, listing_fingerprint
from capro.pipeline.results import MODELS, evaluate, known_labels, scores_of
from capro.pipeline.threshold import threshold
from capro.runs import Run, fingerprint, read_array, write_array, write_json
from capro.train.batches import PLAIN, FeatureInputs, ImageInputs, Inputs

PAIRS = 10
SHOWN = 5
Scores = NDArray[np.float32]


@dataclass(frozen=True)
class Evaluated:
    """Scores of some samples by both models, and what is right."""

    name: str
    folder: Path  # where details go
    labels: NDArray[np.int64]  # (n,) with -1 for no known class, or (n, C)
    names: list[str]  # the label of each sample as the source has it, for open classes
    scores: Mapping[str, Scores]  # by method


def assess(
    run: Run,
    *,
    on: str | None = None,
    truth: Path | None = None,
    open_set: bool = False,
    novel: Path | None = None,
    bar: progress.Bar = progress.silent,
) -> dict[str, Any]:
    """Everything that `capro evaluate` tells, as plain data; also kept as ``details.json``.

    Args:
        run: A finished run.
        on: Another source to evaluate on; the run's test split if unset.
        truth: Table with true labels of the training samples.
        open_set: Add open-set recognition: samples of no known class are the open class.
        novel: Class list; only these names may be open.
        bar: Progress.
    """
    if on is None and truth is not None and not len(manifest_of(run).split("test")):
        return _only_truth(run, truth)
    if open_set and manifest_of(run).task == "multi":
        raise DataError(
            "open-set recognition is measured with one label per sample, and this run has several",
            hint="leave --open-set out; `capro predict --open-set` rejects images of no class here too",
        )
    found = _own(run) if on is None else _other(run, on, bar)
    told: dict[str, Any] = {"on": found.name, "samples": len(found.labels)}
    specs = classes_of(run)
    classes = [spec.name for spec in specs]
    multi = found.labels.ndim == 2
    is_open = np.zeros(len(found.labels), dtype=bool) if multi else found.labels < 0
    told["task"] = "multi" if multi else "single"
    if is_open.any() and not open_set and on is not None:
        name = found.names[int(np.flatnonzero(is_open)[0])]
        raise DataError(
            f"{on}: {int(is_open.sum())} samples have labels that are no class of the run, "
            f"for example '{name}'",
            hint="add --open-set to count them as the open class, or mend the labels",
        )
    told["open"] = int(is_open.sum())
    if len(found.labels) > is_open.sum():
        labels = found.labels[~is_open]
        scores = {name: values[~is_open] for name, values in found.scores.items()}
        ambiguous = np.array([bool(spec.ambiguous) for spec in specs])
        told |= compare(scores, labels, classes, ambiguous)
    if open_set:
        told["open_set"] = _open_set(run, found, classes, novel, bar)
    if truth is not None:
        told["truth"] = on_truth(run, truth)
    plain: dict[str, Any] = jsonable(told)
    write_json(found.folder / "details.json", plain)
    return plain


def _only_truth(run: Run, truth: Path) -> dict[str, Any]:
    """Without a test split the truth of the training samples can still be measured on."""
    told = {"on": "no test split", "samples": 0, "open": 0, "truth": on_truth(run, truth)}
    plain: dict[str, Any] = jsonable(told)
    write_json(run.folder("evaluate") / "details.json", plain)
    return plain


# --- comparing two models -------------------------------------------------------------------------


def compare(
    scores: Mapping[str, Scores],
    y: NDArray[np.int64],
    classes: list[str],
    ambiguous: NDArray[np.bool_],
) -> dict[str, Any]:
    """Metrics, classes (made worse first), confusions, calibration; ambiguous classes apart.

    Args:
        scores: ``vanilla`` and ``capro``, (n, C) each.
        y: (n,) classes or (n, C) membership, no open sample.
        classes: Names, (C,).
        ambiguous: Whose names have several senses, (C,).
    """
    whole = {name: metrics.summary(values, y) for name, values in scores.items()}
    change = {key: whole["capro"][key] - whole["vanilla"][key] for key in whole["vanilla"]}
    rows = _class_rows(scores, y, classes, ambiguous)
    gains = [row["difference"] for row in rows if row["difference"] is not None]
    told = {
        "methods": whole,
        "difference": change,
        "classes": rows,
        "class_figure": "top1" if y.ndim == 1 else "AP",
        "worse": sum(gain < 0 for gain in gains),
        "equal": sum(gain == 0 for gain in gains),
        "better": sum(gain > 0 for gain in gains),
        "confusion": {name: _pairs(values, y, classes) for name, values in scores.items()},
        "calibration": {
            name: metrics.reliability(values, y).as_dict() for name, values in scores.items()
        },
    }
    if ambiguous.any():
        told["ambiguous"] = _apart(scores, y, ambiguous)
        told["unambiguous"] = _apart(scores, y, ~ambiguous)
    return told


def _class_rows(
    scores: Mapping[str, Scores], y: NDArray[np.int64], classes: list[str], ambiguous: Any
) -> list[dict[str, Any]]:
    """One row per class with test samples, the most harmed first."""
    sizes = np.bincount(y, minlength=len(classes)) if y.ndim == 1 else (y > 0).sum(axis=0)
    before, after = (metrics.per_class(scores[name], y) for name in ("vanilla", "capro"))
    rows: list[dict[str, Any]] = [
        {
            "class": name,
            "samples": int(sizes[c]),
            "vanilla": float(before[c]),
            "capro": float(after[c]),
            "difference": float(after[c] - before[c]),
            "ambiguous": bool(ambiguous[c]),
        }
        for c, name in enumerate(classes)
        if sizes[c]
    ]
    return sorted(rows, key=lambda row: (row["difference"], row["class"]))


def _pairs(scores: Scores, y: NDArray[np.int64], classes: list[str]) -> list[dict[str, Any]]:
    if y.ndim == 1:
        pairs = metrics.confusion_pairs(metrics.confusion(scores, y), top=PAIRS)
    else:
        matrix = metrics.confusion_multi(scores, y)
        pairs = metrics.confusion_pairs(matrix, (y > 0).sum(axis=0), top=PAIRS)
    return [
        {
            "true": classes[pair.true],
            "taken_for": classes[pair.taken],
            "count": pair.times,
            "share": pair.share,
        }
        for pair in pairs
    ]


def _apart(
    scores: Mapping[str, Scores], y: NDArray[np.int64], chosen: NDArray[np.bool_]
) -> dict[str, Any]:
    """The figures of some classes alone; for one label, of their samples against all classes."""
    told: dict[str, Any] = {"classes": int(chosen.sum())}
    for name, values in scores.items():
        if y.ndim == 2:
            own = metrics.decisions(metrics.top_decisions(values)[:, chosen], y[:, chosen])
            precision = metrics.average_precision(values[:, chosen], y[:, chosen])
            filled = precision[~np.isnan(precision)]
            told[name] = own | {"mAP": float(filled.mean()) if len(filled) else float("nan")}
            continue
        rows = chosen[y]
        told["samples"] = int(rows.sum())
        told[name] = {
            "top1": metrics.top_k_accuracy(values[rows], y[rows], 1),
            "top5": metrics.top_k_accuracy(values[rows], y[rows], 5),
        }
    return told


# --- open set -------------------------------------------------------------------------------------


def _open_set(
    run: Run, found: Evaluated, classes: list[str], novel: Path | None, bar: progress.Bar
) -> dict[str, Any]:
    is_open = found.labels < 0
    others = sorted({found.names[row] for row in np.flatnonzero(is_open)})
    if not others:
        raise DataError(
            f"{found.name}: every sample is of a known class, so there is no open class",
            hint="give data with other classes: --on DATA --open-set",
        )
    if novel is not None:
        listed = openset.read_class_list(novel, [*others, *classes])
        extra = sorted(set(others) - set(listed))
        if extra:
            raise DataError(
                f"{found.name}: label '{extra[0]}' is neither a class of the run nor in {novel}",
                hint="add it to the list of novel classes",
            )
    told: dict[str, Any] = {"known": len(classes), "novel": others, "methods": {}, "held_out": {}}
    for name, scores in found.scores.items():
        chosen = threshold(run, name, bar=bar)
        told["held_out"][name] = chosen
        told["methods"][name] = openset.curve(scores, found.labels).as_dict(chosen["threshold"])
    return told


# --- truth ----------------------------------------------------------------------------------------


def on_truth(run: Run, truth: Path) -> dict[str, Any]:
    """Anchor purity, label accuracy before and after, and how well noise was detected."""
    manifest, specs = manifest_of(run), classes_of(run)
    run.need("clean")
    training = assemble.training_set(run, manifest)
    member = membership(load_truth(truth, manifest), training.classes)
    before = training.labels.cpu().numpy()
    after = np.array(read_array(run.folder("clean") / "labels.npy"))
    out = training.task(run.settings.net.tau).out(torch.from_numpy(after)).numpy()
    frame = pd.read_parquet(run.folder("match") / "anchors.parquet")
    pure = purity(frame["row"].to_numpy(), frame["class_index"].to_numpy(), member)
    ambiguous = np.array([bool(spec.ambiguous) for spec in specs])
    return {
        "anchors": len(frame),
        "anchor_purity": _nanmean(pure),
        "anchor_purity_ambiguous": _nanmean(pure[ambiguous]),
        "web_label_accuracy": label_accuracy(before, member),
        "cleaned_label_accuracy": label_accuracy(after, member),
        "kept": float(1 - out.mean()),
        "noise_detection": noise_detection(before, after, member),
        "purity_by_class": dict(zip(training.classes, map(float, pure), strict=True)),
    }


def _nanmean(values: NDArray[np.float64]) -> float:
    filled = values[~np.isnan(values)]
    return float(filled.mean()) if len(filled) else float("nan")


# --- what is evaluated ----------------------------------------------------------------------------


def _own(run: Run) -> Evaluated:
    """The run's test split, from the stored scores."""
    if not evaluate(run):
        raise DataError(
            f"{run.path}: the data has no test split",
            hint="give another source with --on, or scan with --test",
        )
    manifest = manifest_of(run)
    test = manifest.split("test")
    names = [spec.name for spec in classes_of(run)]
    folder = run.folder("evaluate")
    return Evaluated(
        "test split",
        folder,
        known_labels(manifest, test, names),
        _names(manifest),
        {name: np.array(read_array(folder / f"{name}.npy")) for name in MODELS},
    )


def _names(manifest: Manifest, split: str = "test") -> list[str]:
    rows = manifest.samples["labels"].iloc[manifest.split(split)]
    return [row[0] if row else "" for row in rows]


def _other(run: Run, source: str, bar: progress.Bar) -> Evaluated:
    """Another source: scanned and scored in ``on/NAME/``, exactly its samples."""
    for made in MODELS.values():
        run.need(made)
    word = re.sub(r"[^\w.-]+", "-", Path(source.removeprefix("hub:")).name) or "data"
    base = f"on/{word}-{fingerprint(str(source))[:6]}"
    sources = readers_to_evaluate(run, source)

    def scan_work(folder: Path) -> None:
        counts = [reader.count() for reader in sources]
        total = None if None in counts else sum(count or 0 for count in counts)
        with bar("reading images", total) as step:
            scan_rows(sources, folder, run.settings.scan, progress=step)

    columns = run.settings.data.model_dump(exclude={"classes", "source", "test"})
    decides = {
        "data": columns,
        "scan": run.settings.scan.model_dump(exclude={"workers"}),
        "source": source,
        "listing": listing_fingerprint(sources),
    }
    stage(run, f"{base}/scan", scan_work, settings=decides)
    manifest = Manifest.load(run.folder(f"{base}/scan") / "manifest.parquet")
    if manifest.task != manifest_of(run).task:
        raise DataError(
            f"{source}: holds {_kind(manifest)}, the run {_kind(manifest_of(run))}",
            hint="give data of the same kind, or set data.label_separator",
        )
    training = assemble.training_set(run, manifest_of(run))
    everyone = np.arange(len(manifest.samples))

    def score_work(folder: Path) -> None:
        inputs = _inputs(run, manifest, f"{base}/features", [run.need(f"{base}/scan")], bar)
        for name, made in MODELS.items():
            model = run.folder(made) / "model.safetensors"
            scores = scores_of(run, manifest, training, model, everyone, inputs)
            write_array(folder / f"{name}.npy", scores)

    used = [f"{base}/scan", "classes", *MODELS.values()]
    stage(run, f"{base}/scores", score_work, settings={}, inputs=used)
    folder = run.folder(f"{base}/scores")
    return Evaluated(
        source,
        folder.parent,
        known_labels(manifest, everyone, training.classes),
        _names(manifest),
        {name: np.array(read_array(folder / f"{name}.npy")) for name in MODELS},
    )


def readers_to_evaluate(run: Run, source: str) -> list[data_readers.Reader]:
    """Readers of a source to evaluate on: of its test part where it names one, else of all of it."""
    settings = run.settings.data.model_copy(
        # the source stays: ImageNet takes its class names from the WebVision tree of the run
        update={"test": None, "format": "auto", "split_column": None}
    )
    path = Path(source)
    if path.is_dir():
        if (path / "train").is_dir() and (path / "test").is_dir():
            return data_readers.find(settings, source=str(path / "test"), split="test")
        shards = parquet_splits(path)
        if "test" in shards:
            return [TableReader(shards["test"], settings, "test")]
    return data_readers.find(settings, source=source, split="test")


def _kind(manifest: Manifest) -> str:
    return "one label per sample" if manifest.task == "single" else "several labels per sample"


def _inputs(run: Run, manifest: Manifest, name: str, key: list[str], bar: progress.Bar) -> Inputs:
    """Network input of another manifest: images, or in frozen mode features computed here."""
    settings = run.settings
    backbone = assemble.pretrained(settings)
    size = settings.views.size or backbone.size
    pixels = Pixels(manifest, settings.scan, min_side=2 * size)
    images = ImageInputs(pixels, backbone, settings.views, seed=settings.seed)
    if settings.net.mode == "full":
        return images
    rows = np.arange(len(manifest.samples))
    folder = run.folder(name)
    shards = image_shards(folder, len(rows), run, key=[*key, settings.net.model_dump(), size])
    with bar("features", len(rows)) as step:
        embed_images(shards, images, backbone, rows, run, view=PLAIN, epoch=0, step=step)
    plain = shards.whole()
    shards.drop()
    folder.rmdir()
    nobody = np.zeros((1, 0, plain.shape[1]), dtype=np.float32)
    return FeatureInputs(plain, nobody, nobody, np.full(len(rows), -1), seed=settings.seed)


def jsonable(value: Any) -> Any:
    """Plain data for JSON: figures that do not exist (nan) become None."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
