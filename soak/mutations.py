"""Changed bytes, and texts and numbers of the kind that break readers."""

from __future__ import annotations

import random

TEXTS = (
    "", " ", "cat", "Katze", "naïve 猫 🐈", "a\rb", "a\nb", "a\r\nb", "a\tb", "a\0b", "\x1b[31mred",
    "\ufeffmark", "\u202eevil", "\u2066a\u2069", "e\u0301", "\ud800", "\udfff", "=1+1", "+1", "-1",
    "@SUM(A1)", "'quoted", '"', '""', "a,b;c|d", "<script>alert(1)</script>",
    "</td><img src=x onerror=alert(1)>", "{{7*7}}", "%s%n", "${HOME}", "../../etc/passwd",
    "/etc/passwd", "..", ".", "~", "C:\\x", "a" * 300, "[" * 500, "{" * 500, '["a"]', "[[1]]",
    '{"a": 1}', "null", "nan", "NaN", "inf", "-0", "1e999", "0x10", "true", "None", "9" * 400,
    "2024-99-99", "\u2028", "\x85", "\x0b\x0c",
)  # fmt: skip
NUMBERS = (
    0,
    1,
    -1,
    2**31,
    -(2**31),
    2**63,
    2**64,
    -(2**63),
    10**30,
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
)


def text(rng: random.Random) -> str:
    """A hostile text, once in a while a long one."""
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(TEXTS)
    if kind < 0.7:
        return rng.choice(TEXTS) + rng.choice(TEXTS)
    if kind < 0.98:
        return "".join(chr(_character(rng)) for _ in range(rng.choice((1, 3, 30))))
    return rng.choice(TEXTS[2:20]) * rng.choice((1000, 20_000))


def _character(rng: random.Random) -> int:
    return rng.choice(
        (rng.randrange(128), rng.randrange(0x3000), rng.randrange(0xD800), rng.randrange(0xE000, 0x110000))
    )


def encodable(value: str) -> str:
    """A text that UTF-8 can hold."""
    return value.encode("utf-8", "replace").decode("utf-8")


def value(rng: random.Random, depth: int = 0) -> object:
    """Any value of JSON."""
    kind = rng.random()
    if kind < 0.45 or depth > 3:
        return text(rng)
    if kind < 0.65:
        return rng.choice(NUMBERS)
    if kind < 0.75:
        return rng.choice((True, False, None))
    if kind < 0.9:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {text(rng): value(rng, depth + 1) for _ in range(rng.randrange(4))}


def flipped(data: bytes, rng: random.Random) -> bytes:
    """Bytes with some of them changed, left out, doubled or moved."""
    found = bytearray(data or b"x")
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(found)) if rng.random() < 0.5 else rng.randrange(min(len(found), 200))
        kind = rng.random()
        if kind < 0.5:
            found[at] = rng.choice((0, 255, 0x7F, 0x80, rng.randrange(256)))
        elif kind < 0.7:
            found[at:at] = rng.randbytes(rng.choice((1, 2, 4, 50)))
        elif kind < 0.85:
            del found[at : at + rng.choice((1, 2, 4, 100))]
        else:
            other = rng.randrange(len(found))
            found[at:at] = found[other : other + rng.choice((4, 30, 300))]
        found = found or bytearray(b"x")
    return bytes(found)
