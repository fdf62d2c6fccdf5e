from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capro.core.anchors import galleries, match, rivalry, text_distances
from capro.errors import ConfigError, DataError
from capro.graph.neighbors import nearest, unit_rows
from tests.graph import reference
from tests.graph.reference import cosine, vectors


def names(n, seed=0):
    """Ids whose order is not the order of the samples."""
    return [f"s{i:03d}" for i in np.random.default_rng(seed).permutation(n)]


def loop_distances(texts, prototype, k, *, own=False):
    """d* and d of a gallery in loops; the lists of neighbours are tested elsewhere."""
    near = nearest(np.vstack([prototype, texts]), k)
    V = reference.encoding(near.index, near.similarity, k, own=own)
    d = [1 - cosine(text, prototype) for text in texts]
    return [(d_i + reference.jaccard(V, 0, i + 1)) / 2 for i, d_i in enumerate(d)], d


def problem(seed=0, n=120, classes=4, d=8):
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, classes, n)
    prototypes = rng.normal(size=(classes, d))
    texts = rng.normal(size=(n, d)) + prototypes[labels] * rng.integers(0, 2, (n, 1))
    return texts, prototypes, labels


def rows(anchors):
    return list(zip(anchors.label.tolist(), anchors.sample.tolist(), strict=True))


def test_a_hand_value():
    # angles to the prototype: 5, 9 and 60 degrees; b and the prototype are each other's nearest
    angle = np.radians([9, 5, 60])
    texts = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    found = match(texts, [[1, 0]], [0, 0, 0], k=2, top_k=2, ids=["a", "b", "c"])
    assert found.sample.tolist() == [1, 0]
    assert found.rank.tolist() == [0, 1]
    assert found.label.tolist() == [0, 0]
    assert not found.random.any()
    # N(., 2): a {b, P}, b {a, P}, P {b, a}, c {a, b}: V_P = {a, b}, V_a = {b, P}, V_b = {a, P}
    e = np.exp(np.cos(np.radians([9, 5, 4])) - 1)  # a-P, b-P, a-b
    shared = np.array([min(e[1], e[2]), min(e[0], e[2])])  # of P with a, with b
    union = np.array([e[0] + e[1] + e[2] + e[0], e[0] + e[1] + e[2] + e[1]]) - shared
    d_star = (1 - np.cos(np.radians([9, 5])) + 1 - shared / union) / 2
    np.testing.assert_allclose(found.gallery.distance[:2], d_star, atol=1e-6)
    np.testing.assert_allclose(found.gallery.distance[2], (0.5 + 1) / 2, atol=1e-6)
    np.testing.assert_allclose(found.gallery.cosine, 1 - np.cos(angle), atol=1e-6)


@given(vectors(min_rows=1, max_rows=14), st.integers(1, 6), st.booleans())
def test_distances_equal_a_loop(x, k, own):
    x = unit_rows(x)
    texts, prototype = x[1:], x[0]
    d_star, d = text_distances(texts, prototype, k=k, own_neighbour=own)
    slow_star, slow = loop_distances(texts, prototype, k, own=own)
    np.testing.assert_allclose(d_star, slow_star, atol=1e-5)
    np.testing.assert_allclose(d, slow, atol=1e-5)


@given(vectors(min_rows=2, max_rows=14), st.integers(1, 4), st.integers(1, 9), st.integers(0, 99))
def test_anchors_equal_a_loop(x, k, top_k, seed):
    rng = np.random.default_rng(seed)
    classes = 3
    labels, ids = rng.integers(-1, classes, len(x)), names(len(x), seed)
    prototypes = x[rng.integers(0, len(x), classes)]
    found = match(x, prototypes, labels, k=k, top_k=top_k, ids=ids)
    expected = []
    for c in range(classes):
        gallery = sorted((i for i in range(len(x)) if labels[i] == c), key=lambda i: ids[i])
        if gallery:
            d_star, _ = text_distances(unit_rows(x[gallery]), unit_rows(prototypes)[c], k=k)
            pairs = sorted(
                zip(np.round(d_star.astype(float), 6), gallery, strict=True),
                key=lambda pair: (pair[0], ids[pair[1]]),
            )
            expected += [(c, i) for _, i in pairs[:top_k]]
    assert rows(found) == expected
    for c in range(classes):
        assert found.rank[found.label == c].tolist() == list(range((found.label == c).sum()))
    assert len(found.gallery.sample) == (labels >= 0).sum()


