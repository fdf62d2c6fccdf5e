"""What decoding an image may cost, judged by its header; nothing is decoded here.

A file of a megabyte can ask for hours of work or for gigabytes: thousands of passes over a progressive
JPEG, tags that overlap, millions of chunks of no bytes. ``estimate`` counts the passes and finds the images that
are decoded in a process which can be ended. O(header), O(bytes) for a progressive JPEG.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

CHEAP_SCAN_PIXELS = 500_000_000  # pixels times scans of a JPEG: 50 megapixels in the usual ten scans
CHEAP_PARTS = 1_000  # segments, chunks or blocks of a file that a decoder steps through in Python ...
CHEAP_PART = 2_000  # ... and one more for so many bytes
MOST_MARKERS = (
    20_000  # of a JPEG that are looked at; those behind them are left to a process that can be ended
)
CHEAP_TAG_BYTES = 1_000_000  # of EXIF: photographs have some ten thousand
CHEAP_RLE_PIXELS = 1_000_000  # of a run-length BMP, which Pillow decodes in Python

SOI, SOS, EOI, APP1 = 0xD8, 0xDA, 0xD9, 0xE1
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF: the size and the kind of JPEG
PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
ALONE = frozenset({0x01, *range(0xD0, 0xD8)})  # markers without a length
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # within coded data nothing else looks like this
TAG_SIZES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8)  # bytes by TIFF's type


@dataclass
class JpegHeader:
    """What stands before a JPEG's first scan."""

    pixels: int = 0
    passes: bool = False  # more than one scan is read: progressive, or a scan for each colour
    turned: bool = False  # has a segment for EXIF or XMP, by which the picture may have to be turned
    heavy: bool = False  # EXIF tags, or segments, beyond what photographs have
    body: int = 0  # where the first scan begins; 0: the header cannot be walked


def is_jpeg(data: bytes) -> bool:
    """Whether these are a JPEG's first bytes."""
    return data[:2] == b"\xff\xd8"


def jpeg_header(data: bytes) -> JpegHeader:
    """Walk the segments of a JPEG up to its first scan.

    >>> jpeg_header(b"\\xff\\xd8 no segments").body
    0
    """
    found, at, colours = JpegHeader(), 2, 0
    for _ in range(CHEAP_PARTS):
        if data[at : at + 1] != b"\xff" or at + 4 > len(data):
            return found
        kind, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if kind == 0xFF:  # a fill byte
            at += 1
            continue
        if kind in ALONE:
            at += 2
            continue
        if kind == SOS:
            found.passes |= data[at + 4 : at + 5] != bytes([colours])
            found.body = at
            return found
        if kind in FRAMES:
            height, width = (int.from_bytes(data[at + k : at + k + 2], "big") for k in (5, 7))
            found.pixels, colours = height * width, data[at + 9] if at + 9 < len(data) else 0
            found.passes |= kind in PROGRESSIVE
        elif kind == APP1:
            found.turned = True
            found.heavy |= _heavy_tags(data[at + 4 : at + 2 + length])
        at += 2 + length
    found.heavy = True
    return found


class Cost(NamedTuple):
    """What a header says about decoding."""

    scans: int = 1  # passes over the whole picture: the scans of a JPEG
    suspicious: bool = False  # may take long, or much memory
    turned: bool = True  # may have to be turned, as EXIF or XMP say


def estimate(data: bytes) -> Cost:
    """The cost of decoding an image, by its header.

    >>> estimate(b"\\x89PNG")
    Cost(scans=1, suspicious=False, turned=True)
    """
    if is_jpeg(data):
        return _jpeg_cost(data)
    kind = data[:4]
    if kind == b"\x89PNG":
        return Cost(suspicious=_suspicious_png(data))
    if kind == b"GIF8":
        return Cost(suspicious=_suspicious_gif(data))
    if kind == b"RIFF":
        return Cost(suspicious=_suspicious_webp(data))
    if kind[:2] == b"BM":
        return Cost(suspicious=_suspicious_bmp(data))
    # TIFF: dozens of decoders in one, which write to the terminal
    return Cost(suspicious=kind[:2] in (b"II", b"MM"))


