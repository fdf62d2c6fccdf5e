"""The posterior: joining the views against slow references, and both estimators on made-up crawls."""

import math
import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import normalize, one_hot

from capro.core.evidence import HeadKinds, JointVectors, Settled
from capro.core.label_rule import LabelDecision, decide, decide_multi_label
from capro.core.linear import NO_CALIBRATION, Centring
from capro.core.posterior import (
    MultiLabelPosterior,
    SingleLabelPosterior,
    Temperature,
    Views,
    agreement,
    among_classes,
    cautious_pool,
    even_prior,
    pool,
    state_prior,
    worth_a_start,
)
from capro.core.views import Centres, TagTexts
from tests.core.cases import (
    FEW,
    SEEDS,
    centred,
    distributions,
    evidence,
    generator,
    made_up,
    settled,
    single_label,
    tagged,
    unit_rows,
)


def multi_label(x, texts, classes, y, **named):
    return MultiLabelPosterior().fit(evidence(x, texts, classes, y, **named))


# --- joining the views


@given(SEEDS)
@FEW
def test_pool_is_bayes_rule(seed):
    words, picture = distributions(5, 4, seed), distributions(5, 4, seed + 1)
    prior = distributions(1, 4, seed + 2)[0]
    q = pool(words.log(), picture.log(), prior)
    for i in range(5):
        slow = [float(words[i, z] * picture[i, z] / prior[z]) for z in range(4)]
        assert q[i].tolist() == pytest.approx([s / sum(slow) for s in slow], abs=1e-4)


@given(SEEDS)
@FEW
def test_cautious_pool_reference(seed):
    words, picture = distributions(5, 4, seed), distributions(5, 4, seed + 1)
    prior = distributions(1, 4, seed + 2)[0]
    q = cautious_pool(words.log(), picture.log(), prior)
    for i in range(5):
        known = [
            sum(float(view[i, z]) * math.log(float(view[i, z] / prior[z])) for z in range(4))
            for view in (words, picture)
        ]
        w = known[0] / sum(known)
        slow = [
            float(prior[z]) * float(words[i, z] / prior[z]) ** w * float(picture[i, z] / prior[z]) ** (1 - w)
            for z in range(4)
        ]
        assert q[i].tolist() == pytest.approx([s / sum(slow) for s in slow], abs=1e-3)


@given(SEEDS)
@FEW
def test_a_view_that_is_repeated_adds_nothing(seed):
    words, prior = distributions(5, 4, seed), distributions(1, 4, seed + 2)[0]
    torch.testing.assert_close(cautious_pool(words.log(), words.log(), prior), words, atol=1e-4, rtol=0)


def test_pool_by_hand():
    half = torch.tensor([0.5, 0.5])
    sure = torch.tensor([[0.8, 0.2]]).log()
    assert pool(sure, half.log()[None], half)[0, 0] == pytest.approx(0.8)  # one view knows nothing
    assert pool(sure, sure, half)[0, 0] == pytest.approx(0.64 / 0.68)
    assert cautious_pool(sure, sure, half)[0, 0] == pytest.approx(0.8)  # wholly dependent


@given(SEEDS)
@FEW
def test_agreement_reference_and_zero_where_one_view_is_the_prior(seed):
    words, picture = distributions(5, 4, seed), distributions(5, 4, seed + 1)
    prior = distributions(1, 4, seed + 2)[0]
    found = agreement(words.log(), picture.log(), prior)
    for i in range(5):
        slow = sum(float(words[i, z] * picture[i, z] / prior[z]) for z in range(4))
        assert found[i] == pytest.approx(math.log(slow), abs=1e-4)
    nothing = agreement(words.log(), prior.log().expand(5, 4), prior)
    assert nothing.abs().max() < 1e-4


@given(SEEDS)
@FEW
def test_temperature_agrees_at_least_as_well(seed):
    logits = 3 * torch.randn(60, 4, generator=generator(seed))
    words = (logits + torch.randn(60, 4, generator=generator(seed + 1))).log_softmax(1)
    prior = words.exp().mean(0)
    before = agreement(words, logits.log_softmax(1), prior).mean()
    after = Temperature.fitted(logits, words, prior)(logits)
    assert after.exp().sum(1).tolist() == pytest.approx([1.0] * 60, abs=1e-4)
    assert agreement(words, after, prior).mean() >= before - 1e-3


