from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import capro.data.views
from capro import config
from capro.data.views import COLOUR, KEY, QUERY, KeyAugment, center, crop, crop_box, normalise, view_rng
from capro.errors import ConfigError

sides = st.one_of(st.just(1), st.integers(1, 3000))


def picture(width: int = 40, height: int = 30, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def batch(b: int = 8, side: int = 16) -> torch.Tensor:
    return torch.rand(b, 3, side, side, generator=torch.Generator().manual_seed(0))


# ---- chance --------------------------------------------------------------------------------------


def test_each_view_has_its_own_numbers() -> None:
    tuples = [
        (seed, epoch, index, view)
        for seed in (0, 1)
        for epoch in (0, 1, 2)
        for index in (0, 1, 2, 10**7)
        for view in (QUERY, KEY, COLOUR)
    ]
    draws = {tuple(view_rng(*t).random(4)) for t in tuples}
    assert len(draws) == len(tuples)


@given(*[st.integers(0, 2**40)] * 3, st.integers(0, 5))
def test_rng_is_a_function_of_its_arguments(seed: int, epoch: int, index: int, view: int) -> None:
    key = np.array([seed, 0], dtype=np.uint64)
    counter = np.array([0, view, index, epoch], dtype=np.uint64)
    a = np.random.Generator(np.random.Philox(key=key, counter=counter))
    b = view_rng(seed, epoch, index, view)
    assert a.random(50).tolist() == b.random(50).tolist()


def test_first_numbers_of_neighbouring_samples_are_uniform() -> None:
    # counters that differ by one must not give correlated draws
    u = np.array([view_rng(0, 0, i, QUERY).random(2) for i in range(2000)])
    assert abs(u.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(u[:-1, 0], u[1:, 0])[0, 1]) < 0.07
    assert abs(np.corrcoef(u[:, 0], u[:, 1])[0, 1]) < 0.07


# ---- crops ---------------------------------------------------------------------------------------


@given(sides, sides, st.integers(0, 10**6), st.floats(0.01, 1), st.floats(0.05, 1), st.floats(1, 20))
def test_box_lies_within_any_image(
    width: int, height: int, index: int, smallest: float, low: float, high: float
) -> None:
    rng = view_rng(0, 0, index, QUERY)
    left, top, right, bottom = crop_box(width, height, rng, scale=(smallest, 1.0), ratio=(low, high))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert low * (1 - 1e-6) <= (right - left) / (bottom - top) <= high * (1 + 1e-6)


@given(st.integers(30, 300), st.floats(0.8, 1.25), st.integers(0, 10**6))
def test_box_has_the_area_asked_for(width: int, shape: float, index: int) -> None:
    height = round(width / shape)
    # a box of half the area with these ratios always fits, so the fallback cannot come in
    rng = view_rng(0, 0, index, QUERY)
    box = crop_box(width, height, rng, scale=(0.2, 0.5), ratio=(3 / 4, 4 / 3))
    share = (box[2] - box[0]) * (box[3] - box[1]) / (width * height)
    assert 0.2 - 1e-9 <= share <= 0.5 + 1e-9


def slow_box(width: int, height: int, u: list[float], scale: float, ratio: float) -> list[float]:
    """The same box written plainly for one ratio and one area: x, y are the first two numbers."""
    w = (width * height * scale * ratio) ** 0.5
    h = w / ratio
    if w > width or h > height:  # too long: as wide or as high as the image
        w, h = (width, width / ratio) if width / ratio <= height else (height * ratio, height)
    return [u[0] * (width - w), u[1] * (height - h), u[0] * (width - w) + w, u[1] * (height - h) + h]


@given(sides, sides, st.integers(0, 1000), st.floats(0.05, 0.95), st.floats(0.2, 5))
def test_box_equals_the_slow_reference(
    width: int, height: int, index: int, scale: float, ratio: float
) -> None:
    u = view_rng(0, 0, index, QUERY).random(2).tolist()
    box = crop_box(width, height, view_rng(0, 0, index, QUERY), scale=(scale, scale), ratio=(ratio, ratio))
    assert box == pytest.approx(slow_box(width, height, u, scale, ratio), rel=1e-6, abs=1e-6)


def test_crop_is_the_resized_box() -> None:
    image = picture()
    box = crop_box(40, 30, view_rng(0, 1, 2, QUERY), scale=(0.2, 1), ratio=(3 / 4, 4 / 3))
    whole = image.crop(tuple(round(edge) for edge in box))
    expected = np.asarray(whole.resize((12, 12), Image.Resampling.BILINEAR)).astype(int)
    plain = crop(image, view_rng(0, 1, 2, QUERY), size=12, flip=0)
    mirrored = crop(image, view_rng(0, 1, 2, QUERY), size=12, flip=1)
    assert np.abs(plain - expected).max() <= 1  # Pillow's filter, to the last bit but one
    assert np.array_equal(mirrored, plain[:, ::-1])
    for view in (plain, mirrored):
        assert view.shape == (12, 12, 3)
        assert view.dtype == np.uint8
        assert view.flags["C_CONTIGUOUS"]
        assert view.flags["WRITEABLE"]  # torch.from_numpy warns of others


def test_crops_repeat_and_vary() -> None:
    image = picture()

    def view(epoch: int, index: int, which: int = QUERY) -> bytes:
        return crop(image, view_rng(0, epoch, index, which), size=8).tobytes()

    assert view(0, 0) == view(0, 0)
    views = {view(e, i, w) for e in range(3) for i in range(3) for w in (QUERY, KEY)}
    assert len(views) == 18


def test_about_half_is_mirrored() -> None:
    ramp = Image.fromarray(np.tile(np.arange(64, dtype=np.uint8)[None, :, None], (64, 1, 3)))
    views = [crop(ramp, view_rng(0, 0, i, QUERY), size=8) for i in range(200)]
    mirrored = sum(int(v[0, 0, 0]) > int(v[0, -1, 0]) for v in views)
    assert 70 < mirrored < 130


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 500), (500, 1), (2, 3), (1200, 900)])
def test_any_image_gives_both_views(width: int, height: int) -> None:
    image = Image.new("RGB", (width, height), (10, 200, 30))
    for i in range(20):
        view = crop(image, view_rng(0, 0, i, QUERY), size=8)
        assert np.array_equal(view, np.full((8, 8, 3), (10, 200, 30)))
    assert np.array_equal(center(image, 8), np.full((8, 8, 3), (10, 200, 30)))


