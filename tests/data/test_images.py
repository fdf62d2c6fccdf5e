from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from capro.config import ScanSettings
from capro.data.images import REASONS, ImageProblem, decode, decode_bytes
from tests.data.corpus import BAD_IMAGES, encode, jpeg, picture, png

LIMITS = ScanSettings()


@pytest.mark.parametrize("way", [decode, decode_bytes])
@pytest.mark.parametrize("name", BAD_IMAGES)
def test_bad_image_has_its_reason(name: str, way: Callable[..., object]) -> None:
    data, reason = BAD_IMAGES[name]
    with pytest.raises(ImageProblem) as caught:
        way(data, LIMITS)
    assert caught.value.reason == reason
    assert reason in REASONS


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_allowed_formats_become_rgb(format: str) -> None:
    image, info = decode(encode(picture(), format), LIMITS)
    assert (image.mode, image.size) == ("RGB", (12, 8))
    assert (info.width, info.height, info.format) == (12, 8, format)


def test_lossless_pixels_are_kept() -> None:
    image, _ = decode(png(seed=3), LIMITS)
    np.testing.assert_array_equal(np.asarray(image), np.asarray(picture(seed=3)))


def test_exif_rotation_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    original = Image.new("RGB", (20, 10), "white")
    original.paste("red", (0, 0, 10, 10))
    image, info = decode(encode(original, "JPEG", exif=exif, quality=95), LIMITS)
    assert image.size == (10, 20) == (info.width, info.height)
    top, bottom = np.asarray(image)[4, 5], np.asarray(image)[15, 5]
    assert top[1] < 80
    assert bottom[1] > 200


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(10))
def test_a_picture_is_turned_as_pillow_does(orientation: int, format: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(picture(20, 10), format, exif=exif)
    wanted = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    image, info = decode(data, LIMITS)
    np.testing.assert_array_equal(np.asarray(image), np.asarray(wanted))
    assert (info.width, info.height) == image.size


def test_cmyk() -> None:
    red = Image.new("RGB", (16, 16), (200, 30, 30)).convert("CMYK")
    image, _ = decode(encode(red, "JPEG", quality=95), LIMITS)
    np.testing.assert_allclose(np.asarray(image)[8, 8], (200, 30, 30), atol=12)


def test_sixteen_bit_is_scaled_not_clipped() -> None:
    values = np.full((4, 4), 32768, dtype=np.uint16)
    image, _ = decode(encode(Image.fromarray(values)), LIMITS)
    assert np.asarray(image)[0, 0].tolist() == [127, 127, 127]


def test_transparency_goes_on_white() -> None:
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    image, _ = decode(encode(clear), LIMITS)
    assert np.asarray(image).min() == 255


def test_palette_with_transparency() -> None:
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 250, 10, 10])
    image, _ = decode(encode(palette, transparency=0), LIMITS)
    assert np.asarray(image)[0, 0].tolist() == [250, 10, 10]


def test_first_frame_of_animation() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    image, _ = decode(data, LIMITS)
    assert np.asarray(image)[0, 0].tolist() == [255, 0, 0]


def test_grey() -> None:
    image, _ = decode(encode(picture(mode="L")), LIMITS)
    assert image.mode == "RGB"


def test_draft_keeps_at_least_the_side_and_tells_the_full_size() -> None:
    image, info = decode(jpeg(1600, 1200), LIMITS, min_side=200)
    assert (info.width, info.height) == (1600, 1200)
    assert 200 <= min(image.size) < 1200


def test_draft_never_enlarges() -> None:
    image, _ = decode(jpeg(64, 48), LIMITS, min_side=500)
    assert image.size == (64, 48)


@given(st.binary(max_size=300))
def test_any_bytes_decode_or_have_a_reason(data: bytes) -> None:
    try:
        image, _ = decode(data, LIMITS)
    except ImageProblem as problem:
        assert problem.reason in REASONS  # noqa: PT017 - either outcome is right
    else:
        assert image.mode == "RGB"


@given(st.integers(0, 400), st.integers(0, 255))
def test_flipped_bytes_never_crash(position: int, value: int) -> None:
    data = bytearray(jpeg(32, 32))
    data[position % len(data)] = value
    try:
        image, _ = decode(bytes(data), LIMITS)
    except ImageProblem as problem:
        assert problem.reason in REASONS  # noqa: PT017
    else:
        assert image.mode == "RGB"
        quick = decode_bytes(bytes(data), LIMITS)
        np.testing.assert_array_equal(quick[..., :3], np.asarray(image))


def test_pixels_are_not_decoded_before_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Image.Image) -> None:
        raise AssertionError("decoded before the limit was checked")

    data = encode(Image.new("RGB", (400, 400)))
    opened = type(Image.open(io.BytesIO(data)))
    monkeypatch.setattr(opened, "load", never)
    with pytest.raises(ImageProblem) as caught:
        decode(data, ScanSettings(max_pixels=1000))
    assert caught.value.reason == "too-large"


def photograph(mode: str = "RGB") -> Image.Image:
    y, x = np.mgrid[:300, :410]
    waves = [np.sin(x / a + y / b) for a, b in ((9, 31), (23, 7), (50, 14))]
    return Image.fromarray((127 + 120 * np.stack(waves, axis=-1)).astype(np.uint8)).convert(mode)


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.mark.parametrize("min_side", [None, 40, 149, 150, 299, 500])
@pytest.mark.parametrize(
    "data",
    [
        encode(photograph(), "JPEG", quality=90),
        encode(photograph(), "JPEG", quality=60, progressive=True, subsampling=0),
        encode(photograph(), "JPEG", exif=turned(1)),
        encode(photograph(), "JPEG", exif=turned(6)),
        encode(photograph("L"), "JPEG"),
        encode(photograph("CMYK"), "JPEG"),
        encode(photograph(), "PNG"),
        encode(photograph(), "JPEG") + b"more than the picture",
        encode(photograph(), "JPEG", xmp=b'<x tiff:Orientation="6"/>'),
        encode(photograph(), "JPEG", comment=b"\xff\xda", exif=turned(8)),
        encode(photograph().resize((1200, 300)), "JPEG"),
    ],
    ids=[
        "plain", "progressive", "upright", "turned", "grey", "cmyk", "png", "trailing bytes", "turned by XMP",
        "a comment like a scan", "wide",
    ],
)  # fmt: skip
def test_the_quick_way_gives_the_same_pixels(data: bytes, min_side: int | None) -> None:
    image, _ = decode(data, LIMITS, min_side=min_side)
    quick = decode_bytes(data, LIMITS, min_side=min_side)
    np.testing.assert_array_equal(quick[..., :3], np.asarray(image))
    assert quick.shape[2] == 4
