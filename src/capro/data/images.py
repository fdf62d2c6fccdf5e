"""Safe decoding: an allow-list by content, limits and cost judged by the header, always RGB."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from capro.config import ScanSettings
from capro.data import decoder_process

CHEAP_SCAN_PIXELS = 500_000_000  # pixels times scans of a JPEG: 50 megapixels in the usual ten scans
CHEAP_PARTS = 1_000  # segments, chunks or blocks of a file that a decoder steps through in Python ...
CHEAP_PART = 2_000  # ... and one more for so many bytes
MOST_MARKERS = 20_000  # of a JPEG that are looked at; with more it is decoded in a process that can be ended
CHEAP_TAG_BYTES = 1_000_000  # of EXIF: photographs have some ten thousand
CHEAP_RLE_PIXELS = 1_000_000  # of a run-length BMP, which Pillow decodes in Python

SOI, SOS, EOI, APP1 = 0xD8, 0xDA, 0xD9, 0xE1
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF: the size and the kind of JPEG
PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
ALONE = frozenset({0x01, *range(0xD0, 0xD8)})  # markers without a length
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # within coded data nothing else looks like this
TAG_SIZES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8)  # bytes by TIFF's type


class DecodingCost(NamedTuple):
    """What an image's header says about decoding it."""

    scans: int = 1  # passes over the whole picture: the scans of a JPEG
    suspicious: bool = False  # may take long, or much memory
    turned: bool = True  # may have to be rotated, as EXIF or XMP say


def is_jpeg(data: bytes) -> bool:
    """Whether these are a JPEG's first bytes."""
    return data[:2] == b"\xff\xd8"


def estimate(data: bytes) -> DecodingCost:
    """The cost of decoding an image, by its header.

    >>> estimate(b"\\x89PNG")
    DecodingCost(scans=1, suspicious=False, turned=True)
    """
    if is_jpeg(data):
        return _jpeg_cost(data)
    kind = data[:4]
    # TIFF: dozens of decoders in one, which write to the terminal
    suspicious = kind[:2] in (b"II", b"MM")
    if kind == b"\x89PNG":
        suspicious = _suspicious_parts(data, _chunks(data, 8, "big", 0))
    elif kind == b"RIFF":
        suspicious = _suspicious_parts(data, _chunks(data, 12, "little", 4))
    elif kind == b"GIF8":
        suspicious = _suspicious_parts(data, _gif_blocks(data))
    elif kind[:2] == b"BM":
        width, height = (abs(int.from_bytes(data[at : at + 4], "little", signed=True)) for at in (18, 22))
        run_length = data[30:31] in (b"\x01", b"\x02")
        suspicious = run_length and width * height > CHEAP_RLE_PIXELS
    return DecodingCost(suspicious=suspicious)


def _jpeg_cost(data: bytes) -> DecodingCost:
    """Walk the segments of a JPEG up to its first scan; count the scans where it has several.

    A header that cannot be walked is suspicious: its decoder may find more than is seen here.
    """
    at, pixels, colours = 2, 0, 0
    several = heavy = turned = False
    for _ in range(CHEAP_PARTS):
        if data[at : at + 1] != b"\xff" or at + 4 > len(data):
            break
        kind, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if kind == 0xFF or kind in ALONE:  # a fill byte, or a marker without a length
            at += 1 if kind == 0xFF else 2
            continue
        if kind == SOS:
            # progressive, or a scan for each colour
            if not several and data[at + 4 : at + 5] == bytes([colours]):
                return DecodingCost(suspicious=heavy, turned=turned)
            scans, all_seen = _count_scans(data, at)
            # an upper bound of the work, whatever a decoder makes of damaged bytes
            work = data.count(b"\xff\xda") * pixels
            return DecodingCost(scans, heavy or not all_seen or work > CHEAP_SCAN_PIXELS, turned=turned)
        if kind in FRAMES:
            height, width = (int.from_bytes(data[at + k : at + k + 2], "big") for k in (5, 7))
            pixels, colours = height * width, data[at + 9] if at + 9 < len(data) else 0
            several |= kind in PROGRESSIVE
        elif kind == APP1:
            turned = True
            heavy |= _heavy_tags(data[at + 4 : at + 2 + length])
        at += 2 + length
    return DecodingCost(suspicious=True)


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