def test_other_modes_become_rgb() -> None:
    grey = Image.new("L", (10, 10), 77)
    assert center(grey, 4).tolist() == np.full((4, 4, 3), 77).tolist()
    assert crop(grey, view_rng(0, 0, 0, QUERY), size=4).shape == (4, 4, 3)


def test_center_takes_the_middle_square_unsquashed() -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255
    assert (center(Image.fromarray(wide), 10) == 255).all()
    assert (center(Image.fromarray(wide.transpose(1, 0, 2)), 10) == 255).all()
    pixels = np.asarray(picture(8, 8))
    assert np.array_equal(center(Image.fromarray(pixels), 8), pixels)


# ---- colour --------------------------------------------------------------------------------------


def test_draws_belong_to_the_sample_not_to_the_batch() -> None:
    augment = KeyAugment()
    together = augment.draw(3, 1, [5, 9, 2])
    assert together.shape == (3, 6)
    assert together.dtype == torch.float32
    assert torch.equal(together[1:2], augment.draw(3, 1, [9]))
    assert augment.draw(3, 1, []).shape == (0, 6)
    assert not torch.equal(together, augment.draw(3, 2, [5, 9, 2]))
    assert not torch.equal(together, augment.draw(4, 1, [5, 9, 2]))


def test_draws_follow_the_settings() -> None:
    d = KeyAugment().draw(0, 0, range(2000))
    jittered = (d[:, :4] != torch.tensor([1.0, 1.0, 1.0, 0.0])).any(1)
    assert abs(float(jittered.float().mean()) - 0.8) < 0.03
    assert abs(float(d[:, 4].mean()) - 0.2) < 0.03
    assert abs(float((d[:, 5] > 0).float().mean()) - 0.5) < 0.04
    assert float(d[:, :3].min()) >= 0.6
    assert float(d[:, :3].max()) <= 1.4
    assert float(d[:, 3].abs().max()) <= 0.1
    blurred = d[d[:, 5] > 0, 5]
    assert 0.1 <= float(blurred.min()) < 0.2
    assert 1.9 < float(blurred.max()) <= 2.0


def test_augmentation_repeats_and_leaves_the_random_state_and_the_input() -> None:
    augment, x = KeyAugment(), batch()
    before, state = x.clone(), torch.get_rng_state()
    draws = augment.draw(0, 0, range(8))
    one = augment(x, draws)
    torch.manual_seed(99)
    assert torch.equal(one, augment(x, draws))
    torch.set_rng_state(state)
    augment(x, draws)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(x, before)
    assert one.shape == x.shape
    assert 0 <= float(one.min()) <= float(one.max()) <= 1


def test_key_view_differs_from_the_query_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyAugment, "JITTERED", 1.0)
    augment, x = KeyAugment(), batch()
    out = augment(x, augment.draw(0, 0, range(8)))
    assert all(not torch.allclose(out[i], x[i], atol=1e-2) for i in range(8))


def test_one_sample_alone_equals_it_in_a_batch() -> None:
    augment, x = KeyAugment(blur=1), batch(side=64)
    draws = augment.draw(0, 0, range(8))
    together = augment(x, draws)
    for i in range(8):
        torch.testing.assert_close(augment(x[i : i + 1], draws[i : i + 1])[0], together[i])


