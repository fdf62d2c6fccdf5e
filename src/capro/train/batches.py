"""Batches: which samples, on which rank, and their two views as network input.

Everything random is a function of (seed, epoch, sample), and a batch a function of (seed, epoch,
step): workers, ranks and a resume change nothing.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.config import ViewSettings
from capro.data.pixels import Pixels
from capro.data.views import KEY, QUERY, KeyAugment, center, crop, normalise, to_float, view_rng
from capro.models.backbones import Backbone
from capro.pipeline.checksums import seed_for

T = TypeVar("T")
R = TypeVar("R")
PLAIN = -1  # the view without augmentation
EVAL_BATCH = 256  # samples of a block without augmentation
THREADS = (2, 16)  # that prepare batches while the network works on another: at least, at most


def workers(ranks: int) -> int:
    """Threads that prepare batches: a rank's share of the cores, within bounds; decides no value."""
    low, high = THREADS
    return max(low, min(high, (os.cpu_count() or 1) // ranks))


class Inputs:
    """Where network input comes from: images that are decoded and augmented, or cached features."""

    def raw(self, positions: NDArray[np.int64], *, epoch: int, view: int) -> NDArray[Any]:
        """The host's part of a view, in a worker thread; rows in the order of ``positions``."""
        raise NotImplementedError

    def ready(
        self, raw: NDArray[Any], positions: NDArray[np.int64], *, epoch: int, view: int, device: torch.device
    ) -> Tensor:
        """The device's part: the network's input. Features are ready as they are."""
        del positions, epoch, view
        return torch.from_numpy(raw).to(device)


class ImageInputs(Inputs):
    """Full mode: crops on the host, colours by kornia on the device."""

    def __init__(self, pixels: Pixels, backbone: Backbone, settings: ViewSettings, *, seed: int) -> None:
        self._pixels = pixels
        self._size = settings.size or backbone.size
        self._mean, self._std = backbone.mean, backbone.std
        self._scale = {QUERY: settings.crop_scale, KEY: settings.key_crop_scale or settings.crop_scale}
        self._flip = settings.flip
        self._seed = seed_for(seed, "views")
        self._augment = KeyAugment(jitter=settings.jitter, grey=settings.grey, blur=settings.blur)

    def raw(self, positions: NDArray[np.int64], *, epoch: int, view: int) -> NDArray[np.uint8]:
        """Crops, (b, size, size, 3), or 4 with a filler as Pillow's memory has it."""
        return self.raws([(positions, view)], epoch=epoch)[0]

    def raws(
        self,
        views: Sequence[tuple[NDArray[np.int64], int]],
        *,
        epoch: int,
        buffers: Sequence[NDArray[np.uint8]] = (),
    ) -> list[NDArray[np.uint8]]:
        """``raw`` of several views; an image that is in more than one is decoded once.

        Args:
            views: Positions and view of each.
            epoch: Epoch.
            buffers: Arrays of an earlier call that nobody needs any more, to write into: fresh pages
                cost a tenth of the time.
        """
        shape = (self._size, self._size, self._pixels.channels)
        if len(buffers) != len(views) or any(
            len(buffer) < len(positions) for buffer, (positions, _) in zip(buffers, views, strict=True)
        ):
            buffers = [np.empty((len(positions), *shape), np.uint8) for positions, _ in views]
        out = [buffer[: len(positions)] for buffer, (positions, _) in zip(buffers, views, strict=True)]
        places: dict[int, list[tuple[int, int]]] = {}
        for number, (positions, _) in enumerate(views):
            for place, position in enumerate(positions.tolist()):
                places.setdefault(position, []).append((number, place))
        for position, wanted in places.items():
            image = self._pixels.pixels(position)
            for number, place in wanted:
                self._crop(image, position, epoch, views[number][1], out[number][place])
        return out

    def _crop(
        self, image: NDArray[np.uint8], position: int, epoch: int, view: int, out: NDArray[np.uint8]
    ) -> None:
        if view == PLAIN:
            center(image, self._size, out=out)
            return
        rng = view_rng(self._seed, epoch, position, view)
        crop(image, rng, size=self._size, scale=(self._scale[view], 1.0), flip=self._flip, out=out)

    def ready(
        self, raw: NDArray[Any], positions: NDArray[np.int64], *, epoch: int, view: int, device: torch.device
    ) -> Tensor:
        """Normalised images, (b, 3, size, size)."""
        images = torch.from_numpy(raw).to(device)[..., :3].permute(0, 3, 1, 2)
        images = to_float(images.contiguous())
        if view == KEY:
            images = self._augment(images, self._augment.draw(self._seed, epoch, positions))
        return normalise(images, self._mean, self._std)


class FeatureInputs(Inputs):
    """Frozen mode: features of a few augmented views, computed once.

    Args:
        plain: Features of every sample without augmentation, (n, d_v).
        query: Features of query views of the training rows, (V, n_train, d_v).
        key: Features of key views of the training rows, (V', n_train, d_v).
        rows: Training row of each manifest position, -1 for others.
        seed: Decides which view a sample shows in an epoch.
    """

    def __init__(
        self,
        plain: NDArray[np.float32],
        query: NDArray[np.float32],
        key: NDArray[np.float32],
        rows: NDArray[np.int64],
        *,
        seed: int,
    ) -> None:
        self._plain, self._views = plain, {QUERY: query, KEY: key}
        self._rows = rows
        self._seed = seed_for(seed, "views")
        self._choice = lru_cache(maxsize=8)(self._choose)

    def raw(self, positions: NDArray[np.int64], *, epoch: int, view: int) -> NDArray[np.float32]:
        """Feature rows, (b, d_v)."""
        if view == PLAIN:
            return np.asarray(self._plain[positions])
        rows = self._rows[positions]
        return np.asarray(self._views[view][self._choice(epoch, view)[rows], rows])

    def _choose(self, epoch: int, view: int) -> NDArray[np.int64]:
        """Which of the cached views each sample shows in this epoch."""
        views = self._views[view]
        rng = view_rng(self._seed, epoch, 0, view)
        return np.asarray(rng.integers(0, views.shape[0], size=views.shape[1]))


@dataclass(frozen=True)
class Batch:
    """One rank's part of a global batch of B samples.

    ``everyone`` are the rows of the training set in the global batch, ``mine`` this rank's part of
    it. Key views go through the network in ``key_order``, so that with several ranks a rank's
    BatchNorm sees other keys than its own queries (shuffled BN); no image travels for that.
    """

    epoch: int
    step: int
    everyone: NDArray[np.int64]  # (B,)
    mine: slice
    query: Tensor  # this rank's (b, ...)
    key: Tensor | None  # this rank's part of the reordered keys
    key_order: NDArray[np.int64]  # (B,)

    @property
    def samples(self) -> NDArray[np.int64]:
        """This rank's rows of the training set, (b,)."""
        return self.everyone[self.mine]


@dataclass(frozen=True)
class BatchPlan:
    """How the rows of a training set fall into batches.

    An epoch's permutation is cut into equal parts (sizes differ by one at most), so that no sample
    is left out and no batch is tiny; a part is cut the same way over the ranks.
    """

    rows: int
    batch_size: int
    seed: int

    @property
    def steps(self) -> int:
        """Batches per epoch."""
        return max(1, -(-self.rows // self.batch_size))

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """The global batches of an epoch."""
        order = np.random.default_rng([self.seed, epoch]).permutation(self.rows)
        return np.array_split(order, self.steps)

    def key_order(self, epoch: int, step: int, size: int) -> NDArray[np.int64]:
        """The order in which a global batch's keys are computed."""
        return np.random.default_rng([self.seed, epoch, step]).permutation(size)


def slices(size: int, ranks: int) -> list[slice]:
    """Cut a global batch over the ranks.

    >>> slices(5, 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    edges = np.cumsum([0] + [len(part) for part in np.array_split(np.arange(size), ranks)])
    return [slice(a, b) for a, b in itertools.pairwise(edges.tolist())]


def load_batches(
    inputs: Inputs,
    plan: BatchPlan,
    positions: NDArray[np.int64],
    *,
    epoch: int,
    first: int,
    keys: bool,
    rank: int,
    ranks: int,
    device: torch.device,
) -> Iterator[Batch]:
    """The batches of an epoch from step ``first`` on, prepared ahead in threads.

    Args:
        inputs: Where the views come from.
        plan: Which samples.
        positions: Position in the manifest of each training row.
        epoch: Epoch.
        first: Steps to leave out: a resumed run has done them.
        keys: Whether key views are wanted.
        rank: This rank.
        ranks: How many there are.
        device: Where the input goes.
    """
    images = inputs if isinstance(inputs, ImageInputs) and keys else None
    spare: deque[list[NDArray[np.uint8]]] = deque()  # buffers whose batch is on the device

    def prepare(job: tuple[int, NDArray[np.int64]]) -> tuple[Any, ...]:
        step, everyone = job
        mine = slices(len(everyone), ranks)[rank]
        order = plan.key_order(epoch, step, len(everyone))
        views = [(positions[everyone[mine]], QUERY), (positions[everyone[order[mine]]], KEY)][: 1 + keys]
        if images is None:
            return mine, order, views, [inputs.raw(at, epoch=epoch, view=view) for at, view in views]
        with suppress(IndexError):
            return mine, order, views, images.raws(views, epoch=epoch, buffers=spare.popleft())
        return mine, order, views, images.raws(views, epoch=epoch)

    jobs = list(enumerate(plan.batches(epoch)))[first:]
    # batches come out in order: while one is late, others go on
    for (step, everyone), prepared in _ahead(prepare, jobs, threads=workers(ranks), ahead=2 * workers(ranks)):
        mine, order, views, raws = prepared
        query, *key = [
            inputs.ready(raw, at, epoch=epoch, view=view, device=device)
            for raw, (at, view) in zip(raws, views, strict=True)
        ]
        if images is not None:
            spare.append([raw if raw.base is None else raw.base for raw in raws])
        yield Batch(epoch, step, everyone, mine, query, key[0] if key else None, order)


def plain_batches(
    inputs: Inputs, positions: NDArray[np.int64], *, device: torch.device
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """Unaugmented input in the given order, in blocks: row numbers and network input."""
    count = len(positions)
    blocks = [np.arange(at, min(at + EVAL_BATCH, count)) for at in range(0, count, EVAL_BATCH)]

    def prepare(rows: NDArray[np.int64]) -> NDArray[Any]:
        return inputs.raw(positions[rows], epoch=0, view=PLAIN)

    for rows, raw in _ahead(prepare, blocks, threads=workers(1), ahead=workers(1)):
        yield rows, inputs.ready(raw, positions[rows], epoch=0, view=PLAIN, device=device)


@torch.no_grad()
def forward_plain(
    function: Callable[[Tensor], Tensor],
    inputs: Inputs,
    positions: NDArray[np.int64],
    *,
    width: int,
    device: torch.device,
) -> Tensor:
    """A function of unaugmented input, computed in blocks, (n, width); also of no sample at all."""
    blocks = plain_batches(inputs, positions, device=device)
    return torch.cat([torch.zeros(0, width, device=device), *(function(x).float() for _, x in blocks)])


def _ahead(
    prepare: Callable[[T], R], jobs: Sequence[T], *, threads: int, ahead: int
) -> Iterator[tuple[T, R]]:
    """Jobs in order with what threads made of them, up to ``ahead`` jobs before they are asked for."""
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[R]] = deque(pool.submit(prepare, job) for job in jobs[:ahead])
        try:
            for number, job in enumerate(jobs):
                if number + ahead < len(jobs):
                    waiting.append(pool.submit(prepare, jobs[number + ahead]))
                yield job, waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
