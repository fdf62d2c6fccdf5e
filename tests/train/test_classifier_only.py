"""Step 3: the classifier alone, its balance and its coordinates."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from capro import config
from capro.config import FinetuneSettings
from capro.core.label_rule import NULL
from capro.models.backbones import FeatureBackbone
from capro.models.heads import Heads
from capro.models.siamese import Siamese
from capro.train.batches import FeatureInputs
from capro.train.loop import Training
from capro.train.objectives import ClassifierOnly, Frame, WebLabels
from capro.train.tasks import MultiLabelTask
from tests.train.toys import CPU, TAU, Toy, batches, one_rank


def test_step_three_trains_the_classifier_alone():
    toy = Toy("full")
    net = toy.net()
    toy.fit(WebLabels(net, toy.task, toy.labels, one_rank(), lambda_prj=1.0))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    history = toy.fit(ClassifierOnly(net, toy.task, toy.labels, one_rank()))
    after = net.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"heads.classifier.weight", "heads.classifier.bias"}
    assert set(history[0]) == {"epoch", "lr", "loss", "cls"}


def test_step_three_makes_up_for_rare_classes_as_far_as_settings_say():
    toy = Toy()
    labels = torch.where(torch.arange(toy.n) < toy.n // 2, 0, toy.labels)
    labels[::5] = NULL
    sizes = [int((labels == c).sum()) for c in range(toy.classes)]
    assert min(sizes) > 0
    batch = batches(toy, 0, keys=False)[0]
    net = toy.net().eval()
    rows = [i for i in batch.samples.tolist() if labels[i] != NULL]
    p = net(batch.query).query.p[labels[torch.from_numpy(batch.samples)] != NULL]
    for balance in (0.0, 0.5, 1.0):
        objective = ClassifierOnly(net, toy.task.balanced(labels, balance), labels, one_rank())
        slow = []
        for logits, i in zip(p.tolist(), rows, strict=True):
            weights = [math.exp(logits[c]) * (sizes[c] / sum(sizes)) ** balance for c in range(toy.classes)]
            slow.append(-math.log(weights[int(labels[i])] / sum(weights)))
        assert objective.terms(batch)["cls"].item() == pytest.approx(np.mean(slow), rel=1e-4)


@pytest.mark.parametrize("mode", ["frozen", "full"])
def test_coordinates_of_step_three_are_the_features_mean_and_spread(mode):
    toy = Toy(mode)
    net = toy.net()
    frame = Frame.of(net, toy.inputs(), toy.positions, one_rank())
    raw = toy.inputs().raw(toy.positions, epoch=0, view=-1)
    x = toy.inputs().ready(raw, toy.positions, epoch=0, view=-1, device=CPU)
    v = net.eval().encoder(x).detach().numpy()
    center = [np.mean(column) for column in v.T]
    assert np.allclose(frame.center, center, atol=1e-5)
    spread = np.linalg.svd(v - center, compute_uv=False)[0] / math.sqrt(toy.n)
    assert frame.scale.item() == pytest.approx(max(1.0, spread), rel=1e-4)


def test_other_coordinates_change_the_way_but_not_the_classifier():
    toy = Toy(multi=True)
    net = toy.net()
    v = torch.randn(6, net.encoder.dim)
    frame = Frame(torch.randn(net.encoder.dim), torch.tensor(3.0))
    before = net.heads.classifier(v)
    objective = ClassifierOnly(net, toy.task, toy.labels, one_rank(), frame)
    batch = batches(toy, 0, keys=False)[0]
    plain = ClassifierOnly(toy.net(), toy.task, toy.labels, one_rank()).terms(batch)["cls"]
    assert torch.allclose(objective.terms(batch)["cls"], plain, atol=1e-5)
    assert not torch.allclose(net.heads.classifier(v), before)
    objective.finish()
    assert torch.allclose(net.heads.classifier(v), before, atol=1e-5)
    objective.finish()  # once is enough
    assert torch.allclose(net.heads.classifier(v), before, atol=1e-5)


def test_centred_step_three_converges_to_a_trusted_solution():
    """Features with a large mean, strong decay: scikit-learn's answer, whose bias does not decay."""
    from sklearn.linear_model import LogisticRegression

    toy = Toy(n=40, views=1)
    toy.plain = toy.plain + 20.0
    toy.query = toy.plain[None]
    decay = 0.05
    trusted = LogisticRegression(C=1 / (decay * toy.n), max_iter=5000, tol=1e-8)
    expected = trusted.fit(toy.plain, toy.labels.numpy()).predict_proba(toy.plain)
    apart = {}
    for centred in (True, False):
        net = toy.net()
        settings = FinetuneSettings(
            centred=centred, lr=0.5 if centred else 0.005, epochs=150, weight_decay=decay
        )
        objective = ClassifierOnly.by(
            settings, net, toy.task, toy.labels, one_rank(), toy.inputs(), toy.positions
        )
        toy.fit(objective, schedule=settings)
        objective.finish()
        found = net.heads.classifier(torch.from_numpy(toy.plain)).softmax(dim=1).detach().numpy()
        apart[centred] = np.abs(found - expected).max()
    assert apart[True] < 0.03  # the bias decays a little, by 1 / scale^2
    assert apart[False] > 0.1


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_step_three_of_the_preset_does_not_swing_with_few_classes(classes):
    """With all variance of v as its scale the bias swung: a mean over few classes pulls hard."""
    rng = np.random.default_rng(0)
    v = (3 + 1.6 * rng.standard_normal((512, 256))).astype(np.float32)
    labels = torch.from_numpy((v[:, :classes] > 3.4).astype(np.int64))
    settings = config.load(preset_name="small-multi").finetune
    torch.manual_seed(0)
    net = Siamese(FeatureBackbone(256), Heads(256, 4, classes, tau=TAU, multi_label=True))
    inputs, positions = FeatureInputs(v, v[None], v[None], np.arange(512), seed=0), np.arange(512)
    task = MultiLabelTask(classes, TAU, torch.ones(classes))
    objective = ClassifierOnly.by(settings, net, task, labels, one_rank(), inputs, positions)
    history = Training(
        objective, inputs, positions, settings,
        name="toy", seed=0, ranks=one_rank(), ids=[str(i) for i in range(512)],
    ).fit()  # fmt: skip
    losses = [row["cls"] for row in history]
    assert max(losses[1:]) < losses[0]
