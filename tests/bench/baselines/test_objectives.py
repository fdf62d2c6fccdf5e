"""Small-loss selection and Co-teaching (Han et al. 2018) on data where the noise is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capro.bench.baselines.objectives import SmallLoss, sample_losses, smallest
from capro.config import PretrainSettings
from capro.nets.backbones import FeatureBackbone
from capro.nets.heads import Heads
from capro.nets.siamese import Siamese
from capro.train.batches import Batch, FeatureInputs
from capro.train.loop import fit
from capro.train.tasks import SingleLabel
from capro.train.web_labels import WebLabels
from tests.train.toys import one_rank

CLASSES, WIDTH, NOISE = 4, 48, 0.4
TASK = SingleLabel(CLASSES, 0.2)


def network(seed: int) -> Siamese:
    torch.manual_seed(seed)
    return Siamese(FeatureBackbone(WIDTH), Heads(WIDTH, 8, CLASSES, tau=0.2))


def data(n: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Separable features in many dimensions (so that noise can be learnt by heart), labels, truth."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, CLASSES, n)
    v = rng.normal(size=(n, WIDTH))
    v[:, :CLASSES] += 4 * np.eye(CLASSES)[truth]
    labels = truth.copy()
    wrong = rng.permutation(n)[: round(noise * n)]
    labels[wrong] = (truth[wrong] + rng.integers(1, CLASSES, len(wrong))) % CLASSES
    return v.astype(np.float32), labels, truth


def accuracy(nets: int, seed: int) -> float:
    """Of vanilla (0), small-loss selection (1) or Co-teaching (2), on clean test samples."""
    v, labels, _ = data(240, NOISE, seed)
    net, y, ranks = network(seed), torch.from_numpy(labels), one_rank()
    if nets:
        other = network(seed + 100) if nets == 2 else None
        objective: WebLabels = SmallLoss(net, other, TASK, y, ranks, lambda_prj=1.0, noise=NOISE, ramp=10)
    else:
        objective = WebLabels(net, TASK, y, ranks, lambda_prj=1.0)
    everyone = np.arange(len(v))
    fit(
        objective,
        FeatureInputs(v, v[None], v[None], everyone, seed=seed),
        everyone,
        PretrainSettings(epochs=30, batch_size=48, lr=0.05, warmup_epochs=0),
        name="toy",
        seed=seed,
        ranks=ranks,
        ids=[str(i) for i in everyone],
    )
    test, _, truth = data(400, 0.0, seed + 50)
    with torch.no_grad():
        said = net(torch.from_numpy(test)).query.p.argmax(dim=1).numpy()
    return float((said == truth).mean())


def test_choosing_small_losses_beats_vanilla_where_two_fifths_are_wrong() -> None:
    vanilla, alone, taught = (accuracy(nets, seed=0) for nets in range(3))
    assert alone > vanilla + 0.1
    assert taught > vanilla + 0.1


def batch(v: np.ndarray, epoch: int) -> Batch:
    everyone = np.arange(len(v))
    return Batch(epoch, 0, everyone, slice(0, len(v)), torch.from_numpy(v), None, everyone)


@pytest.mark.parametrize("epoch", [0, 3, 5, 9])
def test_each_network_learns_from_what_the_other_finds_easy(epoch: int) -> None:
    v, labels, _ = data(30, NOISE, 0)
    y, nets = torch.from_numpy(labels), (network(0), network(1))
    made = SmallLoss(*nets, TASK, y, one_rank(), lambda_prj=0.0, noise=NOISE, ramp=5)
    made.begin_epoch(epoch, resumed=False)
    kept = round(30 * (1 - NOISE * min(epoch / 5, 1)))  # R(t) = 1 - tau min(t / T_k, 1)
    made.terms(batch(v, epoch))["cls"].backward()
    found = [net.heads.classifier.weight.grad.clone() for net in nets]
    for net, other, grad in zip(nets, reversed(nets), found, strict=True):
        net.zero_grad()
        with torch.no_grad():
            losses = sample_losses(TASK, other(torch.from_numpy(v)).query.p, y)
        rows = smallest(losses, NOISE * min(epoch / 5, 1))
        assert len(rows) == kept
        logits = net(torch.from_numpy(v[rows.numpy()])).query.p
        torch.nn.functional.cross_entropy(logits, y[rows]).backward()
        torch.testing.assert_close(grad, net.heads.classifier.weight.grad)
