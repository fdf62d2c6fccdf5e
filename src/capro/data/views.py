"""Two views of an image: what the query branch and the key branch see (docs/concepts.md).

    query = random resized crop + flip
    key   = another crop + flip, then colour jitter, grey and blur

Crops run on the CPU, one image at a time, resized by torch's filter for bytes (Pillow's result, three
times as quick); colour runs in batches on the device (kornia). All randomness is a function of
(seed, epoch, sample index, view): the number of workers and of ranks, the composition of a batch and
a resume change nothing.

Cost on one core: `view_rng` 5 µs, a crop 0.05 ms (64 px from 64 px) to 0.3 ms (224 px from
500 x 375).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

QUERY, KEY, COLOUR = 0, 1, 2  # streams of one sample in one epoch; further views count on from 3
# Boxes drawn before the fallback. At scale (0.2, 1) 1 in 100 images of 2:1 needs it, 1 in 6 of 3:1.
TRIES = 10
RATIO = (3 / 4, 4 / 3)  # width / height of a crop (MoCo)
Box = tuple[float, float, float, float]  # left, top, right, bottom


def view_rng(seed: int, epoch: int, index: int, view: int) -> np.random.Generator:
    """The random numbers of one view of one sample in one epoch.

    Philox counts: seed is its key, (epoch, index, view) are the high words of its counter, so two
    different tuples can never share a number. All are 0 or more.

    >>> a, b = view_rng(0, 3, 17, QUERY), view_rng(0, 3, 17, QUERY)
    >>> bool(a.random() == b.random())
    True
    """
    counter = np.array([0, view, index, epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(_key(seed), counter=counter))  # type: ignore[arg-type] # any ISeedSequence will do


class _Key(ISeedSequence):
    """A seed as Philox's key as it is. With ``key=`` numpy takes entropy from the system that it then
    does not use, which takes three quarters of `view_rng`'s time.
    """

    def __init__(self, seed: int) -> None:
        self._words = np.array([seed, 0], dtype=np.uint64)

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> NDArray[np.uint64]:
        assert (n_words, dtype) == (2, np.uint64), "another bit generator than Philox"
        return self._words


_key = lru_cache(maxsize=16)(_Key)


def crop_box(
    width: int,
    height: int,
    rng: np.random.Generator,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Box:
    """A random box within the image: share of the area in `scale`, width / height in `ratio`.

    Area is uniform, the ratio log-uniform, the place uniform. Where the image is too long for any
    of ten draws, the largest box with an allowed ratio, at a uniform place. Boxes are fractions of
    pixels; `crop` rounds them.

    >>> crop_box(100, 50, view_rng(0, 0, 0, QUERY), scale=(1, 1), ratio=(2, 2))
    (0.0, 0.0, 100.0, 50.0)
    """
    # One call for all numbers, then plain floats: arrays of ten cost more than the loop.
    x, y, *draws = rng.random(2 * TRIES + 2).tolist()
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for u_area, u_ratio in zip(draws[::2], draws[1::2], strict=True):
        area = width * height * (scale[0] + (scale[1] - scale[0]) * u_area)
        shape = math.exp(low + (high - low) * u_ratio)
        w, h = math.sqrt(area * shape), math.sqrt(area / shape)
        if w <= width * (1 + 1e-9) and h <= height * (1 + 1e-9):  # scale 1 must survive rounding
            break
    else:
        shape = min(max(width / height, ratio[0]), ratio[1])
        w, h = height * shape, width / shape
    w, h = min(w, float(width)), min(h, float(height))
    left, top = (width - w) * x, (height - h) * y
    return left, top, min(left + w, float(width)), min(top + h, float(height))


def crop(
    image: Image.Image | NDArray[np.uint8],
    rng: np.random.Generator,
    *,
    size: int,
    scale: tuple[float, float] = (0.2, 1.0),
    flip: float = 0.5,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """Random resized crop and flip: both views start with it.

    Args:
        image: RGB, or its bytes, (h, w, 3).
        rng: from `view_rng`.
        size: side of the result.
        scale: share of the area. Strong crops (0.2) suit photographs of 100 px and more; of small
            images they leave too little, use (0.5, 1).
        flip: probability of a mirror image; 0 where left and right matter.
        out: where the result goes, (size, size, channels) in one piece; None makes an array.

    Returns:
        (size, size, channels of the image).
    """
    image = as_pixels(image)
    height, width = image.shape[:2]
    box = crop_box(width, height, rng, scale=scale, ratio=RATIO)
    mirrored = rng.random() < flip
    return _resize(image, box, size, mirrored=mirrored, out=out)


def center(
    image: Image.Image | NDArray[np.uint8], size: int, *, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """The view without chance: the centre square, resized (never squashed). (size, size, channels)

    Args:
        image: RGB, or its bytes, (h, w, 3).
        size: side of the result.
        out: as in `crop`.
    """
    image = as_pixels(image)
    height, width = image.shape[:2]
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return _resize(image, (left, top, left + side, top + side), size, out=out)


def _resize(
    pixels: NDArray[np.uint8],
    box: Box,
    size: int,
    *,
    mirrored: bool = False,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """The box, in whole pixels, as (size, size, channels); antialiased where it shrinks."""
    if out is None:
        out = np.empty((size, size, pixels.shape[2]), np.uint8)
    left, top, right, bottom = (round(edge) for edge in box)
    left, top = min(left, pixels.shape[1] - 1), min(top, pixels.shape[0] - 1)
    x = _channels_first(pixels, np.s_[top : max(bottom, top + 1), left : max(right, left + 1)])
    small = _channels_first(out, np.s_[:, :])
    # what F.interpolate(mode="bilinear", antialias=True) calls, which cannot write into an array
    torch.ops.aten._upsample_bilinear2d_aa.out(x, small.shape[2:], False, None, None, out=small)
    if mirrored:
        small.copy_(small.flip(3))  # numpy takes 20 times as long to turn three bytes around
    return out


def _channels_first(pixels: NDArray[np.uint8], box: tuple[slice, slice]) -> Tensor:
    """A box of (h, w, c) as torch wants it, (1, c, h', w'), without a copy.

    numpy makes the strides: each of torch's operations gives up the interpreter's lock, for which
    another worker waits. The batch axis comes before the box: only so has it a stride by which torch
    sees channels last, its quick way.
    """
    part = pixels.reshape(1, *pixels.shape)[:, box[0], box[1]]
    if not part.flags.writeable:  # a mapped file, or Pillow's memory: torch would warn
        part = np.array(part, order="C")
    return torch.from_numpy(part.transpose(0, 3, 1, 2))


def as_pixels(image: Image.Image | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An image as (h, w, 3) bytes; an array is taken as it is, so that two views share one copy."""
    if isinstance(image, np.ndarray):
        return image
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x - mean) / std per channel, of floats in [0, 1] or bytes, (b, 3, h, w).

    >>> normalise(torch.full((1, 3, 1, 1), 255, dtype=torch.uint8), [0.5] * 3, [0.5] * 3).flatten()
    tensor([1., 1., 1.])
    """
    images = to_float(images)
    shape = (-1, 1, 1)
    return (images - images.new_tensor(mean).view(shape)) / images.new_tensor(std).view(shape)


def to_float(images: Tensor) -> Tensor:
    """Bytes to floats in [0, 1]; floats stay."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