def test_anchors_are_those_of_their_gallery_rows():
    texts, prototypes, labels = problem()
    found = match(texts, prototypes, labels, k=5, top_k=10, ids=names(120), random_share=0.3)
    table = {
        key: values
        for key, *values in zip(
            rows(found.gallery), found.gallery.distance, found.gallery.cosine, strict=True
        )
    }
    assert len(table) == (labels >= 0).sum()
    for key, *values in zip(rows(found), found.distance, found.cosine, strict=True):
        assert table[key] == values


@pytest.mark.parametrize("settings", [{}, {"random_share": 0.4}, {"mode": "random"}, {"rerank": False}])
def test_a_permutation_of_samples_changes_nothing(settings):
    texts, prototypes, labels = problem()
    texts[40:80] = texts[:40]  # copies: ties
    texts[::11] = 0
    ids = names(120)
    order = np.random.default_rng(5).permutation(120)
    whole = match(texts, prototypes, labels, k=5, top_k=12, ids=ids, **settings)
    moved = match(
        texts[order], prototypes, labels[order], k=5, top_k=12, ids=[ids[i] for i in order], **settings
    )
    assert [ids[i] for i in whole.sample] == [ids[order[i]] for i in moved.sample]
    np.testing.assert_array_equal(whole.distance, moved.distance)


def test_membership_of_one_class_each_equals_labels():
    texts, prototypes, labels = problem()
    member = labels[:, None] == np.arange(4)
    ids = names(120)
    one = match(texts, prototypes, labels, k=5, top_k=7, ids=ids)
    many = match(texts, prototypes, member, k=5, top_k=7, ids=ids)
    assert rows(one) == rows(many)
    np.testing.assert_array_equal(one.gallery.distance, many.gallery.distance)


def test_a_sample_with_two_labels_is_in_both_galleries():
    texts = np.array([[1, 0], [0, 1], [1, 1]])
    member = np.array([[1, 0], [0, 1], [1, 1]])
    found = match(texts, np.eye(2), member, k=1, top_k=5, ids=["a", "b", "c"])
    assert rows(found) == [(0, 0), (0, 2), (1, 1), (1, 2)]
    np.testing.assert_allclose(found.cosine, [0, 1 - 0.5**0.5] * 2, atol=1e-6)


def test_ties_go_by_id():
    texts = np.tile(np.random.default_rng(0).normal(size=(1, 50)), (40, 1))
    ids = names(40)
    found = match(texts, np.ones((1, 50)), np.zeros(40, int), k=3, top_k=40, ids=ids, rerank=False)
    assert [ids[i] for i in found.sample] == sorted(ids)


@pytest.mark.parametrize("n", [5, 17, 40, 203])
def test_equal_texts_have_equal_distances(n):
    rng = np.random.default_rng(n)
    texts = np.tile(rng.normal(size=(1, 383)), (n, 1))
    found = match(texts, rng.normal(size=(1, 383)), np.zeros(n, int), k=3, top_k=1, ids=names(n))
    assert len(set(found.gallery.cosine.tolist())) == 1


def test_rounding_is_a_tie():
    angle = np.radians(60) + np.array([0, 3e-7])
    texts = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    found = match(texts, [[1, 0]], [0, 0], k=1, top_k=2, ids=["b", "a"], rerank=False)
    assert found.cosine[0] > found.cosine[1]
    assert found.sample.tolist() == [1, 0]


def test_missing_texts_come_before_those_that_point_away():
    texts = [[-1, 0.1], [0, 0], [1, 0.1]]
    found = match(texts, [[1, 0]], [0, 0, 0], k=1, top_k=3, ids=["a", "b", "c"])
    assert found.sample.tolist() == [2, 1, 0]
    assert np.isnan([found.distance[1], found.cosine[1]]).all()  # no text, no distance
    assert found.by.tolist() == ["text", "picture", "text"]


