"""Probabilities of samples by a trained model of the run."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from capro.core.kept_scores import numbers_only
from capro.pipeline.ranks import ranks_of
from capro.pipeline.run import Run
from capro.train.batches import Inputs, plain_batches
from capro.train.setup import TrainingSet, Weights, inputs_of, load_net, new_net

BLOCK = 256


@torch.no_grad()
def scores_of(
    run: Run,
    training: TrainingSet,
    model: Weights,
    positions: NDArray[np.int64],
    inputs: Inputs | None = None,
) -> NDArray[np.float32]:
    """Classifier probabilities of samples, (n, C), unaugmented.

    Args:
        run: Whose networks.
        training: Classes and task.
        model: Weights.
        positions: Which samples.
        inputs: Where their input comes from; the run's own if unset.
    """
    device = ranks_of(run.settings).accelerator.device
    net = new_net(run, training).to(device)
    load_net(run, model, net)
    net.eval()
    task = training.task(run.settings.net.tau)
    source = inputs or inputs_of(run, net.encoder)
    parts = [
        task.probabilities(net(x).query.p).cpu().numpy()
        for _, x in plain_batches(source, positions, size=BLOCK, device=device)
    ]
    scores = np.concatenate(parts) if parts else np.zeros((0, len(training.classes)), np.float32)
    name = "number {}".format if inputs else (lambda row: training.ids[positions[row]])
    return numbers_only(scores, place=f"{run.path}: {model.stage}/{model.file}", name=name)