def _jpeg_cost(data: bytes) -> Cost:
    header = jpeg_header(data)
    if not header.body:  # not to be walked: its decoder may find more than is seen here
        return Cost(suspicious=True)
    if not header.passes:
        return Cost(suspicious=header.heavy, turned=header.turned)
    scans, all_seen = _count_scans(data, header.body)
    # an upper bound of the scans, whatever a decoder makes of damaged bytes
    work = data.count(b"\xff\xda") * header.pixels
    heavy = header.heavy or not all_seen or work > CHEAP_SCAN_PIXELS
    return Cost(scans, heavy, turned=header.turned)


def _count_scans(data: bytes, at: int) -> tuple[int, bool]:
    """Scans from a marker on, and whether all were seen; what looks like one within a segment is none."""
    count = 0
    for _ in range(MOST_MARKERS):
        marker = _MARKER.search(data, at)
        if marker is None or data[marker.start() + 1] == EOI:
            return count, True
        at, kind = marker.start(), data[marker.start() + 1]
        count += kind == SOS
        alone = kind in ALONE or kind == SOI
        at += 2 if alone else max(4, 2 + int.from_bytes(data[at + 2 : at + 4], "big"))
    return count, False


def _many(parts: int, data: bytes) -> bool:
    return parts > CHEAP_PARTS + len(data) // CHEAP_PART


def _suspicious_png(data: bytes) -> bool:
    at, parts = 8, 0
    while at + 8 <= len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if kind == b"eXIf" and _heavy_tags(data[at + 8 : at + 8 + length]):
            return True
        if _many(parts := parts + 1, data):
            return True
        at += 12 + length
    return False


def _suspicious_gif(data: bytes) -> bool:
    """Blocks before the first picture: comments and the like."""
    at = 13 + (3 << ((data[10] & 7) + 1) if len(data) > 10 and data[10] & 0x80 else 0)
    parts = 0
    while at < len(data) and data[at] != 0x2C:
        at += 2 if data[at] == 0x21 else 1
        while at < len(data) and data[at]:
            at += 1 + data[at]
            if _many(parts := parts + 1, data):
                return True
        at += 1
        if _many(parts := parts + 1, data):
            return True
    return False


def _suspicious_webp(data: bytes) -> bool:
    at, parts = 12, 0
    while at + 8 <= len(data):
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] == b"EXIF" and _heavy_tags(data[at + 8 : at + 8 + length]):
            return True
        if _many(parts := parts + 1, data):
            return True
        at += 8 + length + length % 2
    return False


def _suspicious_bmp(data: bytes) -> bool:
    width, height = (abs(int.from_bytes(data[at : at + 4], "little", signed=True)) for at in (18, 22))
    return data[30:31] in (b"\x01", b"\x02") and width * height > CHEAP_RLE_PIXELS


def _heavy_tags(blob: bytes) -> bool:
    """Whether the tags of EXIF name more bytes than any photograph has, here or in the parts they name."""
    blob = blob.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "little", b"MM\0*": "big"}.get(blob[:4])
    if order is None:
        return False
    total, waiting, seen = 0, [blob[4:8]], set[int]()
    while waiting:
        at = int.from_bytes(waiting.pop(), order)  # type: ignore[arg-type]
        if at in seen:
            continue
        seen.add(at)
        entries = int.from_bytes(blob[at : at + 2], order)  # type: ignore[arg-type]
        if len(seen) > 16 or entries > CHEAP_PARTS:
            return True
        for place in range(at + 2, min(at + 2 + 12 * entries, len(blob) - 11), 12):
            tag, kind, count = (
                int.from_bytes(blob[place + a : place + b], order)  # type: ignore[arg-type]
                for a, b in ((0, 2), (2, 4), (4, 8))
            )
            total += count * TAG_SIZES[kind] if kind < len(TAG_SIZES) else 0
            if tag in (0x8769, 0x8825, 0xA005, 0x014A):  # EXIF, GPS, interoperability, further pictures
                waiting.append(blob[place + 8 : place + 12])
    return total > CHEAP_TAG_BYTES