def test_temperature_flattens_a_picture_that_knows_nothing():
    words = distributions(400, 3, 0).log()
    noise = 10 * torch.randn(400, 3, generator=generator(1))
    found = Temperature.fitted(noise, words, words.exp().mean(0))(noise)
    assert found.exp().max(1)[0].mean() < 0.6


@given(SEEDS)
@FEW
def test_state_prior_reference(seed):
    q = distributions(7, 4, seed)
    slow = [(1 + sum(float(row[z]) for row in q)) / (7 + 4) for z in range(4)]
    assert state_prior(q).tolist() == pytest.approx(slow, abs=1e-5)


def test_a_state_that_nobody_is_in_is_no_certain_surprise():
    """Without pseudo-counts a picture that says none of these would agree best with words that exclude it."""
    words = torch.full((30, 4), 1e-7)
    words[torch.arange(30), torch.arange(30) % 3] = 1.0
    words[0, 3] = 1e-4
    words = (words / words.sum(1, keepdim=True)).log()
    right, none = torch.full((2, 1, 4), 1e-9)
    right[0, 0], none[0, 3] = 1.0, 1.0
    for prior, fooled in ((words.exp().mean(0), True), (state_prior(words.exp()), False)):
        gains = [float(agreement(words[:1], picture.log(), prior)) for picture in (right, none)]
        assert (gains[1] > gains[0]) == fooled


@given(SEEDS)
@FEW
def test_the_words_decide_on_none_of_these(seed):
    words, picture, prior = distributions(6, 5, seed), distributions(6, 5, seed + 1), even_prior(4, 0.1)
    found = among_classes(words.log(), picture.log(), prior, by=pool)
    assert torch.allclose(found[:, -1], words[:, -1], atol=1e-5)
    for row, (w, p) in enumerate(zip(words, picture, strict=True)):
        both = [float(w[c] * p[c]) for c in range(4)]
        slow = [(1 - float(w[4])) * each / sum(both) for each in both]
        assert torch.allclose(found[row, :4], torch.tensor(slow), atol=1e-4)


# --- single-label


def test_labels_are_mended_and_errors_found():
    x, text, classes, y, z = made_up(600, 4, seed=1)
    anchors = (text @ classes.T).max(1)[0] > 0.8
    found = single_label(x, [text], classes, y, anchors=anchors)
    label, decision, _ = decide(found.out_of_fold.q, y, anchors)
    assert (y == z).float().mean() < 0.85
    assert (label == z).float().mean() > 0.93
    assert ((decision == LabelDecision.RELABEL) & (y != z)).sum() > 0.8 * (y != z).sum()
    assert found.out_of_fold.q.sum(1).tolist() == pytest.approx([1.0] * 600, abs=1e-4)


def test_none_of_these_is_found():
    x, text, classes, y, z = made_up(600, 4, seed=2, noise=0.1, none=0.15, missing=0.1)
    found = single_label(x, [text], classes, y, anchors=(text @ classes.T).max(1)[0] > 0.8)
    dropped = found.out_of_fold.q.argmax(1) == 4
    assert (z[dropped] == 4).float().mean() > 0.8
    assert dropped[z == 4].float().mean() > 0.6


def test_an_anchor_can_lose_its_label():
    x, text, classes, y, z = made_up(400, 4, seed=3, noise=0.3)
    anchors = torch.ones(400, dtype=torch.bool)
    label = decide(single_label(x, [text], classes, y, anchors=anchors).out_of_fold.q, y, anchors).labels
    assert (label != y)[anchors & (y != z)].float().mean() > 0.7


def test_no_label_at_all():
    x, text, classes, _, z = made_up(500, 4, seed=4)
    found = single_label(x, [text], classes, torch.full((500,), -1))
    assert (found.out_of_fold.q.argmax(1) == z).float().mean() > 0.85


def test_no_text_at_all():
    x, _, classes, y, z = made_up(300, 4, seed=5)
    for texts in ([], [torch.zeros(300, 12)]):
        found = single_label(x, texts, classes, y)
        assert found.out_of_fold.q.isfinite().all()
        assert (found.out_of_fold.q.argmax(1) == z).float().mean() > (y == z).float().mean() - 0.02


