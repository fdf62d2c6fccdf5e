"""Figures of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capro import assemble
from capro.assemble import manifest_of
from capro.data.manifest import Manifest
from capro.evaluate import metrics
from capro.evaluate.truth import label_accuracy, load_truth, membership
from capro.pipeline.base import stage
from capro.runs import (
    Run,
    read_array,
    write_array,
)
from capro.train.batches import plain_batches


def evaluate(run: Run) -> dict[str, dict[str, float]]:
    """Vanilla and CAPro on exactly the test samples; empty where there is no test split."""
    manifest = manifest_of(run)

    def work(folder: Path) -> dict[str, Any]:
        test = manifest.split("test")
        if not len(test):
            return {}
        training = assemble.training_set(run, manifest)
        y = assemble.encode_labels(manifest, test, training.classes).numpy()
        results = {}
        for name, made in (("vanilla", "pretrain"), ("capro", "finetune")):
            scores = test_scores(run, manifest, training, run.folder(made) / "model.safetensors")
            write_array(folder / f"{name}.npy", scores)
            results[name] = score(scores, y)
        return results

    stage(run, "evaluate", work, settings={}, inputs=["scan", "classes", "pretrain", "finetune"])
    return dict((run.finished("evaluate") or {})["result"])


@torch.no_grad()
def test_scores(
    run: Run, manifest: Manifest, training: assemble.TrainingSet, model: Path
) -> NDArray[np.float32]:
    """Classifier probabilities of the test samples, (n, C), unaugmented."""
    device = assemble.ranks_of(run.settings).accelerator.device
    net = assemble.new_net(run, training).to(device)
    assemble.load_net(model, net)
    net.eval()
    task = training.task(run.settings.net.tau)
    inputs = assemble.inputs_of(run, manifest, net.encoder)
    parts = [
        task.probabilities(net(x).query.p).cpu().numpy()
        for _, x in plain_batches(inputs, manifest.split("test"), size=256, device=device)
    ]
    return np.concatenate(parts)


def score(scores: NDArray[np.float32], y: NDArray[np.int64]) -> dict[str, float]:
    """The metrics of the task."""
    if y.ndim == 2:
        return metrics.multi_label(scores, y)
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
