"""What finished rows are measured by: accuracy and open-set figures by test set, and what each part costs.

The test sets are the source's own test split, and a second one where ``data.test`` names it. Both are one split of the
manifest, so that every stage scores them at once; here they are told apart by the source of their rows. A metric of the
second one is called ``top1 on FOLDER/NAME``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from capro.bench.grids import GridRow
from capro.bench.summary import ON, csv_text, markdown_table
from capro.config import Settings
from capro.data.labels import known_labels
from capro.data.manifest import manifest_of
from capro.data.readers import find
from capro.errors import DataError
from capro.models.backbones import cost
from capro.models.text_encoders import load_text_encoder
from capro.pipeline.artefacts import MODELS, SCORES, TEST_SCORES, VAL_SCORES
from capro.pipeline.run import Run
from capro.results import metrics, open_set
from capro.stages import PLAN
from capro.train.setup import new_heads, pretrained, scores_of, training_set

Rows = NDArray[np.int64]
Curves = dict[str, open_set.Curve]  # by what stands behind a metric's name, or by row


def rows_by_test_set(run: Run) -> dict[str, Rows]:
    """Rows of the test split by what stands behind a metric's name: nothing, or `` on FOLDER/NAME``.

    A single test set has plain names, wherever it is from.
    """
    data, manifest = run.settings.data, manifest_of(run)
    test = manifest.split("test")
    if data.source is None or data.test is None:
        return {"": np.arange(len(test))}
    first = len(find(data, source=data.source))  # sources of data.test come after these (stages/scan.py)
    added = manifest.samples["source"].to_numpy()[test] >= first
    if added.all() or not added.any():
        return {"": np.arange(len(test))}
    name = "/".join(PurePosixPath(data.test.removeprefix("hub:")).parts[-2:])
    return {"": np.flatnonzero(~added), ON + name: np.flatnonzero(added)}


def figures_by_test_set(run: Run, baseline: str | None) -> dict[str, float]:
    """Figures of a finished row, of its own test split first.

    Args:
        run: Of the row.
        baseline: Its name; None for the pipeline.
    """
    manifest, training = manifest_of(run), training_set(run)
    stored = SCORES["capro"] if baseline is None else TEST_SCORES.of(f"baselines/{baseline}")
    scores = np.array(run.read(stored))
    y = known_labels(manifest, manifest.split("test"), training.classes)
    figures: dict[str, float] = {}
    for name, rows in rows_by_test_set(run).items():
        if y.ndim == 1 and (y[rows] < 0).all():
            raise DataError(
                f"no test sample{name} has a class of the training data", hint="check the labels of data.test"
            )
        figures |= {
            f"{metric}{name}": value for metric, value in metrics.headline(scores[rows], y[rows]).items()
        }
    return figures


# --- open set -------------------------------------------------------------------------------------


def open_figures(run: Run, row: GridRow) -> tuple[dict[str, float], Curves]:
    """C-F1 of a finished row on each test set: mean, best, at the held-out threshold; and the curves."""
    manifest, training = manifest_of(run), training_set(run)
    splits = {name: manifest.split(name) for name in ("test", "val")}
    labels = {name: known_labels(manifest, at, training.classes) for name, at in splits.items()}
    if row.baseline is not None:
        stored = {"test": TEST_SCORES, "val": VAL_SCORES}
        of = f"baselines/{row.baseline}"
        scores = {name: np.array(run.read(artefact.of(of))) for name, artefact in stored.items()}
    else:
        scores = {
            "test": np.array(run.read(SCORES["capro"])),
            "val": scores_of(run, training, MODELS["capro"], splits["val"]),
        }
    chosen = open_set.held_out_threshold(scores["val"], labels["val"])
    figures: dict[str, float] = {}
    curves: Curves = {}
    for name, rows in rows_by_test_set(run).items():
        curve = curves[name] = open_set.curve(scores["test"][rows], labels["test"][rows])
        held = curve.at(chosen)
        own = {
            "C-F1 mean": curve.mean,
            "C-F1 best": curve.best.f1,
            "C-F1 held-out": held.f1,
            "C-P held-out": held.precision,
            "C-R held-out": held.recall,
            "threshold best": curve.best.threshold,
        }
        figures |= {f"{metric}{name}": value for metric, value in own.items()}
    return figures | {"threshold held-out": chosen}, curves


def mean_curves(curves: Mapping[str, Sequence[Curves]]) -> dict[str, Curves]:
    """The mean over seeds at each threshold, by test set and then by row; curves are given by row and seed."""
    means: dict[str, Curves] = {}
    for label, of_seeds in curves.items():
        for name in of_seeds[0] if of_seeds else ():
            by_threshold = zip(*(each[name] for each in of_seeds), strict=True)
            mean = open_set.Curve(
                open_set.Point(*np.mean(points, axis=0).tolist()) for points in by_threshold
            )
            means.setdefault(name, {})[label] = mean
    return means


def curves_csv(means: Mapping[str, Curves]) -> str:
    """Row (and test set), threshold, C-P, C-R, C-F1: what the figures draw, and more."""
    rows = [
        [f"{label}{name}", *(f"{value:.6g}" for value in point)]
        for name, curves in means.items()
        for label, curve in curves.items()
        for point in curve
    ]
    return csv_text(["row", "threshold", "C-P", "C-R", "C-F1"], rows)


# --- cost -----------------------------------------------------------------------------------------


class Part(NamedTuple):
    """One line of the table; None where it has no meaning."""

    name: str
    parameters: int | None = None
    gflops: float | None = None
    seconds: float | None = None
    epochs: int | None = None


def costs_of(run: Run, providers: Mapping[str, Run]) -> list[Part]:
    """Encoders, stages, and step 2 by reference provider.

    Args:
        run: A finished run with the paper's provider.
        providers: Finished runs by name of their reference provider.
    """
    settings = run.settings
    parts = encoder_costs(settings)
    dim = pretrained(settings).dim
    training = training_set(run)
    heads = new_heads(settings, dim, training, name="cost").eval()
    paid = cost(heads, torch.zeros(1, dim))
    parts.append(Part("heads", paid.parameters, paid.gflops))
    for stage in PLAN:
        parts += _timed(f"{stage.name}: {stage.summary}", run.finished(stage.name))
    for name, other in providers.items():
        parts += _timed(f"step 2 with {name}", other.finished("train"))
    return parts


def encoder_costs(settings: Settings) -> list[Part]:
    """The encoders of image and text; GFLOPs of one input, a multiply-add counts once."""
    backbone = pretrained(settings).eval()
    size = settings.views.size or backbone.size
    image = cost(backbone, torch.zeros(1, 3, size, size))
    name, tokens = settings.embed.text_encoder, settings.embed.max_tokens
    text = load_text_encoder(name, max_tokens=tokens)
    return [
        Part(f"image encoder {settings.net.backbone}, {size} px", image.parameters, image.gflops),
        Part(f"text encoder {name}, {tokens} tokens", text.parameters, text.gflops(tokens)),
    ]


def _timed(name: str, done: Mapping[str, Any] | None) -> list[Part]:
    """The line of a stage that has finished."""
    if done is None:
        return []
    return [Part(name, seconds=done["seconds"], epochs=done["result"].get("epochs"))]


def cost_markdown(title: str, parts: Sequence[Part], samples: int, command: str) -> str:
    """The table for people."""
    rows = [
        [
            part.name,
            "" if part.parameters is None else f"{part.parameters / 1e6:.1f} M",
            "" if part.gflops is None else f"{part.gflops:.3g}",
            "" if part.seconds is None else f"{part.seconds:.1f}",
            "" if not part.epochs or part.seconds is None else f"{part.seconds / part.epochs:.2f}",
        ]
        for part in parts
    ]
    head = ["part", "parameters", "GFLOPs", "seconds", "seconds an epoch"]
    lines = [
        *markdown_table(title, head, rows),
        f"GFLOPs are multiply-adds of one input. Seconds are those of the stage when it ran, on "
        f"{samples:,} training samples with {torch.get_num_threads()} threads; other work on the "
        "machine slows them. The paper: R50 25 M and 3.8, MiniLM 22 M and 4.7, XLNet 110 M and 29, "
        "GPT-Neo 1.3 B and 3400.",
    ]
    return "\n".join([*lines, *([f"`{command}`"] if command else [])]) + "\n"