def test_without_texts_the_most_typical_pictures_are_anchors():
    pictures = np.array(
        [[0, 1.0], [1, 0.1], [1, 0], [1, 0.2], [0, 0]]
    )  # a is unlike the others, e unreadable
    found = match(
        np.zeros((5, 2)), [[1, 0]], [0] * 5, k=1, top_k=3, ids=["a", "b", "c", "d", "e"], pictures=pictures
    )
    unit = pictures / np.linalg.norm(pictures, axis=1, keepdims=True).clip(min=1e-9)
    likeness = [float(row @ unit.mean(axis=0)) for row in unit]
    assert found.sample.tolist() == sorted(range(5), key=lambda row: -likeness[row])[:3]
    assert 0 not in found.sample
    assert found.by.tolist() == ["picture"] * 3
    assert np.isnan(found.gallery.distance).all()


def test_one_class_without_texts_changes_nothing_for_the_others():
    rng = np.random.default_rng(0)
    texts, labels, pictures = rng.normal(size=(20, 4)), np.arange(20) % 2, rng.normal(size=(20, 3))
    options = {"k": 2, "top_k": 4, "ids": names(20), "pictures": pictures}
    before = match(texts, np.eye(2, 4), labels, **options)
    after = match(texts * (labels == 0)[:, None], np.eye(2, 4), labels, **options)
    assert after.sample[after.label == 0].tolist() == before.sample[before.label == 0].tolist()
    assert after.by.tolist() == ["text"] * 4 + ["picture"] * 4


def test_empty_class_one_sample_no_sample():
    found = match([[1, 0], [0, 1]], np.ones((3, 2)), [2, -1], k=4, top_k=5, ids=["a", "b"])
    assert rows(found) == [(2, 0)]
    nothing = match(np.zeros((0, 2)), np.ones((3, 2)), np.zeros(0, int), k=4, top_k=5, ids=[])
    assert rows(nothing) == rows(nothing.gallery) == []
    assert nothing.sample.dtype == np.int32
    assert nothing.distance.dtype == np.float32


def test_an_undefined_prototype_takes_ids_in_order():
    found = match(np.eye(3), np.zeros((1, 3)), [0, 0, 0], k=1, top_k=2, ids=["c", "a", "b"])
    assert found.sample.tolist() == [1, 2]
    assert found.distance.tolist() == [1, 1]


def test_without_reranking_the_distance_is_the_cosine():
    texts, prototypes, labels = problem()
    found = match(texts, prototypes, labels, k=5, top_k=10, ids=names(120), rerank=False)
    np.testing.assert_array_equal(found.gallery.distance, found.gallery.cosine)
    for c in range(4):
        assert (np.diff(found.cosine[found.label == c]) >= -1e-6).all()


@given(st.floats(0, 1), st.integers(1, 40), st.integers(0, 9))
def test_random_share(share, top_k, seed):
    texts, prototypes, labels = problem()
    ids = names(120)
    plain = match(texts, prototypes, labels, k=5, top_k=top_k, ids=ids, rerank=False)
    found = match(
        texts, prototypes, labels, k=5, top_k=top_k, ids=ids, rerank=False, random_share=share, seed=seed
    )
    for c in range(4):
        mine, size = found.label == c, min(top_k, (labels == c).sum())
        chosen = found.sample[mine]
        drawn = found.random[mine]
        assert mine.sum() == len(set(chosen.tolist())) == size
        assert abs(drawn.sum() - share * size) <= 0.5
        assert (labels[chosen] == c).all()
        top = plain.sample[plain.label == c]
        np.testing.assert_array_equal(chosen[~drawn], top[: (~drawn).sum()])


