from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from capro.data.images import estimate
from tests.data.bombs import SUSPICIOUS, jpeg_of_scans, segment
from tests.data.corpus import encode, jpeg, picture


@pytest.mark.parametrize("name", SUSPICIOUS)
def test_unusual_work_is_seen_in_the_header(name: str) -> None:
    assert estimate(SUSPICIOUS[name]).suspicious


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_usual_images_are_decoded_in_the_process_itself(format: str) -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a photograph"
    options = {} if format in ("GIF", "BMP") else {"exif": exif}
    assert not estimate(encode(picture(300, 200), format, **options)).suspicious


@pytest.mark.parametrize(("colours", "count"), [(1, 1), (1, 7), (3, 12)])
def test_scans_of_a_progressive_jpeg_are_counted(colours: int, count: int) -> None:
    assert estimate(jpeg_of_scans(count, colours=colours)).scans == count


def test_a_baseline_jpeg_has_one_scan_whatever_follows() -> None:
    assert estimate(jpeg() + segment(0xDA, b"") * 50).scans == 1  # its decoder stops after the first


def test_what_looks_like_a_scan_within_a_segment_is_none() -> None:
    data = jpeg_of_scans(3)
    at = data.rindex(b"\xff\xda")
    assert estimate(data[:at] + segment(0xE5, b"\xff\xda" * 99) + data[at:]).scans == 3


def test_the_header_says_whether_there_is_an_orientation_segment() -> None:
    assert estimate(jpeg(64, 48)) == (1, False, False)
    assert estimate(jpeg()[:2] + segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0") + jpeg()[2:]).turned


def test_a_header_that_cannot_be_walked_is_suspicious() -> None:
    assert estimate(b"\xff\xd8 no segments").suspicious


@given(st.sampled_from([encode(picture(), kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")]),
       st.integers(0, 300), st.binary(max_size=40))  # fmt: skip
def test_no_bytes_break_the_estimate(data: bytes, at: int, other: bytes) -> None:
    changed = data[:at] + other + data[at + len(other) :]
    assert 0 <= estimate(changed).scans <= changed.count(b"\xff\xda") + 1


def test_counting_scans_is_bounded_itself() -> None:
    data = jpeg_of_scans(2)
    at = data.rindex(b"\xff\xda")
    found = estimate(data[:at] + segment(0xE5, b"") * 1_000_000 + data[at:])  # seconds, if each was looked at
    assert (found.scans, found.suspicious) == (1, True)