def _suspicious_parts(data: bytes, parts: Iterable[tuple[bytes, slice]]) -> bool:
    """Whether a file has very many parts, or heavy EXIF tags; parts are names and places of their content."""
    limit = CHEAP_PARTS + len(data) // CHEAP_PART
    return any(
        number > limit or (name.upper() == b"EXIF" and _heavy_tags(data[content]))
        for number, (name, content) in enumerate(parts, start=1)
    )


def _chunks(
    data: bytes, at: int, order: Literal["big", "little"], length_at: int
) -> Iterator[tuple[bytes, slice]]:
    """Chunks of a PNG or WebP.

    Args:
        data: The file.
        at: Where its first chunk begins.
        order: Of the bytes of a length.
        length_at: Where a chunk has its length, 0 or 4; its name is in the other half of its first 8 bytes.
    """
    while at + 8 <= len(data):
        length = int.from_bytes(data[at + length_at : at + length_at + 4], order)
        yield data[at + 4 - length_at : at + 8 - length_at], slice(at + 8, at + 8 + length)
        at += 8 + length + (4 if order == "big" else length % 2)  # a checksum, or padding


def _gif_blocks(data: bytes) -> Iterator[tuple[bytes, slice]]:
    """Blocks of a GIF before the first picture: comments and the like, which have no names."""
    at = 13 + (3 << ((data[10] & 7) + 1) if len(data) > 10 and data[10] & 0x80 else 0)
    while at < len(data) and data[at] != 0x2C:
        at += 2 if data[at] == 0x21 else 1
        while at < len(data) and data[at]:
            at += 1 + data[at]
            yield b"", slice(0)
        at += 1
        yield b"", slice(0)


def _heavy_tags(blob: bytes) -> bool:
    """Whether the tags of EXIF name more bytes than any photograph has, here or in the parts they name."""
    blob = blob.removeprefix(b"Exif\0\0")
    orders: dict[bytes, Literal["little", "big"]] = {b"II*\0": "little", b"MM\0*": "big"}
    order = orders.get(blob[:4])
    if order is None:
        return False
    total, waiting, seen = 0, [blob[4:8]], set[int]()
    while waiting:
        at = int.from_bytes(waiting.pop(), order)
        if at in seen:
            continue
        seen.add(at)
        entries = int.from_bytes(blob[at : at + 2], order)
        if len(seen) > 16 or entries > CHEAP_PARTS:
            return True
        for entry in range(at + 2, min(at + 2 + 12 * entries, len(blob) - 11), 12):
            tag, kind, count = (
                int.from_bytes(blob[entry + a : entry + b], order) for a, b in ((0, 2), (2, 4), (4, 8))
            )
            total += count * TAG_SIZES[kind] if kind < len(TAG_SIZES) else 0
            if tag in (0x8769, 0x8825, 0xA005, 0x014A):  # EXIF, GPS, interoperability, further pictures
                waiting.append(blob[entry + 8 : entry + 12])
    return total > CHEAP_TAG_BYTES


# Odd EXIF, palettes, its bomb warning: what comes out is checked here. Once for the process, since
# `catch_warnings` around each image would race between threads.
warnings.filterwarnings("ignore", module=r"PIL\.")

IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")

REASONS = {
    "empty": "the file has no bytes",
    "not-an-image": "the content is not an image",
    "format": "an image, but not JPEG, PNG, WebP, GIF, BMP or TIFF",
    "too-large": "more pixels than scan.max_pixels",
    "too-many-bytes": "more bytes than scan.max_bytes",
    "too-many-scans": "a JPEG with more scans than scan.max_scans",
    "too-slow": "decoding takes more CPU time than scan.max_seconds",
    "too-thin": "one side is more than scan.max_aspect times the other",
    "truncated": "the file ends too early",
    "damaged": "the content cannot be decoded",
}


