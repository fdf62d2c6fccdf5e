"""The method plus: every equation against a slow reference, and made-up sets with known truth."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression, Ridge
from torch.nn.functional import normalize, one_hot

from capro.method import plus
from capro.method.label_rule import Decision, PairDecision
from capro.method.plus.evidence import LABEL_SPREAD, LABEL_TRUST
from capro.method.plus.one_label import _fields

SEEDS = st.integers(0, 10_000)
FEW = settings(max_examples=25, deadline=None)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def distributions(n, k, seed):
    return torch.randn(n, k, generator=generator(seed)).mul(2).softmax(1)


def made_up(n=240, classes=4, seed=0, noise=0.3, none=0.0, missing=0.2):
    """Pictures and texts around the centres of their true classes; some labels are wrong."""
    g = generator(seed)
    centres = normalize(torch.randn(classes + 1, 16, generator=g), dim=1)
    meanings = normalize(torch.randn(classes + 1, 12, generator=g), dim=1)
    z = torch.arange(n) % classes
    z = torch.where(torch.rand(n, generator=g) < none, classes, z)
    wrong = torch.rand(n, generator=g) < noise
    other = torch.randint(0, classes, (n,), generator=g)
    y = torch.where(wrong | (z == classes), other, z)
    x, _ = plus.centred(centres[z] * 3 + torch.randn(n, 16, generator=g) * 0.8)
    text = normalize(meanings[z] + 0.2 * torch.randn(n, 12, generator=g), dim=1)
    text = text * (torch.rand(n, 1, generator=g) >= missing)
    return x, text, meanings[:classes], y, z


# --- equations ------------------------------------------------------------------------------------


@given(SEEDS)
@FEW
def test_cross_entropy_is_the_sum_over_classes(seed):
    logits = torch.randn(4, 3, generator=generator(seed))
    q = distributions(4, 3, seed + 1)
    for i in range(4):
        total = sum(math.exp(v) for v in logits[i].tolist())
        slow = -sum(float(q[i, c]) * math.log(math.exp(float(logits[i, c])) / total) for c in range(3))
        assert plus.cross_entropy(logits, q)[i] == pytest.approx(slow, abs=1e-4)
        bits = 0.0
        for c in range(3):
            p = 1 / (1 + math.exp(-float(logits[i, c])))
            bits -= float(q[i, c]) * math.log(p) + (1 - float(q[i, c])) * math.log(1 - p)
        assert plus.cross_entropy(logits, q, several=True)[i] == pytest.approx(bits, abs=1e-4)


@given(SEEDS, st.floats(0.1, 1.0))
@FEW
def test_pool_is_bayes_rule(seed, weight):
    words, picture = distributions(5, 4, seed), distributions(5, 4, seed + 1)
    prior = distributions(1, 4, seed + 2)[0]
    q = plus.pool(words.log(), picture.log(), prior, weight=weight)
    for i in range(5):
        slow = [
            float(prior[z]) * (float(words[i, z]) * float(picture[i, z]) / float(prior[z]) ** 2) ** weight
            for z in range(4)
        ]
        assert q[i].tolist() == pytest.approx([s / sum(slow) for s in slow], abs=1e-4)


def test_pool_by_hand():
    half = torch.tensor([0.5, 0.5])
    sure = torch.tensor([[0.8, 0.2]]).log()
    assert plus.pool(sure, half.log()[None], half)[0, 0] == pytest.approx(0.8)  # one view knows nothing
    assert plus.pool(sure, sure, half)[0, 0] == pytest.approx(0.64 / 0.68)
    assert plus.pool(sure, sure, half, weight=0.5)[0, 0] == pytest.approx(0.8)  # wholly dependent


@given(SEEDS)
@FEW
def test_agreement_reference_and_zero_where_one_view_is_the_prior(seed):
    words, picture = distributions(5, 4, seed), distributions(5, 4, seed + 1)
    prior = distributions(1, 4, seed + 2)[0]
    found = plus.agreement(words.log(), picture.log(), prior)
    for i in range(5):
        slow = sum(float(words[i, z] * picture[i, z] / prior[z]) for z in range(4))
        assert found[i] == pytest.approx(math.log(slow), abs=1e-4)
    nothing = plus.agreement(words.log(), prior.log().expand(5, 4), prior)
    assert nothing.abs().max() < 1e-4


@given(SEEDS)
@FEW
def test_tempered_agrees_at_least_as_well(seed):
    logits = 3 * torch.randn(60, 4, generator=generator(seed))
    words = (logits + torch.randn(60, 4, generator=generator(seed + 1))).log_softmax(1)
    prior = words.exp().mean(0)
    before = plus.agreement(words, logits.log_softmax(1), prior).mean()
    after = plus.tempered(logits, words, prior)
    assert after.exp().sum(1).tolist() == pytest.approx([1.0] * 60, abs=1e-4)
    assert plus.agreement(words, after, prior).mean() >= before - 1e-3


def test_tempered_flattens_a_picture_that_knows_nothing():
    words = distributions(400, 3, 0).log()
    noise = 10 * torch.randn(400, 3, generator=generator(1))
    found = plus.tempered(noise, words, words.exp().mean(0))
    assert found.exp().max(1)[0].mean() < 0.6


@given(SEEDS)
@FEW
def test_label_given_truth_counts(seed):
    q, y = distributions(20, 4, seed), torch.randint(-1, 3, (20,), generator=generator(seed))
    table = plus.label_given_truth(q, y, 3)
    assert table.sum(1).tolist() == pytest.approx([1.0] * 4, abs=1e-5)
    for z in range(4):
        slow = [LABEL_SPREAD / 3 + (LABEL_TRUST if z == c else 0) for c in range(3)]
        for i in range(20):
            if y[i] >= 0:
                slow[int(y[i])] += float(q[i, z])
        assert table[z].tolist() == pytest.approx([s / sum(slow) for s in slow], abs=1e-4)


@given(SEEDS)
@FEW
def test_tag_evidence_is_the_likelihood_ratio(seed):
    q = torch.rand(30, 3, generator=generator(seed))
    y = (torch.rand(30, 3, generator=generator(seed + 1)) < q).float()
    hit, false = plus.tag_rates(q, y)
    found = plus.tag_evidence(y, hit, false)
    for i in range(30):
        for c in range(3):
            shown = float(hit[c]) if y[i, c] else 1 - float(hit[c])
            absent = float(false[c]) if y[i, c] else 1 - float(false[c])
            assert found[i, c] == pytest.approx(math.log(shown / absent), abs=1e-4)


def test_tag_rates_by_hand():
    q = torch.tensor([[1.0], [1.0], [0.0], [0.0]])
    hit, false = plus.tag_rates(q, torch.tensor([[1.0], [0.0], [1.0], [0.0]]))
    assert float(hit) == pytest.approx((1 + 3) / (2 + 5))
    assert float(false) == pytest.approx((1 + 0.05) / (2 + 5))


# --- classifiers ----------------------------------------------------------------------------------


def test_linear_is_ridge_bound_multinomial_regression():
    x, _, _, y, _ = made_up(120, 3)
    decay = 1e-3
    ours = plus.linear(x, one_hot(y, 3).float(), decay=decay, steps=300)
    theirs = LogisticRegression(C=1 / (2 * len(x) * decay), tol=1e-8, max_iter=2000)
    expected = theirs.fit(x.numpy(), y.numpy()).predict_proba(x.numpy())
    assert np.abs(ours(x).softmax(1).numpy() - expected).max() < 0.01


def test_linear_balance_takes_the_frequency_out():
    x = torch.zeros(10, 2)
    q = one_hot(torch.tensor([0] * 9 + [1]), 2).float()
    assert plus.linear(x, q)(x).softmax(1)[0, 0] == pytest.approx(0.9, abs=0.01)
    assert plus.linear(x, q, balance=1.0)(x).softmax(1)[0, 0] == pytest.approx(0.5, abs=0.01)


@given(st.integers(0, 50), st.integers(1, 6), SEEDS)
@FEW
def test_folds_are_nearly_equal(n, folds, seed):
    sizes = torch.bincount(plus.assign_folds(n, folds, seed), minlength=folds)
    assert sizes.sum() == n
    assert sizes.max() - sizes.min() <= 1


@given(SEEDS)
@settings(max_examples=10, deadline=None)
def test_a_label_never_judges_itself(seed):
    """Logits of a fold do not depend on any target within it."""
    x, q = torch.randn(30, 4, generator=generator(seed)), distributions(30, 3, seed)
    fold = plus.assign_folds(30, 3, seed)
    before = plus.out_of_fold(x, q, fold)
    changed = q.clone()
    changed[fold == 0] = torch.tensor([1.0, 0, 0])
    after = plus.out_of_fold(x, changed, fold)
    assert torch.equal(before[fold == 0], after[fold == 0])
    assert not torch.equal(before[fold != 0], after[fold != 0])


# --- texts ----------------------------------------------------------------------------------------


def test_picture_to_text_is_ridge_out_of_fold():
    x, text, *_ = made_up(90)
    fold = plus.assign_folds(90, 3, 0)
    found = plus.picture_to_text(x, [text], fold, ridge=0.01)
    rest = ((fold != 1) & text.any(1)).numpy()
    t = text.numpy()
    model = Ridge(alpha=0.01 * rest.sum(), fit_intercept=False)
    model.fit(x.numpy()[rest], t[rest] - t[rest].mean(0))
    assert np.abs(found[fold == 1].numpy() - model.predict(x[fold == 1].numpy())).max() < 1e-3


def test_first_none_is_far_or_of_another_sense():
    classes, senses = torch.eye(4)[:2], torch.eye(4)[2:3]
    near = normalize(torch.tensor([[1.0, 0.1, 0, 0]]), dim=1).repeat(38, 1)
    t = torch.cat([near, torch.eye(4)[2:3], torch.eye(4)[3:4], torch.zeros(1, 4)])
    word = torch.zeros(41, dtype=torch.int64)
    field = _fields([t], classes, word, senses, torch.tensor([0]))[0]
    found = plus.first_none(field, share=0.05)
    assert found.nonzero()[:, 0].tolist() == [38, 39]  # not the missing text


# --- whole ----------------------------------------------------------------------------------------


def test_labels_are_mended_and_errors_found():
    x, text, classes, y, z = made_up(600, 4, seed=1)
    anchors = (text @ classes.T).max(1)[0] > 0.8
    found = plus.single_label(x, [text], classes, y, anchors=anchors)
    label, decision, _ = plus.decide(found.q, y, anchors)
    assert (y == z).float().mean() < 0.85
    assert (label == z).float().mean() > 0.93
    assert ((decision == Decision.RELABEL) & (y != z)).sum() > 0.8 * (y != z).sum()
    assert found.q.sum(1).tolist() == pytest.approx([1.0] * 600, abs=1e-4)


def test_none_of_these_is_found():
    x, text, classes, y, z = made_up(600, 4, seed=2, noise=0.1, none=0.15, missing=0.1)
    found = plus.single_label(x, [text], classes, y, anchors=(text @ classes.T).max(1)[0] > 0.8)
    dropped = found.q.argmax(1) == 4
    assert (z[dropped] == 4).float().mean() > 0.8
    assert dropped[z == 4].float().mean() > 0.6


def test_an_anchor_can_lose_its_label():
    x, text, classes, y, z = made_up(400, 4, seed=3, noise=0.3)
    anchors = torch.ones(400, dtype=torch.bool)
    label = plus.decide(plus.single_label(x, [text], classes, y, anchors=anchors).q, y, anchors).labels
    assert (label != y)[anchors & (y != z)].float().mean() > 0.7


def test_no_label_at_all():
    x, text, classes, _, z = made_up(500, 4, seed=4)
    found = plus.single_label(x, [text], classes, torch.full((500,), -1))
    assert (found.q.argmax(1) == z).float().mean() > 0.85


def test_no_text_at_all():
    x, _, classes, y, z = made_up(300, 4, seed=5)
    for texts in ([], [torch.zeros(300, 12)]):
        found = plus.single_label(x, texts, classes, y)
        assert found.q.isfinite().all()
        assert (found.q.argmax(1) == z).float().mean() > (y == z).float().mean() - 0.02


def test_nothing_known_stays_finite():
    x, *_ = made_up(40)
    found = plus.single_label(x, [], torch.eye(12)[:3], torch.full((40,), -1))
    assert found.q.isfinite().all()


@pytest.mark.parametrize("case", ["empty class", "one class", "two classes", "duplicates", "no anchors"])
def test_odd_sets(case):
    x, text, classes, y, _ = made_up(120, 2 if case == "two classes" else 4, seed=6)
    anchors = torch.zeros(120, dtype=torch.bool)
    anchors[:60] = case != "no anchors"
    if case == "empty class":
        y = torch.where(y == 3, 0, y)
    if case == "one class":
        y = torch.zeros_like(y)
    if case == "duplicates":
        x, text, y = x[:1].repeat(120, 1), text[:1].repeat(120, 1), y[:1].repeat(120)
    found = plus.single_label(x, [text], classes, y, anchors=anchors)
    assert found.q.shape == (120, len(classes) + 1)
    assert found.q.isfinite().all()
    assert found.q.sum(1).tolist() == pytest.approx([1.0] * 120, abs=1e-4)
    if case == "duplicates":
        assert found.q.std(0).max() < 0.1


def test_seeds_repeat():
    x, text, classes, y, _ = made_up(100)
    one, two = (plus.single_label(x, [text], classes, y, rounds=2, seed=7).q for _ in range(2))
    assert torch.equal(one, two)


def tagged(n=500, classes=4, seed=0):
    """Several things in a picture; a tag is wrong or missing; the title names what is shown."""
    g = generator(seed)
    centres = normalize(torch.randn(classes, 16, generator=g), dim=1)
    meanings = normalize(torch.randn(classes, 24, generator=g), dim=1)
    z = (torch.rand(n, classes, generator=g) < 0.25).float()
    y = torch.where(
        z > 0, torch.rand(n, classes, generator=g) < 0.7, torch.rand(n, classes, generator=g) < 0.12
    )
    x, _ = plus.centred(z @ centres * 3 + 0.5 * torch.randn(n, 16, generator=g))
    title = normalize(z @ meanings + 0.1 * torch.randn(n, 24, generator=g), dim=1)
    title = title * (torch.rand(n, 1, generator=g) > 0.2)
    return x, title, meanings, y.long(), z


def test_tags_are_mended():
    x, title, classes, y, z = tagged()
    found = plus.several_labels(x, [title], classes, y)
    label = plus.decide_pairs(found.q, y).labels
    assert (label == z).float().mean() > (y == z).float().mean() + 0.05
    hit, false = found.reliability
    assert hit.mean() == pytest.approx(0.7, abs=0.1)
    assert false.mean() == pytest.approx(0.12, abs=0.06)


def test_a_field_that_repeats_the_tags_gets_less_weight():
    x, title, classes, y, _ = tagged()
    album = normalize(y.float() @ classes, dim=1)
    found = plus.several_labels(x, [title, album], classes, y)
    assert found.field_weights[0, 0] > 2 * found.field_weights[1, 0].abs()


@pytest.mark.parametrize("case", ["no text", "empty class", "full class", "duplicates", "names"])
def test_odd_tags(case):
    x, title, classes, y, _ = tagged(90)
    texts = [] if case == "no text" else [title]
    if case == "empty class":
        y[:, 0] = 0
    if case == "full class":
        y[:, 0] = 1
    if case == "duplicates":
        x, texts, y = x[:1].repeat(90, 1), [title[:1].repeat(90, 1)], y[:1].repeat(90, 1)
    names = classes if case == "names" else None
    found = plus.several_labels(x, texts, classes, y, class_names=names)
    assert found.q.isfinite().all()
    assert ((found.q >= 0) & (found.q <= 1)).all()


# --- what follows ---------------------------------------------------------------------------------


@given(SEEDS)
@FEW
def test_decisions_follow_the_posterior(seed):
    q, y = distributions(20, 4, seed), torch.randint(0, 3, (20,), generator=generator(seed))
    anchors = torch.rand(20, generator=generator(seed + 1)) < 0.3
    found = plus.decide(q, y, anchors, sure=0.5)
    for i in range(20):
        best, asked = int(q[i].argmax()), bool(q[i].max() < 0.5)
        label = int(q[i, :3].argmax()) if asked else -1 if best == 3 else best
        kept = Decision.ANCHOR if anchors[i] else Decision.KEEP
        wanted = Decision.DROP if label < 0 else kept if label == y[i] else Decision.RELABEL
        assert (int(found.labels[i]), int(found.decisions[i])) == (label, wanted)
        assert bool(found.ask[i]) == asked


@given(SEEDS)
@FEW
def test_pairs_are_decided_one_by_one(seed):
    q = torch.rand(12, 3, generator=generator(seed))
    y = (torch.rand(12, 3, generator=generator(seed + 1)) < 0.4).long()
    found = plus.decide_pairs(q, y)
    for i in range(12):
        now = [int(q[i, c] > 0.5) for c in range(3)]
        gone = bool(y[i].any()) and not any(now)
        assert found.labels[i].tolist() == ([-1] * 3 if gone else now)
        for c in range(3):
            change = now[c] - int(y[i, c])
            wanted = {1: PairDecision.ADD, 0: PairDecision.KEEP, -1: PairDecision.REMOVE}[change]
            assert int(found.decisions[i, c]) == wanted
            assert bool(found.ask[i, c]) == (abs(float(q[i, c]) - 0.5) < 0.1)


def diagnosed(q, y, texts, classes, anchors=None):
    blank = torch.zeros_like(q)
    found = plus.Posterior(q, blank, blank, q.mean(0), torch.eye(3), 1.0, torch.ones(1))
    return plus.diagnose(found, y, texts, classes, anchors=anchors)


def test_diagnosis_names_what_is_wrong():
    y = torch.tensor([0] * 10 + [1] * 10)
    classes, anchors = torch.eye(2), torch.arange(20) < 5
    sure = one_hot(y, 3).float()
    assert diagnosed(sure, y, [torch.eye(2)[y]], classes, anchors) == []
    away = sure.clone()
    away[:4] = torch.tensor([0.0, 0.0, 1.0])
    (found,) = diagnosed(away, y, [torch.eye(2)[y]], classes, anchors)
    assert (found.kind, found.classes, found.share) == ("anchors", (0,), pytest.approx(0.8))
    assert found.rows == (0, 1, 2, 3)
    mixed = torch.tensor([0.5, 0.5, 0.0]).repeat(20, 1)
    assert [f.kind for f in diagnosed(mixed, y, [torch.eye(2)[y]], classes)] == ["one class"]
    swapped = torch.eye(2)[torch.where(y == 0, 1, y)]
    assert [(f.kind, f.classes) for f in diagnosed(sure, y, [swapped], classes)] == [("sense", (0,))]
