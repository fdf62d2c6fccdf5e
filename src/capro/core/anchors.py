"""Text matching: which samples of a class have a text that means the class (Eq. 3 and 4).

Each class is a small graph of its own: its gallery (every sample with that web label) and its
textual prototype as one more node. Decided here, beyond the paper:

- The gallery is taken in the order of sample ids: ids break ties among neighbours too, and nothing
  depends on the order of the samples.
- Distances that agree to six decimals are ties: what is beyond is rounding of float32.
- Far from the prototype no neighbour is shared: d_J is 1, d* = (d + 1) / 2 keeps the order of d.
- A missing text (zero vector) has no distance (nan). In the order of a class such samples stand where distance 1
  would be, before texts that point away, and among themselves by how typical their picture is of the class:
  the cosine to the mean picture of the gallery. What was chosen so says it (`Anchors.by`).

Cost per class with m samples: a k-NN search, O(m^2 d) when exact; then O(m (k + d)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from capro.graph.neighbors import ROWS, nearest, unit_rows
from capro.graph.ondisk import Floats, Ints, release
from capro.graph.rerank import encoding, jaccard_distance

if TYPE_CHECKING:
    import pandas as pd

Mode = Literal["text", "random"]
DECIMALS = 6
UNKNOWN = 1.0  # where a sample without a text stands in the order of distances


@dataclass(frozen=True)
class Distances:
    """Text distance of every sample to each class it carries: sorted by class, then by sample id.

    Attributes:
        label: class, (m,).
        sample: row of the sample, (m,).
        distance: d*, (m,); d itself without re-ranking; plus the contrast, where there is one; nan without a text.
        cosine: d, the cosine distance in [0, 2], (m,); nan without a text.
    """

    label: Ints
    sample: Ints
    distance: Floats
    cosine: Floats


@dataclass(frozen=True)
class Anchors(Distances):
    """The anchors D_K (Eq. 4): sorted by class, then by rank.

    Attributes:
        label: class, (a,).
        sample: row of the sample, (a,).
        distance: d*, (a,).
        cosine: d, (a,).
        rank: place within the class, from 0, (a,); randomly drawn anchors come last, as drawn.
        by: what chose an anchor, (a,): its text, its picture where it has no text, or chance.
        gallery: the same distances for all samples, anchors or not.
    """

    rank: Ints
    by: NDArray[np.object_]
    gallery: Distances

    @property
    def random(self) -> NDArray[np.bool_]:
        """Whether an anchor was drawn at random, (a,)."""
        return np.asarray(self.by == "chance")


def match(
    texts: ArrayLike,
    prototypes: ArrayLike,
    labels: ArrayLike,
    *,
    k: int,
    top_k: int,
    top_share: float = 1.0,
    ids: Sequence[str],
    pictures: NDArray[Any] | None = None,
    random_share: float = 0.0,
    mode: Mode = "text",
    seed: int = 0,
    rerank: bool = True,
    own_neighbour: bool = False,
    contrast: float = 0.0,
    exact_below: int = 200_000,
) -> Anchors:
    """Choose the anchors of each class, the K samples with texts nearest to the prototype, Eq. 4.

    Args:
        texts: s_hat, (n, d_t), enhanced texts; zero rows are missing texts.
        prototypes: s^c, (c, d_t), textual prototypes.
        labels: web labels: (n,) classes with -1 for none, or (n, c) membership.
        k: neighbourhood size of Eq. 3.
        top_k: K; a class with fewer samples gives them all, a class without samples none.
        top_share: share of a class's samples that are anchors at most, one of them in any case.
        ids: (n,) sample ids, which break ties.
        pictures: v, (n, d), visual features, which order samples without a text; by their ids if None.
        random_share: share of a class's anchors drawn at random from the rest of its gallery.
        mode: `text`, or `random` for the ablation's baseline.
        seed: of the random draws; each class has its own stream.
        rerank: d* of Eq. 3; False orders by cosine alone.
        own_neighbour: a text is in its own R(x, k), see `capro.graph.rerank.encoding`.
        contrast: weight of `rivalry`; 0 is Eq. 4. Not multi-label: a text may be near to all.
        exact_below: see `capro.graph.neighbors.nearest`.

    >>> texts = [[1, 0], [0.9, 0.1], [0, 1], [0, 0]]
    >>> found = match(texts, [[1, 0.2]], [0, 0, 0, 0], k=1, top_k=2, ids=["a", "b", "c", "d"])
    >>> found.sample.tolist(), found.rank.tolist()
    ([1, 0], [0, 1])
    >>> found.gallery.cosine.round(2).tolist()
    [0.019999999552965164, 0.0, 0.800000011920929, nan]
    """
    s, s_c = np.asanyarray(texts), unit_rows(prototypes, "prototypes")
    members = galleries(labels, ids, len(s), len(s_c))
    how = {"k": k, "rerank": rerank, "own_neighbour": own_neighbour, "exact_below": exact_below}
    whole = _measured(s, s_c, members, contrast=contrast, **how)
    ends = np.searchsorted(whole.label, np.arange(len(s_c) + 1))
    chosen = []
    for c, (a, b) in enumerate(pairwise(ends)):
        unknown = np.isnan(whole.distance[a:b]).any()
        v = pictures[whole.sample[a:b]] if unknown and pictures is not None else None
        order = _order(whole.distance[a:b], v)
        most = min(top_k, math.ceil(top_share * (b - a)))
        chosen.append(_choose(order, most, random_share, mode, np.random.default_rng([seed, c])))
    if pictures is not None:
        release(pictures)
    at = _flat([begin + places for begin, (places, _) in zip(ends, chosen, strict=False)], np.int64)
    columns: dict[str, Any] = {name: values[at] for name, values in vars(whole).items()}
    by_chance = _flat([drawn for _, drawn in chosen], np.bool_)
    by_text = ~np.isnan(columns["distance"])
    return Anchors(
        **columns,
        rank=_flat([np.arange(len(places)) for places, _ in chosen], np.int32),
        by=np.select([by_chance, by_text], ["chance", "text"], "picture").astype(object),
        gallery=whole,
    )


def _measured(
    s: NDArray[Any], s_c: Floats, members: list[Ints], *, contrast: float, **options: Any
) -> Distances:
    """The distances of every gallery, one class after the other; ``options`` of `text_distances`."""
    stars, cosines = [], []
    for c, gallery in enumerate(members):
        s_i = unit_rows(s[gallery], f"texts of class {c}")
        d_star, d = text_distances(s_i, s_c[c], **options)
        has_text = s_i.any(axis=1)
        star = d_star + contrast * rivalry(s_i, s_c, c) if contrast else d_star
        stars.append(np.where(has_text, star, np.nan))
        cosines.append(np.where(has_text, d, np.nan))
        if c % 16 == 15:  # scattered rows of mapped texts stay resident otherwise
            release(s)
    label = np.repeat(np.arange(len(members), dtype=np.int32), [len(gallery) for gallery in members])
    return Distances(label, _flat(members, np.int32), _flat(stars, np.float32), _flat(cosines, np.float32))


def _flat(parts: Sequence[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, kind), *parts]).astype(kind)


def rivalry(texts: Floats, prototypes: Floats, c: int) -> Floats:
    """How much nearer each text is to another class's text than to its own: beyond the paper.

    "worm snake" carries the query *worm*, but its text is nearer to the class *snake*: such a
    sample should not anchor *worm*. O(m C d).

    Args:
        texts: s_hat of the gallery, (m, d_t), unit rows or zero.
        prototypes: s^c of all classes, (C, d_t), unit rows.
        c: the gallery's class.

    Returns:
        max(0, max_{c' != c} s_hat . s^c' - s_hat . s^c), (m,); 0 with one class or no text.

    >>> rivalry(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), 0).tolist()
    [0.0, 1.0]
    """
    if len(prototypes) < 2:
        return np.zeros(len(texts), np.float32)
    similarity = texts @ prototypes.T  # (m, C)
    own = similarity[:, c].copy()
    similarity[:, c] = -np.inf
    result: Floats = np.maximum(0, similarity.max(axis=1) - own)
    return result


def text_distances(
    texts: Floats,
    prototype: Floats,
    *,
    k: int,
    rerank: bool = True,
    own_neighbour: bool = False,
    exact_below: int = 200_000,
) -> tuple[Floats, Floats]:
    """Measure a gallery against its prototype, d* = (d + d_J) / 2, Eq. 3.

    Args:
        texts: (m, d_t), unit rows or zero.
        prototype: (d_t,), unit or zero.
        k: neighbourhood size.
        rerank: False gives d for d* too.
        own_neighbour: see `capro.graph.rerank.encoding`.
        exact_below: see `capro.graph.neighbors.nearest`.

    Returns:
        d* and the cosine distance d, (m,) each.
    """
    m = len(texts)
    d: Floats = np.empty(m, np.float32)
    for start in range(0, m, ROWS):
        # not a matrix product: there, equal texts may differ in the last bit by their position
        product = texts[start : start + ROWS] * prototype
        d[start : start + ROWS] = 1 - product.sum(axis=1)
    d = np.clip(d, 0, 2)
    if not rerank or m == 0:
        return d, d
    # the prototype goes first: among equal neighbours it is taken, or its neighbourhood is lost
    near = nearest(np.vstack([prototype, texts]), k, exact_below=exact_below)
    V = encoding(near, k, own=own_neighbour)
    d_J = jaccard_distance(V, np.zeros(m, np.int64), np.arange(1, m + 1))
    return (d + d_J) * np.float32(0.5), d


def galleries(labels: ArrayLike, ids: Sequence[str], samples: int, classes: int) -> list[Ints]:
    """List the samples of each class in the order of their ids, from either form of labels.

    >>> [g.tolist() for g in galleries([1, 0, -1, 1], ["d", "c", "b", "a"], 4, 2)]
    [[1], [3, 0]]
    >>> [g.tolist() for g in galleries([[1, 0], [1, 1]], ["b", "a"], 2, 2)]
    [[1, 0], [1]]
    """
    y = np.asarray(labels)
    if y.ndim == 2:
        sample, label = y.nonzero()
    else:
        sample = np.flatnonzero(y >= 0)
        label = y[sample]
    place = np.empty(samples, np.int64)
    place[sorted(range(samples), key=ids.__getitem__)] = np.arange(samples)
    order = np.lexsort((place[sample], label))
    ends = np.searchsorted(label[order], np.arange(classes + 1))
    ordered = sample[order].astype(np.int32)
    return [ordered[a:b] for a, b in pairwise(ends)]


def _order(d_star: Floats, pictures: NDArray[Any] | None) -> NDArray[np.int64]:
    """Places of a gallery from the nearest text to the farthest, (m,); without a text by the picture."""
    known = ~np.isnan(d_star)
    distance = np.where(known, np.round(d_star.astype(np.float64), DECIMALS), UNKNOWN)
    likeness = np.zeros(len(d_star))
    if pictures is not None:
        v = unit_rows(pictures, "pictures")
        mean = v.mean(axis=0, dtype=np.float64)
        likeness = np.where(known, 0.0, np.round(v @ mean, DECIMALS))
    return np.lexsort((-likeness, distance))


def _choose(
    order: NDArray[np.int64], top_k: int, share: float, mode: Mode, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Places of the anchors in a gallery, and which of them were drawn at random."""
    size = min(top_k, len(order))
    drawn = size if mode == "random" else int(share * size + 0.5)
    top, rest = order[: size - drawn], order[size - drawn :]
    by_chance = rng.permutation(np.sort(rest))[:drawn]  # sorted: the draw does not depend on distances
    return np.concatenate([top, by_chance]), np.arange(size) >= len(top)


def anchor_choice(anchors: pd.DataFrame) -> NDArray[np.object_]:
    """What chose each anchor: `text`, `picture` (it has no text), `chance` or `person`."""
    return anchors["chosen_by"].to_numpy(dtype=object)