class ImageProblem(Exception):
    """Why an image cannot be used."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class ImageInfo:
    """What the manifest keeps of an image: size after EXIF rotation, and format."""

    width: int
    height: int
    format: str


TURNS = {  # by EXIF's orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(
    data: bytes, limits: ScanSettings, *, min_side: int | None = None
) -> tuple[Image.Image, ImageInfo]:
    """Decode image bytes to RGB.

    Args:
        data: The file's bytes.
        limits: Bytes, pixels, shape and scans are checked from the header, before any pixel is decoded.
        min_side: A large JPEG is decoded in draft mode down to no less than this shorter side.

    Returns:
        RGB image, rotated by its EXIF orientation, first frame of an animation, transparency on white; and
        its full size and format.
    """
    suspicious = _checked_cost(data, limits).suspicious
    return (_decode_elsewhere if suspicious else decode_here)(data, limits, min_side=min_side)


def decode_here(
    data: bytes, limits: ScanSettings, *, min_side: int | None = None
) -> tuple[Image.Image, ImageInfo]:
    """``decode`` in this process, whatever the work."""
    image, info = _open(data, limits)
    try:
        if min_side is not None and image.format == "JPEG":
            image.draft("RGB", _at_least(image.size, min_side))
        image.load()
        # Pillow's exif_transpose would also read all tags and write them anew
        turn = TURNS.get(_orientation(image))
        rgb = _to_rgb(image if turn is None else image.transpose(turn))
    except ImageProblem:
        raise
    except MemoryError:
        raise ImageProblem("too-large", "not enough memory") from None
    except Exception as error:  # decoders raise whatever they like on hostile bytes
        raise _broken(data, error) from None
    return rgb, info


def _decode_elsewhere(
    data: bytes, limits: ScanSettings, *, min_side: int | None
) -> tuple[Image.Image, ImageInfo]:
    """``decode`` in a process that is ended when its time is over."""
    try:
        answer, pixels = decoder_process.ask({"limits": limits.model_dump(), "min_side": min_side}, data)
    except decoder_process.DecoderEnded as ended:
        if ended.too_slow:
            raise ImageProblem("too-slow", f"more than {limits.max_seconds:g} s") from None
        raise ImageProblem("damaged", str(ended)) from None
    if "reason" in answer:
        raise ImageProblem(answer["reason"], answer["detail"])
    return Image.frombytes("RGB", tuple(answer["size"]), pixels), ImageInfo(**answer["info"])


def decode_bytes(data: bytes, limits: ScanSettings, *, min_side: int | None = None) -> NDArray[np.uint8]:
    """The pixels of ``decode`` with a filler, (h, w, 4); an upright colour JPEG takes a fifth less.

    The filler makes a pixel one word: torch resizes four channels quicker than three.
    """
    if is_jpeg(data) and _is_simple(data, limits):
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
            if colours in ("YCbCr", "RGB") and not _refused(width, height, limits):
                by = 1 if min_side is None else _draft(width, height, min_side)
                least = {"min_height": -(-height // by), "min_width": -(-width // by)}
                return np.asarray(simplejpeg.decode_jpeg(data, "RGBX", **least))
        except ValueError:  # damaged in some way: Pillow may still decode it, or names the problem
            pass
    rgb, _ = decode(data, limits, min_side=min_side)
    return np.asarray(rgb.convert("RGBX"))


def _is_simple(data: bytes, limits: ScanSettings) -> bool:
    """Whether a JPEG needs neither turning nor a process of its own."""
    cost = _checked_cost(data, limits)
    return not cost.suspicious and (not cost.turned or _orientation(_open(data, limits)[0]) == 1)


def _checked_cost(data: bytes, limits: ScanSettings) -> DecodingCost:
    """What decoding will cost; more than the limits is refused."""
    if len(data) > limits.max_bytes:
        raise ImageProblem("too-many-bytes", f"more than {limits.max_bytes} bytes")
    cost = estimate(data)
    if cost.scans > limits.max_scans:
        raise ImageProblem("too-many-scans", f"{cost.scans} scans")
    return cost


def _draft(width: int, height: int, min_side: int) -> int:
    """By how much Pillow's draft mode shrinks for this shorter side: 1, 2, 4 or 8."""
    wanted = _at_least((width, height), min_side)
    scale = min(width // wanted[0], height // wanted[1])
    return max(by for by in (1, 2, 4, 8) if by <= max(scale, 1))


def _open(data: bytes, limits: ScanSettings) -> tuple[Image.Image, ImageInfo]:
    if not data:
        raise ImageProblem("empty")
    try:
        image = Image.open(io.BytesIO(data), formats=IMAGE_FORMATS)
    except UnidentifiedImageError:
        raise _unidentified(data) from None
    except Image.DecompressionBombError as error:
        raise ImageProblem("too-large", str(error)[:200]) from None
    except Exception as error:
        raise _broken(data, error) from None
    width, height = image.size
    if reason := _refused(width, height, limits):
        raise ImageProblem(reason, f"{width}x{height} pixels")
    aside = image.format != "TIFF" and _orientation(image) in (5, 6, 7, 8)  # Pillow turns a TIFF itself
    size = (height, width) if aside else (width, height)
    return image, ImageInfo(*size, format=str(image.format))


def _refused(width: int, height: int, limits: ScanSettings) -> str | None:
    """Why an image of this size is not decoded."""
    if width < 1 or height < 1:
        return "damaged"
    if width * height > limits.max_pixels:
        return "too-large"
    return "too-thin" if max(width, height) > limits.max_aspect * min(width, height) else None


def _orientation(image: Image.Image) -> int:
    """As EXIF has it: 1 is upright."""
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # broken EXIF is no reason to lose the picture
        return 1


def _broken(data: bytes, error: Exception) -> ImageProblem:
    """Whether the file ends too early or has wrong bytes, as far as the decoder's message shows."""
    text = str(error)
    words = ("truncated", "unexpected end", "not processed", "eof")
    short = isinstance(error, EOFError) or any(word in text.lower() for word in words)
    if data[:4] == b"RIFF":  # a WebP holds its length, but its decoder has no word for "truncated"
        short = int.from_bytes(data[4:8], "little") + 8 > len(data)
    return ImageProblem("truncated" if short else "damaged", text[:200])


def has_known_header(head: bytes) -> bool:
    """Whether a file's first 12 bytes or more are those of a format that is decoded here."""
    ours = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"II*\0", b"MM\0*")
    return head.startswith(ours) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")


