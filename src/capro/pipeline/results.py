"""Figures of a finished run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capro import assemble
from capro.assemble import manifest_of
from capro.data.manifest import Manifest
from capro.evaluate import metrics
from capro.evaluate.openset import OPEN
from capro.evaluate.truth import label_accuracy, load_truth, membership
from capro.pipeline.base import stage
from capro.runs import (
    Run,
    read_array,
    write_array,
)
from capro.train.batches import Inputs, plain_batches

MODELS = {"vanilla": "pretrain", "capro": "finetune"}  # method: the stage with its weights


def evaluate(run: Run) -> dict[str, dict[str, float]]:
    """Vanilla and CAPro on exactly the test samples; empty where there is no test split.

    Test samples of one label that is no class of the run are scored but have no right answer: they
    are for open-set recognition, and do not count here.
    """
    manifest = manifest_of(run)

    def work(folder: Path) -> dict[str, Any]:
        test = manifest.split("test")
        if not len(test):
            return {}
        training = assemble.training_set(run, manifest)
        y = known_labels(manifest, test, training.classes)
        results = {}
        for name, made in MODELS.items():
            scores = scores_of(
                run, manifest, training, run.folder(made) / "model.safetensors", test
            )
            write_array(folder / f"{name}.npy", scores)
            results[name] = score(scores, y)
        return results

    stage(run, "evaluate", work, settings={}, inputs=["scan", "classes", *MODELS.values()])
    return dict((run.finished("evaluate") or {})["result"])


def known_labels(
    manifest: Manifest, positions: NDArray[np.int64], names: Sequence[str]
) -> NDArray[np.int64]:
    """Labels as ``assemble.encode_labels`` has them, but one label outside the list is OPEN (-1)."""
    if manifest.task == "multi":
        return assemble.encode_labels(manifest, positions, names).numpy()
    index = {name: number for number, name in enumerate(names)}
    rows = manifest.samples["labels"].iloc[positions]
    return np.array([index.get(row[0], OPEN) if row else OPEN for row in rows], dtype=np.int64)


@torch.no_grad()
def scores_of(
    run: Run,
    manifest: Manifest,
    training: assemble.TrainingSet,
    model: Path,
    positions: NDArray[np.int64],
    inputs: Inputs | None = None,
) -> NDArray[np.float32]:
    """Classifier probabilities of samples, (n, C), unaugmented.

    Args:
        run: Whose networks.
        manifest: Whose samples.
        training: Classes and task.
        model: Weights.
        positions: Which samples.
        inputs: Where their input comes from; the run's own if unset.
    """
    device = assemble.ranks_of(run.settings).accelerator.device
    net = assemble.new_net(run, training).to(device)
    assemble.load_net(model, net)
    net.eval()
    task = training.task(run.settings.net.tau)
    inputs = inputs or assemble.inputs_of(run, manifest, net.encoder)
    parts = [
        task.probabilities(net(x).query.p).cpu().numpy()
        for _, x in plain_batches(inputs, positions, size=256, device=device)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, len(training.classes)), np.float32)


def score(scores: NDArray[np.float32], y: NDArray[np.int64]) -> dict[str, float]:
    """The metrics of the task."""
    if y.ndim == 2:
        return metrics.multi_label(scores, y)
    scores, y = scores[y >= 0], y[y >= 0]
    return {
        "top1": metrics.top_k_accuracy(scores, y, 1),
        "top5": metrics.top_k_accuracy(scores, y, 5),
    }


def label_accuracies(run: Run, truth: Path) -> dict[str, float]:
    """Share of true labels before and after cleaning, and of samples kept; for measuring only."""
    manifest = manifest_of(run)
    run.need("clean")
    training = assemble.training_set(run, manifest)
    member = membership(load_truth(truth, manifest), training.classes)
    after = np.array(read_array(run.folder("clean") / "labels.npy"))
    out = training.task(run.settings.net.tau).out(torch.from_numpy(after)).numpy()
    return {
        "web": label_accuracy(training.labels.numpy(), member),
        "cleaned": label_accuracy(after, member),
        "kept": float(1 - out.mean()),
    }