def test_nothing_known_stays_finite():
    x, *_ = made_up(40)
    found = single_label(x, [], torch.eye(12)[:3], torch.full((40,), -1))
    assert found.out_of_fold.q.isfinite().all()


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
    found = single_label(x, [text], classes, y, anchors=anchors)
    assert found.out_of_fold.q.shape == (120, len(classes) + 1)
    assert found.out_of_fold.q.isfinite().all()
    assert found.out_of_fold.q.sum(1).tolist() == pytest.approx([1.0] * 120, abs=1e-4)
    if case == "duplicates":
        assert found.out_of_fold.q.std(0).max() < 0.1


def test_seeds_repeat():
    x, text, classes, y, _ = made_up(100)
    one, two = (single_label(x, [text], classes, y, rounds=2, seed=7).out_of_fold.q for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize("start", ["anchors", "no anchors"])
def test_samples_outside_of_the_fit_are_judged_nearly_as_well(start):
    x, text, classes, y, z = made_up(1200, 4, seed=5, noise=0.3, none=0.1)
    anchors = (text @ classes.T).max(1)[0] > 0.8 if start == "anchors" else None
    fit = slice(0, 800)
    found = single_label(
        x[fit], [text[fit]], classes, y[fit], anchors=None if anchors is None else anchors[fit]
    )
    seen, unseen = (
        found.judge(evidence(x[part], [text[part]], classes, y[part])) for part in (fit, slice(800, None))
    )
    right = (unseen.q.argmax(1) == z[800:]).float().mean()
    assert right > (found.out_of_fold.q.argmax(1) == z[fit]).float().mean() - 0.04
    assert right > (y[800:] == z[800:]).float().mean() + 0.1
    assert (seen.q.argmax(1) == found.out_of_fold.q.argmax(1)).float().mean() > 0.97
    assert (seen.words - found.out_of_fold.words).exp().sub(1).abs().median() < 0.2


def test_judging_others_goes_row_by_row_and_a_person_is_right():
    x, text, classes, y, _ = made_up(300, 3, seed=6)
    found = single_label(x, [text], classes, y, rounds=2)
    known = torch.full((300, 4), torch.nan)
    known[7] = torch.tensor([0.0, 0.0, 1.0, 0.0])
    whole = found.judge(everyone := evidence(x, [text], classes, y, settled=settled(known)))
    assert whole.q[7].tolist() == [0, 0, 1, 0]
    blocks = [found.judge(everyone.take(part)) for part in (slice(0, 100), slice(100, 300))]
    for name in Views._fields:
        parts = torch.cat([getattr(block, name) for block in blocks])
        assert torch.allclose(parts, getattr(whole, name), atol=1e-5)


def test_few_anchors_or_nearly_all_samples_as_anchors_are_no_start():
    x, text, classes, y, z = made_up(240, 8, seed=6, noise=0.2)
    free = single_label(x, [text], classes, y).out_of_fold.q
    for anchors in (torch.arange(240) < 8, torch.ones(240, dtype=torch.bool)):
        found = single_label(x, [text], classes, y, anchors=anchors).out_of_fold.q
        assert torch.equal(found, free)
    assert (free.argmax(1) == z).float().mean() > (y == z).float().mean() + 0.05


def test_anchors_that_are_a_choice_are_a_start():
    x, text, classes, y, _ = made_up(400, 4, seed=6, noise=0.2)
    chosen = torch.arange(400) < 80
    assert not torch.equal(
        single_label(x, [text], classes, y, anchors=chosen).out_of_fold.q,
        single_label(x, [text], classes, y).out_of_fold.q,
    )


# --- single-label, weights that all classes share


def test_classes_that_the_fit_never_saw_are_judged_like_the_others():
    classes = 300
    x, text, meanings, y, z = made_up(3000, classes, seed=3, noise=0.2)
    fit, rest = torch.arange(3000) < 200, torch.arange(3000) >= 200
    centres = Centres.of(Centring.of(x[fit])(x), y, classes)
    found = single_label(x[fit], [text[fit]], meanings, y[fit], centres=centres)
    judged = found.predict_proba(evidence(x[rest], [text[rest]], meanings, y[rest])).argmax(1)
    unseen = ~torch.isin(z[rest], z[fit])
    assert unseen.sum() > 900
    before = (y == z)[rest]
    assert (judged == z[rest])[unseen].float().mean() > before[unseen].float().mean() + 0.05
    # with weights of their own the unseen classes are lost
    own = single_label(x[fit], [text[fit]], meanings, y[fit])
    assert (own.predict_proba(evidence(x[rest], [text[rest]], meanings, y[rest])).argmax(1) == z[rest])[
        unseen
    ].float().mean() < before[unseen].float().mean()


def test_posteriors_are_probabilities_and_a_persons_word_stands():
    x, text, meanings, y, _ = made_up(80, 40, seed=5)
    known = torch.full((80, 41), torch.nan)
    known[3] = torch.nn.functional.one_hot(torch.tensor(7), 41)
    found = single_label(x, [text], meanings, y, centres=Centres.of(x, y, 40), settled=settled(known))
    assert torch.allclose(found.out_of_fold.q.sum(1), torch.ones(80), atol=1e-4)
    assert int(found.out_of_fold.q[3].argmax()) == 7


# --- multi-label


def test_tags_are_mended():
    x, title, classes, y, z = tagged()
    found = multi_label(x, [title], classes, y)
    label = decide_multi_label(found.out_of_fold.q, y).labels
    assert (label.clamp(min=0) == z).float().mean() > (
        y == z
    ).float().mean() + 0.05  # -1: it lost every label
    (tags,) = found.annotators
    assert tags.hit.mean() == pytest.approx(0.7, abs=0.1)
    assert tags.false.mean() == pytest.approx(0.12, abs=0.06)


def test_a_field_that_repeats_the_tags_gets_less_weight():
    x, title, classes, y, _ = tagged()
    album = normalize(y.float() @ classes, dim=1)
    found = multi_label(x, [title, album], classes, y)
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
    found = multi_label(x, texts, classes, y, names=names)
    assert found.out_of_fold.q.isfinite().all()
    assert ((found.out_of_fold.q >= 0) & (found.out_of_fold.q <= 1)).all()


def test_tags_outside_of_the_fit_are_judged_nearly_as_well():
    x, title, classes, y, z = tagged(900)
    found = multi_label(x[:600], [title[:600]], classes, y[:600])
    unseen = found.judge(evidence(x[600:], [title[600:]], classes, y[600:]))
    inside, outside = (
        ((found.out_of_fold.q > 0.5) == z[:600]).float().mean(),
        ((unseen.q > 0.5) == z[600:]).float().mean(),
    )
    assert outside > inside - 0.02
    assert outside > (y[600:] == z[600:]).float().mean() + 0.04
    again = found.judge(evidence(x[:600], [title[:600]], classes, y[:600]))
    assert torch.allclose(again.words, found.out_of_fold.words, atol=1e-4)


# --- an image-text model


def towers(z, texts, *, seed=0, knows=True):
    """Pictures of z, (n, C), prompts and one field of texts, in one space; a random tower knows nothing of z."""
    g, n = generator(seed + 100), len(z)
    prompts = normalize(torch.randn(z.shape[1], 24, generator=g), dim=1)
    if not knows:
        z, texts = z[torch.randperm(n, generator=g)], texts[torch.randperm(n, generator=g)]
    around = [
        normalize(part @ prompts + 0.25 * torch.randn(n, 24, generator=g), dim=1) for part in (z, texts)
    ]
    return JointVectors(around[0], prompts, [around[1] * texts.any(1, keepdim=True)])


def crawl(seed, n=400, classes=4):
    """Many wrong labels, hard pictures, and two texts in five that belong to another picture."""
    x, text, meanings, y, z = made_up(n, classes, seed=seed, noise=0.4)
    g = generator(seed)
    x = centred(x + 0.25 * torch.randn(x.shape, generator=g))
    moved = torch.where(torch.rand(n, generator=g) < 0.4, torch.randperm(n, generator=g), torch.arange(n))
    text, shown = text[moved], torch.eye(classes)[z]
    return x, text, meanings, y, z, (shown, shown[moved] * text.any(1, keepdim=True))


def right(views, z):
    return float((views.q.argmax(1) == z).float().mean())


@pytest.mark.parametrize(("seed", "labels"), [(0, True), (1, True), (0, False)])
def test_it_helps_single_label(seed, labels):
    x, text, classes, y, z, (shown, told) = crawl(seed)
    y, anchors = (y, (text @ classes.T).max(1)[0] > 0.8) if labels else (torch.full_like(y, -1), None)
    without = single_label(x, [text], classes, y, anchors=anchors)
    found = single_label(x, [text], classes, y, anchors=anchors, joint=towers(shown, told, seed=seed))
    assert right(found.out_of_fold, z) > right(without.out_of_fold, z) + 0.05
    assert found.zero_shot_weight > 1
    assert found.fit_weights[0] > 1  # texts of other pictures count less
    assert (without.zero_shot_weight, without.fit_weights) == (None, None)


@pytest.mark.parametrize("labels", [True, False])
def test_a_random_tower_does_no_harm_to_single_label(labels):
    gains = []
    for seed in range(3):  # another choice of folds moves one crawl by up to 0.03
        x, text, classes, y, z, (shown, told) = crawl(seed)
        near = (text @ classes.T).max(1)[0]  # the nearest fifth: anchors that are a choice
        y, anchors = (y, near > near.quantile(0.8)) if labels else (torch.full_like(y, -1), None)
        assert anchors is None or worth_a_start(anchors, len(classes))
        without = single_label(x, [text], classes, y, anchors=anchors)
        joint = towers(shown, told, seed=seed, knows=False)
        found = single_label(x, [text], classes, y, anchors=anchors, joint=joint)
        gains.append(right(found.out_of_fold, z) - right(without.out_of_fold, z))
        assert abs(found.zero_shot_weight) < 0.5
        assert found.fit_weights.abs().max() < 0.5
    assert sum(gains) / 3 > -0.02


@pytest.mark.parametrize("seed", [0, 1])
def test_it_helps_multi_label(seed):
    x, title, classes, y, z = tagged(400, seed=seed)
    x = centred(x + 0.5 * torch.randn(x.shape, generator=generator(seed)))
    told = z * title.any(1, keepdim=True)
    without, good, random = (
        multi_label(x, [title], classes, y, names=classes, joint=joint)
        for joint in (None, towers(z, told, seed=seed), towers(z, told, seed=seed, knows=False))
    )
    correct = [float(((found.out_of_fold.q > 0.5) == z).float().mean()) for found in (without, good, random)]
    assert correct[1] > correct[0] + 0.03
    assert correct[2] > correct[0] - 0.01
    assert good.zero_shot_weight > 1
    assert abs(random.zero_shot_weight) < 0.4
    assert good.fit_weights.shape == (1,)


def test_pictures_and_class_names_are_enough():
    x, _, classes, y, z, (shown, told) = crawl(2)
    joint = replace(towers(shown, told), texts=[])
    found = single_label(x, [], classes, torch.full_like(y, -1), joint=joint)
    assert right(found.out_of_fold, z) > 0.85
    assert found.zero_shot_weight == 3.0  # nothing to fit it to


@pytest.mark.parametrize("case", ["duplicates", "one class", "no text"])
def test_odd_towers_stay_finite(case):
    x, text, classes, y, _ = made_up(60)
    pictures, prompts = unit_rows(60, 6, 0), unit_rows(4, 6, 1)
    if case == "duplicates":
        pictures = pictures[:1].repeat(60, 1)
    if case == "one class":
        y, classes, prompts = torch.zeros_like(y), classes[:1], prompts[:1]
    texts = [] if case == "no text" else [text]
    joint = JointVectors(pictures, prompts, [torch.zeros(60, 6) for _ in texts])
    found = single_label(x, texts, classes, y, joint=joint)
    assert found.out_of_fold.q.isfinite().all()
    assert found.out_of_fold.q.sum(1).tolist() == pytest.approx([1.0] * 60, abs=1e-4)


def test_others_are_judged_with_towers_too():
    x, text, classes, y, z, (shown, told) = crawl(3)
    joint = towers(shown, told)
    found = single_label(x, [text], classes, y, joint=joint)
    again = found.judge(evidence(x, [text], classes, y, joint=joint))
    assert (again.q.argmax(1) == found.out_of_fold.q.argmax(1)).float().mean() > 0.95
    blind = single_label(x, [text], classes, torch.full_like(y, -1), joint=joint, rounds=1)
    unseen = blind.judge(evidence(x, [text], classes, torch.full_like(y, -1), joint=joint))
    assert right(unseen, z) > right(blind.out_of_fold, z) - 0.03


# --- several annotators


def share_right(annotator, classes):
    """P(answer = z | z), mean over classes."""
    table = annotator.evidence(torch.arange(classes)).exp()
    return float(table[range(classes), range(classes)].mean())


@pytest.mark.parametrize(("right", "gain"), [(0.9, 0.05), (0.25, -0.03)])
def test_every_annotator_counts_as_far_as_it_is_right(right, gain):
    x, _, classes, y, z = made_up(600, 4, seed=8, noise=0.45)
    g = generator(9)
    answers = torch.where(torch.rand(600, generator=g) < right, z, torch.randint(0, 4, (600,), generator=g))
    answers[torch.rand(600, generator=g) < 0.3] = -1  # it is silent on some
    alone = evidence(x + 0.25 * torch.randn(x.shape, generator=g), [], classes, y)
    both = replace(alone, answers=[y, answers])
    before, after = (SingleLabelPosterior().fit(each) for each in (alone, both))
    heard = answers >= 0
    correct = [float((each.out_of_fold.q.argmax(1) == z)[heard].float().mean()) for each in (before, after)]
    assert correct[1] > correct[0] + gain
    for annotator, own in zip(after.annotators, both.answers, strict=True):
        true = float((own == z)[own >= 0].float().mean())
        assert share_right(annotator, 4) == pytest.approx(true, abs=0.08)
    unseen = after.predict_proba(both.take(slice(0, 50)))
    assert (unseen.argmax(1) == after.out_of_fold.q[:50].argmax(1)).float().mean() > 0.9


def test_a_second_list_of_tags_counts_too():
    x, title, classes, y, z = tagged(500, seed=1)
    answers = torch.where(torch.rand(500, 4, generator=generator(1)) < 0.9, z, 1 - z).long()
    answers[:100] = -1
    alone = evidence(x + 0.25 * torch.randn(x.shape, generator=generator(2)), [title], classes, y)
    before, after = (
        MultiLabelPosterior().fit(each) for each in (alone, replace(alone, answers=[y, answers]))
    )
    correct = [float(((each.out_of_fold.q > 0.5) == z)[100:].float().mean()) for each in (before, after)]
    assert correct[1] > correct[0] + 0.01
    assert [float(each.hit.mean()) for each in after.annotators] == pytest.approx([0.7, 0.9], abs=0.05)
    assert [float(each.false.mean()) for each in after.annotators] == pytest.approx([0.12, 0.1], abs=0.03)


def test_what_is_sent_to_other_processes_holds_no_sample_of_the_fit():
    for n in (300, 900):
        x, text, classes, y, _ = made_up(n, 3, seed=6)
        model = single_label(x, [text], classes, y, rounds=2)
        sent = pickle.dumps(model.without_samples())
        assert len(sent) < 20_000
        others = evidence(x, [text], classes, y)
        assert torch.equal(pickle.loads(sent).predict_proba(others), model.predict_proba(others))
        assert len(model.out_of_fold.q) == n


# --- none of these on a crawl, annotators, and what people have checked


def messy_crawl(seed=0, n=600, classes=4, kinds=8):
    """Every text names the class searched for; a fifth of the pictures show one of `kinds` other things.

    The head knows all of these things, as an encoder's own classifier does.
    """
    g = generator(seed)
    centres = normalize(torch.randn(classes + kinds, 24, generator=g), dim=1)
    meanings = normalize(torch.randn(classes, 12, generator=g), dim=1)
    y = torch.arange(n) % classes
    strange = torch.rand(n, generator=g) < 0.2
    shown = torch.where(strange, classes + torch.randint(0, kinds, (n,), generator=g), y)
    x = centres[shown] * 3 + torch.randn(n, 24, generator=g) * 0.7
    text = normalize(meanings[y] + 0.2 * torch.randn(n, 12, generator=g), dim=1)
    own = torch.eye(classes + kinds)[:, :classes]
    head = HeadKinds(centres * 6, torch.zeros(classes + kinds), own, torch.zeros_like(own))
    return x, text, meanings, y, torch.where(strange, classes, y), head


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pictures_that_show_nothing_wanted_are_dropped_although_their_texts_name_the_class(seed):
    x, text, classes, y, z, head = messy_crawl(seed)
    near = (text @ classes.T).max(1)[0]
    anchors, none = near > near.quantile(0.8), z == len(classes)
    q = single_label(x, [text], classes, y, anchors=anchors, head=head).out_of_fold.q
    out = decide(q, y, anchors).labels < 0
    assert out[none].float().mean() > 0.7
    assert none[out].float().mean() > 0.8


def test_an_annotator_that_knows_helps_and_one_that_guesses_does_no_harm():
    helped = harmed = 0.0
    for seed in range(3):
        x, text, classes, y, z = made_up(400, seed=seed, noise=0.4, missing=0.6)
        g = generator(seed)
        x = centred(x + torch.randn(x.shape, generator=g))
        knows = torch.where(torch.rand(400, generator=g) < 0.9, z, torch.randint(0, 4, (400,), generator=g))
        guesses = torch.randint(-1, 5, (400,), generator=g)
        base = evidence(x, [text], classes, y)
        fits = [
            SingleLabelPosterior().fit(replace(base, answers=[y, *more])).out_of_fold
            for more in ([], [knows], [guesses])
        ]
        shares = [float((found.q.argmax(1) == z).float().mean()) for found in fits]
        helped, harmed = helped + shares[1] - shares[0], harmed + shares[0] - shares[2]
    assert helped / 3 > 0.02
    assert harmed / 3 < 0.02


def test_several_labels_are_reported_cautiously():
    x, title, classes, y, _ = tagged(seed=3)
    found = multi_label(x, [title], classes, y)
    views, prior = found.out_of_fold, found.prior.clamp(1e-4, 0.99).logit()
    assert 0 < float(found.answer_weights[0]) < 1
    share = torch.where(y > 0, 0.6, 0.3)
    assert torch.allclose(views.q, (views.words + share * views.picture).sigmoid(), atol=1e-5)
    whole = found.words.logits(
        found._read[0].evidence(y), TagTexts.of(evidence(x, [title], classes, y), None)
    )
    assert ((views.words - prior).abs() <= (whole - prior).abs() + 1e-4).float().mean() > 0.95


@pytest.mark.parametrize("multi", [False, True])
def test_answers_to_random_questions_calibrate(multi):
    x, text, classes, y, z = tagged(600, seed=5) if multi else made_up(600, noise=0.45, missing=0.5, seed=5)
    truth, fit = (z, MultiLabelPosterior) if multi else (one_hot(z, 5).float(), SingleLabelPosterior)
    base, at = evidence(x, [text], classes, y), torch.arange(0, 600, 5)

    def fitted(count, random):
        rows = at[:count]
        return fit().fit(replace(base, settled=Settled(rows, truth[rows], torch.full((count,), random))))

    few, chosen, checked = fitted(49, True), fitted(120, False), fitted(120, True)
    assert few.calibration == chosen.calibration == NO_CALIBRATION  # too few, and not drawn at random
    assert checked.calibration != NO_CALIBRATION
    assert torch.equal(checked.out_of_fold.q[at], truth[at])
    rest = torch.ones(600, dtype=torch.bool)
    rest[at] = False
    assert checked.judge(base.take(rest)).q.isfinite().all()
    if not multi:  # the order of the classes stays
        assert torch.equal(checked.out_of_fold.q.argmax(1), chosen.out_of_fold.q.argmax(1))


@given(SEEDS, st.booleans())
@FEW
def test_calibration_mends_scores_that_are_too_sure(seed, multi):
    p, n = distributions(2000, 4, seed), 2000
    if multi:
        truth = (torch.rand(n, 4, generator=generator(seed + 1)) < p).float()
        sure = (3 * p.logit()).sigmoid()
    else:
        truth = one_hot(torch.multinomial(p, 1, generator=generator(seed + 1))[:, 0], 4).float()
        sure = (3 * p.log()).softmax(1)
    rows = torch.arange(300)
    checked = Settled(rows, truth[rows], torch.ones(300, dtype=torch.bool))
    estimator = MultiLabelPosterior() if multi else SingleLabelPosterior()
    made = evidence(torch.zeros(n, 1), [], torch.eye(4), torch.zeros(n, dtype=torch.int64), settled=checked)
    q = estimator._calibrate(made, Views(sure, sure.log(), sure.log())).q
    assert estimator.calibration.scale == pytest.approx(1 / 3, abs=0.12)
    assert (q[300:] - p[300:]).abs().mean() < (sure[300:] - p[300:]).abs().mean() / 2