def test_nothing_drawn_nothing_done() -> None:
    augment, x = KeyAugment(jitter=0, grey=0, blur=0), batch()
    torch.testing.assert_close(augment(x, augment.draw(0, 0, range(8))), x, atol=1e-6, rtol=0)


def test_grey_is_grey() -> None:
    augment, x = KeyAugment(grey=1), batch()
    out = augment(x, augment.draw(0, 0, range(8)))
    assert torch.equal(out[:, 0], out[:, 1])
    assert torch.equal(out[:, 1], out[:, 2])
    plain = KeyAugment(jitter=0, grey=1, blur=0)
    luma = 0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2]
    torch.testing.assert_close(plain(x, plain.draw(0, 0, range(8)))[:, 0], luma)


def apply(x: torch.Tensor, **chosen: float) -> torch.Tensor:
    """One step of the augmentation with a factor of the test's choice."""
    names = ["brightness", "contrast", "saturation", "hue", "grey", "sigma"]
    neutral = dict(zip(names, [1.0, 1.0, 1.0, 0.0, 0.0, 0.0], strict=True))
    row = list({**neutral, **chosen}.values())
    out: torch.Tensor = KeyAugment()(x, torch.tensor([row]))
    return out


def test_colour_by_hand() -> None:
    x = torch.tensor([0.2, 0.4, 0.6]).view(1, 3, 1, 1)
    luma = 0.299 * 0.2 + 0.587 * 0.4 + 0.114 * 0.6
    for out, expected in [
        (apply(x, brightness=1.5), [0.3, 0.6, 0.9]),
        (apply(x, brightness=2), [0.4, 0.8, 1.0]),
        (apply(x, contrast=0.5), [(v + luma) / 2 for v in (0.2, 0.4, 0.6)]),
        (apply(x, saturation=0.5), [(v + luma) / 2 for v in (0.2, 0.4, 0.6)]),
        (apply(x, hue=0.5), [2 * luma - v for v in (0.2, 0.4, 0.6)]),  # the opposite colour
        (apply(x, hue=1.0), [0.2, 0.4, 0.6]),
    ]:
        assert out.flatten().tolist() == pytest.approx(expected, abs=1e-5)


def test_a_hue_turn_keeps_luma_and_turns_as_hsv_does() -> None:
    from kornia.color import rgb_to_grayscale
    from kornia.enhance import adjust_hue

    x = 0.4 + 0.2 * batch(1)  # dull colours, so that nothing is clipped
    out = apply(x, hue=0.1)
    torch.testing.assert_close(rgb_to_grayscale(out), rgb_to_grayscale(x), atol=1e-4, rtol=0)
    # the same sense and roughly the same colours as the slow way through HSV
    there = (out - adjust_hue(x, 2 * np.pi * 0.1)).abs().mean()
    back = (out - adjust_hue(x, -2 * np.pi * 0.1)).abs().mean()
    assert there < 0.5 * back


def test_blur_smooths_more_with_more_sigma_and_keeps_the_mean() -> None:
    x = batch(1, side=64)
    spread = [float(apply(x, sigma=s).std()) for s in (0.0, 1.0, 2.0)]
    assert spread[0] > spread[1] > spread[2]
    assert float(apply(x, sigma=2.0).mean()) == pytest.approx(float(x.mean()), abs=0.01)


@pytest.mark.parametrize("side", [1, 2, 3])
def test_tiny_images_survive_the_blur(side: int) -> None:
    augment = KeyAugment(blur=1)
    out = augment(batch(4, side), augment.draw(0, 0, range(4)))
    assert out.shape == (4, 3, side, side)
    assert out.isfinite().all()


def test_an_empty_batch() -> None:
    augment = KeyAugment()
    assert augment(batch(0), augment.draw(0, 0, [])).shape == (0, 3, 16, 16)


def test_normalise() -> None:
    pixels = torch.tensor([0, 127, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    expected = torch.tensor([-127 / 128, 0.0, 1.0]).view(1, 3, 1, 1)
    out = normalise(pixels, [127 / 255] * 3, [128 / 255] * 3)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(normalise(pixels / 255, [127 / 255] * 3, [128 / 255] * 3), expected)


# ---- errors, and what is not used ----------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["crop_scale=0", "crop_scale=1.5", "size=0"])
def test_bad_crop_settings(wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong.partition("=")[0]):
        config.load(overrides=[f"views.{wrong}"])


@pytest.mark.parametrize("name", ["jitter", "grey", "blur"])
def test_bad_colour_settings(name: str) -> None:
    for value in (1.5, -0.1):
        with pytest.raises(ConfigError, match=name):
            config.load(overrides=[f"views.{name}={value}"])


def test_torchvision_is_not_used() -> None:
    tree = ast.parse(Path(capro.data.views.__file__).read_text())
    modules = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    modules |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert not any(m.startswith("torchvision") for m in modules)
