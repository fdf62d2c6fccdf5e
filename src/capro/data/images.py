"""Safe decoding: an allow-list by content, limits checked from the header, always RGB.

An image that cannot be used raises ``ImageProblem`` with one of ``REASONS``; the caller quarantines
the sample. Nothing here returns a substitute. An image whose header asks for unusual work is decoded in a process
that is ended after ``scan.max_seconds``.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from capro.config import ScanSettings
from capro.data import decoder_process
from capro.data.image_cost import Cost, estimate, is_jpeg

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
    return _decode(data, limits, _checked_cost(data, limits), min_side)


def _decode(
    data: bytes, limits: ScanSettings, cost: Cost, min_side: int | None
) -> tuple[Image.Image, ImageInfo]:
    way = _decode_elsewhere if cost.suspicious else decode_here
    return way(data, limits, min_side=min_side)


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
    cost = _checked_cost(data, limits)
    if is_jpeg(data) and _is_simple(data, limits, cost):
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
            if colours in ("YCbCr", "RGB") and not _refused(width, height, limits):
                by = 1 if min_side is None else _draft(width, height, min_side)
                least = {"min_height": -(-height // by), "min_width": -(-width // by)}
                return np.asarray(simplejpeg.decode_jpeg(data, "RGBX", **least))
        except ValueError:  # damaged in some way: Pillow may still decode it, or names the problem
            pass
    rgb, _ = _decode(data, limits, cost, min_side)
    return np.asarray(rgb.convert("RGBX"))


def _is_simple(data: bytes, limits: ScanSettings, cost: Cost) -> bool:
    """Whether a JPEG needs neither turning nor a process of its own."""
    return not cost.suspicious and (not cost.turned or _orientation(_open(data, limits)[0]) == 1)


def _checked_cost(data: bytes, limits: ScanSettings) -> Cost:
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