def _unidentified(data: bytes) -> ImageProblem:
    """A cut-off file of a known format, an image of another format, or no image at all."""
    head = data[:16]
    if has_known_header(head):
        return ImageProblem("truncated", "the header is incomplete")
    foreign = (b"%PDF", b"8BPS", b"\0\0\1\0", b"\xff\x0a", b"qoif", b"P4", b"P5", b"P6", b"%!PS")
    brands = (b"ftypavif", b"ftypheic", b"ftypheix", b"ftypmif1", b"JXL ")
    if head.startswith(foreign) or data[4:12] in brands or b"<svg" in data[:512].lower():
        return ImageProblem("format", f"starts with {head[:8]!r}")
    return ImageProblem("not-an-image", f"starts with {head[:8]!r}")


def _at_least(size: tuple[int, int], min_side: int) -> tuple[int, int]:
    """The smallest size of the same shape whose shorter side is min_side or more."""
    ratio = min(1.0, min_side / min(size))
    return max(1, int(np.ceil(size[0] * ratio))), max(1, int(np.ceil(size[1] * ratio)))


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return _scale_to_8_bit(image)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _scale_to_8_bit(image: Image.Image) -> Image.Image:
    """16-bit and float grey to 8 bits: by the type's range, not clipped as Pillow's convert does."""
    values = np.asarray(image, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ImageProblem("damaged", "non-finite pixels")
    low, high = 0.0, 65535.0
    if image.mode == "F" or values.min() < low or values.max() > high:  # no range of its own
        low, high = float(values.min()), float(values.max())
    scaled = (values - low) / (high - low or 1.0) * 255
    return Image.fromarray(scaled.astype(np.uint8)).convert("RGB")