class KeyAugment(nn.Module):
    """What the key view has beyond the query view: colour jitter, grey, blur.

    The chances are drawn apart from the work: `draw` on the host from (seed, epoch, index),
    `forward` on the device from those numbers. Nothing reads torch's random state, so a resumed run
    repeats itself to the bit, and a GPU sees the same colours as a CPU.

    Args:
        jitter: strength. Factors of brightness, contrast and saturation are uniform in 1 +- this,
            the turn of hue in +- a quarter of it (of the full circle).
        grey, blur: probability of each step, per image.

    Defaults are MoCo v2's. The jitter's steps have a fixed order (one batch is one tensor).
    """

    COLUMNS = 6  # brightness, contrast, saturation, hue (turns), grey (0 or 1), sigma (0: none)
    JITTERED = 0.8  # probability of jitter
    SIGMA = (0.1, 2.0)  # of the blur, in pixels of a 224 px image; it shrinks with the image

    def __init__(self, *, jitter: float = 0.4, grey: float = 0.2, blur: float = 0.5) -> None:
        super().__init__()
        self.spread = np.array([jitter, jitter, jitter, jitter / 4])
        self.grey, self.blur = grey, blur

    def draw(self, seed: int, epoch: int, indices: Iterable[int]) -> Tensor:
        """The chances of each sample, (b, 6) float32 on the CPU; 6 µs a sample."""
        rows = [view_rng(seed, epoch, int(index), COLOUR).random(self.COLUMNS + 2) for index in indices]
        u = np.array(rows).reshape(-1, self.COLUMNS + 2)
        out = np.empty((len(u), self.COLUMNS), dtype=np.float32)
        jittered = u[:, 6:7] < self.JITTERED
        out[:, :4] = np.array([1, 1, 1, 0]) + np.where(jittered, self.spread * (2 * u[:, :4] - 1), 0)
        out[:, 4] = u[:, 4] < self.grey
        low, high = self.SIGMA
        out[:, 5] = np.where(u[:, 7] < self.blur, low + (high - low) * u[:, 5], 0)
        return torch.from_numpy(out)

    @torch.no_grad()
    def forward(self, images: Tensor, draws: Tensor) -> Tensor:
        """Augment (b, 3, h, w) floats in [0, 1] by their draws (b, 6); the input stays as it is."""
        from kornia.enhance import (
            adjust_brightness_accumulative,  # multiplies, as MoCo's; `adjust_brightness` adds
            adjust_contrast_with_mean_subtraction,
        )

        factors = draws.to(images)
        x = adjust_brightness_accumulative(images, factors[:, 0])
        x = adjust_contrast_with_mean_subtraction(x, factors[:, 1])
        saturation = factors[:, 2] * (1 - factors[:, 4])  # grey is saturation 0
        x = _rotate_colours(x, saturation, factors[:, 3])
        return self._blur(x, draws[:, 5].cpu())

    def _blur(self, images: Tensor, sigma: Tensor) -> Tensor:
        """Blur the images whose sigma is not 0; sigma is on the host, so no device waits for it."""
        from kornia.filters import gaussian_blur2d

        side = min(images.shape[-2:])
        pixels = side / 224
        # The width follows the settings, not the batch: a sample's blur is its own.
        radius = min(math.ceil(3 * self.SIGMA[1] * pixels), side - 1)
        chosen = torch.nonzero(sigma > 0).flatten()
        if radius < 1 or not len(chosen):
            return images
        width = 2 * radius + 1
        sigmas = (sigma[chosen] * pixels)[:, None].expand(-1, 2).to(images)
        chosen = chosen.to(images.device)
        images[chosen] = gaussian_blur2d(images[chosen], (width, width), sigmas)
        return images


