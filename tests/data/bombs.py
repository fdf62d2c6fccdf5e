"""Small files that ask a decoder for much work or memory: bytes only, nothing on disk."""

from __future__ import annotations

import struct
import zlib

from tests.data.corpus import encode, jpeg, picture


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def jpeg_of_scans(scans: int, side: int = 64, colours: int = 1) -> bytes:
    """A progressive JPEG with empty scans, each some fifty bytes however large the picture."""
    blocks = ((side + 7) // 8) ** 2
    runs = -(-blocks // 32767)  # one code ends up to 32767 blocks
    bits = ("0" + "1" * 14) * runs
    bits += "1" * (-len(bits) % 8)
    coded = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    table = bytes([1] + [0] * 15)
    parts = b"".join(bytes([number + 1, 0x11, 0]) for number in range(colours))
    first = bytes([colours]) + b"".join(bytes([number + 1, 0]) for number in range(colours))
    return b"".join(
        [
            b"\xff\xd8",
            segment(0xDB, b"\0" + b"\1" * 64),
            segment(0xC2, struct.pack(">BHHB", 8, side, side, colours) + parts),
            segment(0xC4, b"\x10" + table + b"\xe0") + segment(0xC4, b"\0" + table + b"\0"),
            segment(0xDA, first + b"\0\0\0") + bytes(-(-blocks * colours // 8)),
            (segment(0xDA, b"\1\1\0\1\x3f\0") + coded) * (scans - 1),
            b"\xff\xd9",
        ]
    )


def tags(entries: int, length: int) -> bytes:
    """TIFF's tags that all name the same bytes."""
    rows = b"".join(struct.pack("<HHII", 0x8000 + n % 0x700, 7, length, 8) for n in range(entries))
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", entries) + rows + bytes(4)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_with(*chunks: bytes) -> bytes:
    """A small PNG with chunks before its picture."""
    plain = encode(picture(), "PNG")
    return plain[:33] + b"".join(chunks) + plain[33:]


def gif_with_comment(block: bytes, blocks: int) -> bytes:
    plain = encode(picture(), "GIF")
    at = plain.index(b"\x2c", 13 + (3 << ((plain[10] & 7) + 1)))
    comment = b"\x21\xfe" + (bytes([len(block)]) + block) * blocks + b"\0"
    return plain[:at] + comment + plain[at:]


def run_length_bmp(side: int) -> bytes:
    """Lines that end after a pixel: four bytes for any number of pixels."""
    lines = b"\1\5\0\0" * side + b"\0\1"
    header = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(lines), 0, 0, 256, 0)
    begin = 14 + 40 + 1024
    return b"BM" + struct.pack("<IHHI", begin + len(lines), 0, 0, begin) + header + bytes(1024) + lines


SUSPICIOUS: dict[str, bytes] = {
    "jpeg of 50 scans and 49 megapixels": jpeg_of_scans(50, 7000),
    "jpeg whose header cannot be walked": jpeg()[:20] + b"garbage" + jpeg()[20:],
    "jpeg of 2,000 comments": jpeg()[:2] + segment(0xFE, b"") * 2000 + jpeg()[2:],
    "jpeg with overlapping tags": jpeg()[:2] + segment(0xE1, b"Exif\0\0" + tags(900, 60_000)) + jpeg()[2:],
    "png with overlapping tags": png_with(chunk(b"eXIf", tags(900, 60_000))),
    "png of 2,000 chunks": png_with(*[chunk(b"tEXt", b"a\0b")] * 2000),
    "gif with a comment of 5,000 blocks": gif_with_comment(b"x", 5000),
    "run-length bmp": run_length_bmp(1100),
    "tiff with overlapping tags": tags(900, 60_000) + bytes(60_000),
    "tiff of many tags": tags(2000, 1),
    "tiff": encode(picture(), "TIFF", compression="tiff_lzw"),
    "big tiff": b"II+\0\x08\0\0\0" + bytes(32),
}
