"""Step 2 against slow references and the words of the paper."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from capro.core.label_rule import NULL, LabelDecision
from tests.train.toys import CPU, TAU, Toy, batches, everything, ordered


def slow_rule(o: torch.Tensor, y: torch.Tensor, anchored: torch.Tensor, gamma: float, protect: bool):
    found = []
    for row, label, anchor in zip(o, y.tolist(), anchored.tolist(), strict=True):
        if anchor and protect:
            found.append(label)
        elif row.max() > gamma:
            found.append(int(row.argmax()))
        elif row[label] > 1 / len(row):
            found.append(label)
        else:
            found.append(NULL)
    return torch.tensor(found)


# --- start --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["frozen", "full"])
def test_prototypes_start_from_the_anchors_keys(mode):
    toy = Toy(mode)
    net = toy.net().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    objective = toy.objective(net=net)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    reference = toy.net().eval()
    raw = toy.inputs().raw(toy.positions, epoch=0, view=-1)
    x = toy.inputs().ready(raw, toy.positions, epoch=0, view=-1, device=CPU)
    z = reference.embed_key(x)
    for c in range(toy.classes):
        rows = [i for i in range(toy.n) if toy.anchored[i] and toy.labels[i] == c]
        mean = sum(z[i] for i in rows) / len(rows)
        assert torch.allclose(objective.prototypes[c], mean / mean.norm(), atol=1e-5)
    # the dictionary holds keys of real samples, each once
    store = objective.state()["dictionary.store"]
    assert len(store) == 16
    nearest = (store[:, None] - z[None]).norm(dim=2)
    assert (nearest.min(dim=1).values < 1e-5).all()
    assert len(set(nearest.argmin(dim=1).tolist())) == 16


@pytest.mark.parametrize("mode", ["frozen", "full"])
def test_key_branch_is_the_query_branch_at_the_start(mode):
    net = Toy(mode).objective().net
    for query, key in ((net.encoder, net.key_encoder), (net.heads.projector, net.key_projector)):
        other = key.state_dict()
        assert all(torch.equal(value, other[name]) for name, value in query.state_dict().items())


def test_no_anchor_at_all_is_survived():
    for multi in (False, True):
        toy = Toy(multi=multi)
        toy.anchored[:] = False
        objective = toy.objective()
        assert (objective.prototypes == 0).all()
        assert objective.prototypes.shape == ((3, 2, 6) if multi else (3, 6))
        history = toy.fit(objective)
        assert all(math.isfinite(value) for row in history for value in row.values())


# --- terms --------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["capro", "mopro"])
def test_terms_labels_and_prototypes_equal_a_slow_reference(policy):
    """gamma is high, so that the rule keeps, corrects and drops; whoever is out leaves four terms."""
    toy = Toy(settings={"policy": policy, "gamma": 0.55, "alpha": 0.4, "update_every": 1})
    objective = toy.objective()
    objective.begin_epoch(1, resumed=False)
    dropped = kept = changed = 0
    for batch in batches(toy, 1):
        rows = torch.from_numpy(batch.everyone)
        y, anchored = toy.labels[rows], toy.anchored[rows]
        before = objective.prototypes.clone()
        dictionary = objective.state()["dictionary.store"].clone()
        with torch.no_grad():
            out, shuffled = objective.net(batch.query, batch.key)
        keys = torch.stack([shuffled[batch.key_order.tolist().index(i)] for i in range(len(rows))])
        p, r = out.p.softmax(1), (out.z @ before.T / TAU).softmax(1)
        labels = slow_rule(0.4 * p + 0.6 * r, y, anchored, 0.55, policy == "capro")
        clean = labels != NULL
        dropped, kept = dropped + int((~clean).sum()), kept + int((labels == y).sum())
        changed += int((clean & (labels != y)).sum())

        def mean(values):
            return sum(values) / max(1, len(values))

        b = range(len(rows))
        expected = {
            "cls": mean([-p[i, labels[i]].log() for i in b if clean[i]]),
            "prj": mean([((out.v_rec[i] - out.v[i]) ** 2).mean() for i in b])
            + mean([-out.q[i].log_softmax(0)[labels[i]] for i in b if clean[i]]),
            "pro": mean([-r[i, labels[i]].log() for i in b if clean[i]]),
        }
        ins, bts = [], []
        for i in b:
            negatives = sum(math.exp(float(out.z[i] @ k) / TAU) for k in dictionary)
            positive = math.exp(float(out.z[i] @ keys[i]) / TAU)
            ins.append(-math.log(positive / (positive + negatives)))
            w = (dictionary @ out.z[i] / TAU).softmax(0)
            q_keys = objective.net.heads.auxiliary(dictionary).softmax(1).detach()
            r_keys = (dictionary @ before.T / TAU).softmax(1)
            target = (w[:, None] * (0.4 * q_keys + 0.6 * r_keys)).sum(0)
            q = out.q[i].softmax(0)
            if clean[i]:
                bts.append(float((q * (q / target).log()).sum()))
        expected |= {"ins": mean(ins), "bts": mean(bts)}

        terms = objective.terms(batch)
        assert set(terms) == set(expected)
        for name, value in expected.items():
            assert terms[name].item() == pytest.approx(float(value), rel=1e-4, abs=1e-6), name
        assert torch.equal(objective.state()["pseudo"][rows], labels)
        assert torch.equal(objective.prototypes, before)  # polished after the optimiser's step

        objective.after(batch)
        polished = before.clone()
        for i in b:  # one sample after the other, normalised once at the end
            if clean[i]:
                polished[labels[i]] = 0.8 * polished[labels[i]] + 0.2 * out.z[i]
        assert torch.allclose(objective.prototypes, F.normalize(polished, dim=1), atol=1e-5)
        queue = ordered(objective._dictionary)
        assert torch.allclose(queue[-len(rows) :], keys, atol=1e-6)  # out or not, in batch order
    assert dropped
    assert kept
    assert changed
    if policy == "capro":
        assert (objective.state()["pseudo"] == toy.labels)[toy.anchored].all()


def all_out(objective):
    """A rule that drops everyone."""
    judge = objective._judge
    kind = type(judge.task)

    class Strict(kind):
        def adjust(self, o, labels, anchored, *, gamma, protect):
            return torch.full_like(labels, NULL), torch.full_like(labels, 2)

    strict = Strict(**{name: getattr(judge.task, name) for name in judge.task.__dataclass_fields__})
    objective._judge = replace(judge, task=strict)


@pytest.mark.parametrize("reference", ["cb", "mixup", "bootstrap", "smoothing", "scc", "ncr", "cb+mixup"])
@pytest.mark.parametrize("multi", [False, True])
def test_a_batch_without_a_clean_sample_is_a_zero_not_a_nan(multi, reference):
    toy = Toy(multi=multi, settings={"reference": reference})
    objective = toy.objective()
    all_out(objective)
    objective.begin_epoch(1, resumed=False)
    before = objective.prototypes.clone()
    (batch, *_) = batches(toy, 1)
    terms = objective.terms(batch)
    assert terms["cls"].item() == terms["pro"].item() == terms["bts"].item() == 0
    with torch.no_grad():
        out = objective.net(batch.query).query
    assert terms["prj"].item() == pytest.approx(float((out.v_rec - out.v).square().mean()))
    assert terms["ins"].item() > 0
    sum(terms.values()).backward()
    assert all(torch.isfinite(p.grad).all() for p in objective.parameters() if p.grad is not None)
    stored = ordered(objective._dictionary)
    objective.after(batch)
    assert torch.equal(objective.prototypes, before)
    assert not torch.equal(ordered(objective._dictionary), stored)


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("multi", [False, True])
def test_bootstrapping_reaches_the_classifier_behind_a_frozen_encoder_only_if_wanted(multi, wanted):
    objective = Toy(multi=multi, settings={"reference": "cb", "bts_classifier": wanted}).objective()
    objective.begin_epoch(0, resumed=False)
    (batch, *_) = batches(Toy(multi=multi), 0)
    objective.terms(batch)["bts"].backward()
    gradient = objective.net.heads.classifier.weight.grad
    assert (gradient is not None and bool(gradient.any())) == wanted
    assert objective.net.heads.auxiliary.weight.grad.any()


def test_before_correction_everyone_keeps_the_web_label_and_polishes():
    toy = Toy(settings={"correct_after": 2, "gamma": 0.34})
    objective = toy.objective()
    for epoch in range(2):
        objective.begin_epoch(epoch, resumed=False)
        for batch in batches(toy, epoch):
            before = objective.prototypes.clone()
            with torch.no_grad():
                z = objective.net(batch.query).query.z
            objective.terms(batch)
            objective.after(batch)
            expected = before.clone()
            for i, row in enumerate(batch.everyone):
                c = toy.labels[row]
                expected[c] = 0.8 * expected[c] + 0.2 * z[i]
            assert torch.allclose(objective.prototypes, F.normalize(expected, dim=1), atol=1e-5)
        assert torch.equal(objective.state()["pseudo"], toy.labels)
        share = float(toy.anchored.float().mean())
        assert objective.statistics() == pytest.approx(
            {"anchor": share, "keep": 1 - share, "relabel": 0, "drop": 0}
        )
    objective.begin_epoch(2, resumed=False)
    for batch in batches(toy, 2):
        objective.terms(batch)
        objective.after(batch)
    assert not torch.equal(objective.state()["pseudo"], toy.labels)
    assert objective.statistics()["relabel"] > 0


def test_mopro_does_not_call_anyone_an_anchor():
    toy = Toy(settings={"policy": "mopro", "correct_after": 9})
    objective = toy.objective()
    toy.fit(objective)
    assert objective.statistics() == {"anchor": 0, "keep": 1, "relabel": 0, "drop": 0}
    assert (objective.state()["decisions"] == LabelDecision.KEEP).all()


def test_multi_label_statistics_are_shares_of_labels():
    toy = Toy(multi=True, settings={"gamma": 0.55, "epochs": 4, "lr": 0.3})
    objective = toy.objective()
    history = toy.fit(objective)
    assert history[0]["keep"] == 1
    for row in history:
        assert row["keep"] + row["add"] + row["remove"] == pytest.approx(1)
        assert 0 <= row["drop"] <= 1
    assert history[-1]["add"] + history[-1]["remove"] > 0
    pseudo, anchored = objective.state()["pseudo"], toy.anchored
    assert (pseudo[anchored] == 1).all()


@pytest.mark.parametrize("name", ["bts", "prj", "pro", "ins"])
def test_a_term_without_weight_is_left_out(name):
    toy = Toy(settings={f"lambda_{name}": 0.0})
    objective = toy.objective()
    objective.begin_epoch(1, resumed=False)
    assert set(objective.terms(batches(toy, 1)[0])) == {"cls", "prj", "pro", "ins", "bts"} - {name}
    history = toy.fit(objective)
    assert name not in history[-1]


@pytest.mark.parametrize("reference", ["smoothing", "bootstrap", "mixup", "scc", "cb+mixup"])
def test_providers_with_a_weight_of_their_own_do_not_need_lambda_bts(reference):
    toy = Toy(settings={"reference": reference, "lambda_bts": 0.0})
    row = toy.fit(toy.objective())[-1]
    own = "mix" if reference == "cb+mixup" else "bts"
    assert set(row) & {"bts", "mix"} == {own}
    label = row["cls"] if reference == "cb+mixup" else 0.0  # mix-up stands beside L_cls there
    assert row["loss"] == pytest.approx(label + sum(row[name] for name in (own, "prj", "pro", "ins")))


def test_no_reference_means_no_bootstrapping():
    toy = Toy(settings={"reference": "none"})
    row = toy.fit(toy.objective())[-1]
    assert "bts" not in row
    assert row["loss"] == pytest.approx(sum(row[name] for name in ("cls", "prj", "pro", "ins")))


@pytest.mark.parametrize("every", [0, 1, 2, 5])
def test_prototypes_are_updated_every_u_epochs(every):
    """u = 0: renewed at the begin of an epoch from the anchors alone; else each u-th epoch polishes."""
    toy = Toy(settings={"update_every": every, "epochs": 6})
    objective = toy.objective()
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
    moved = []
    for epoch in range(6):
        objective.begin_epoch(epoch, resumed=False)
        begin = objective.prototypes.clone()
        if every == 0:
            assert torch.allclose(begin, objective._from_anchors(), atol=1e-6)
        for batch in batches(toy, epoch):
            optimizer.zero_grad()
            sum(objective.terms(batch).values()).backward()
            optimizer.step()
            objective.after(batch)
        moved.append(not torch.equal(begin, objective.prototypes))
        assert torch.allclose(objective.prototypes.norm(dim=1), torch.ones(3), atol=1e-5)
    if every == 0:
        assert moved == [False] * 6
        assert not torch.allclose(begin, toy.objective().prototypes, atol=1e-3)
    else:
        assert moved == [(epoch + 1) % every == 0 for epoch in range(6)]


# --- frozen and not -------------------------------------------------------------------------------


def changed(before, after, prefix: str) -> int:
    """How many weights differ."""
    names = [name for name in before if name.startswith(prefix)]
    assert names
    return sum(int((before[name] != after[name]).sum()) for name in names)


def test_the_encoder_is_frozen_and_really_unfrozen():
    toy = Toy("full", settings={"frozen_epochs": 2, "epochs": 3, "lr": 0.1})
    seen = []
    objective = toy.objective()
    begin = everything(objective)
    toy.fit(objective, log=lambda *_: seen.append(everything(objective)))
    weights = sum(p.numel() for p in objective.net.encoder.parameters())
    for epoch in (0, 1):  # neither weights nor batch statistics, of neither branch
        assert changed(begin, seen[epoch], "net.encoder") == 0
        assert changed(begin, seen[epoch], "net.key_encoder") == 0
        assert changed(begin, seen[epoch], "net.heads.classifier") > 0
        assert changed(begin, seen[epoch], "net.key_projector") > 0
    moving = {name for name, _ in objective.net.encoder.named_parameters()}
    after = {name: seen[2][f"net.encoder.{name}"] for name in moving}
    then = {name: begin[f"net.encoder.{name}"] for name in moving}
    assert changed(then, after, "") > 0.9 * weights
    assert changed(begin, seen[2], "net.key_encoder") > 0
    means = [name for name in begin if name.endswith("running_mean")]
    assert all(changed(begin, seen[2], name) for name in means)