def test_random_draws_are_seeded_and_even():
    n = 50
    texts = np.random.default_rng(0).normal(size=(n, 4))
    arguments = {"k": 2, "top_k": 10, "ids": names(n), "mode": "random", "rerank": False}

    def draw(seed):
        return match(texts, np.ones((1, 4)), np.zeros(n, int), seed=seed, **arguments)

    np.testing.assert_array_equal(draw(1).sample, draw(1).sample)
    assert draw(1).random.all()
    counts = np.bincount(np.concatenate([draw(seed).sample for seed in range(400)]), minlength=n)
    assert counts.mean() == 80
    assert counts.min() > 40  # 80 +- 8: a bias to near texts would leave the far ones out
    assert counts.max() < 120


def test_reranking_trusts_a_neighbourhood():
    # five texts of one sense hold together around the prototype; a lone one is a little nearer
    rng = np.random.default_rng(0)
    prototype = np.eye(1, 30)[0]
    sense = prototype + 0.5 * np.eye(30)[1] + 0.02 * rng.normal(size=(5, 30))
    lone = prototype + 0.45 * np.eye(30)[2]
    other = np.eye(30)[2] + 0.2 * rng.normal(size=(12, 30))
    texts = np.vstack([lone, sense, other])
    arguments = {"k": 5, "top_k": 1, "ids": [f"{i:02d}" for i in range(18)]}
    labels = np.zeros(18, int)
    cosine_only = match(texts, prototype[None], labels, rerank=False, **arguments)
    assert cosine_only.sample.tolist() == [0]
    assert match(texts, prototype[None], labels, **arguments).sample[0] in range(1, 6)


def test_galleries_keep_the_order_of_ids():
    assert [g.tolist() for g in galleries([0, 1, 0], ["b", "é", "a"], 3, 3)] == [[2, 0], [1], []]


def test_messages():
    good = {"k": 1, "top_k": 1, "ids": ["a", "b"]}
    with pytest.raises(DataError, match="texts of class 1: row 0 holds NaN"):
        match([[1, 0], [np.nan, 1]], np.eye(2), [0, 1], **good)
    with pytest.raises(ConfigError, match="k must be at least 1, got 0"):
        match(np.eye(2), np.eye(2), [0, 1], **good | {"k": 0})


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 1000))
def test_rivalry_equals_a_loop(n: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts, prototypes = (
        (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
        for x in (rng.normal(size=(n, 5)), rng.normal(size=(classes, 5)))
    )
    texts[rng.random(n) < 0.2] = 0
    for c in range(classes):
        slow = [
            max([0.0, *(float(t @ prototypes[o] - t @ prototypes[c]) for o in range(classes) if o != c)])
            for t in texts
        ]
        np.testing.assert_allclose(rivalry(texts, prototypes, c), slow, atol=1e-5)


def test_contrast_puts_a_text_of_another_class_last() -> None:
    prototypes = np.array([[1, 0, 0], [0, 1, 0]], np.float32)
    texts = np.array([[0.6, 0.8, 0], [0.55, 0, 0.83]], np.float32)  # nearer to class 0, but a rival's
    found = match(texts, prototypes, [0, 0], k=1, top_k=1, ids=["a", "b"], rerank=False)
    assert found.sample.tolist() == [0]
    found = match(texts, prototypes, [0, 0], k=1, top_k=1, ids=["a", "b"], rerank=False, contrast=1.0)
    assert found.sample.tolist() == [1]


@given(st.integers(1, 40), st.floats(0.01, 1.0), st.integers(1, 20))
def test_anchors_are_at_most_a_share_of_their_class(size, share, top_k):
    texts = np.random.default_rng(size).normal(size=(size, 4)).astype(np.float32)
    chosen = match(
        texts, [[1, 0, 0, 0]], np.zeros(size, np.int64), k=3, top_k=top_k, top_share=share,
        ids=[f"{row:03d}" for row in range(size)],
    )  # fmt: skip
    whole = match(
        texts,
        [[1, 0, 0, 0]],
        np.zeros(size, np.int64),
        k=3,
        top_k=size,
        ids=[f"{row:03d}" for row in range(size)],
    )
    assert len(chosen.sample) == min(top_k, math.ceil(share * size))
    assert chosen.sample.tolist() == whole.sample[: len(chosen.sample)].tolist()  # the nearest stay