# Luma and the two colour differences of BT.601, and back; the first column of the way back is
# exactly 1, so that saturation 0 is exactly grey.
_LUMA = (0.299, 0.587, 0.114)
_TO_YUV = np.array(
    [_LUMA, (-0.299, -0.587, 1 - 0.114), (1 - 0.299, -0.587, -0.114)]  # Y, B - Y, R - Y
) * np.array([[1], [0.492], [0.877]])
_FROM_YUV = np.array(
    [(1, 0, 1 / 0.877), (1, -0.114 / 0.587 / 0.492, -0.299 / 0.587 / 0.877), (1, 1 / 0.492, 0)]
)


def _rotate_colours(images: Tensor, saturation: Tensor, turns: Tensor) -> Tensor:
    """Saturation and hue of each image as one 3 x 3 matrix: 0.4 ms for 64 images of 64 px, where a
    way through HSV takes 24 ms. The hue turns in the plane of the colour differences, so brightness
    stays.
    """
    angle = 2 * math.pi * turns
    cos, sin = saturation * angle.cos(), saturation * angle.sin()
    one, zero = torch.ones_like(cos), torch.zeros_like(cos)
    rows = [one, zero, zero, zero, cos, -sin, zero, sin, cos]
    turn = torch.stack(rows, dim=1).view(-1, 3, 3)  # (b, 9) -> (b, 3, 3)
    matrix = images.new_tensor(_FROM_YUV) @ turn @ images.new_tensor(_TO_YUV)
    return (matrix @ images.flatten(2)).view_as(images).clamp_(0, 1)
