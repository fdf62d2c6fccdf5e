"""Hostile and mutated tar shards: names, sizes, extended headers, texts and pictures within."""

from __future__ import annotations

import contextlib
import io
import json
import random
import tarfile
from pathlib import Path

from soak.attack import Attack, Outcome, Strike
from soak.mutations import encodable, flipped, text, value
from soak.tables import check
from tests.data.corpus import jpeg, png

KINDS = (tarfile.REGTYPE,) * 12 + (
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.FIFOTYPE,
    tarfile.DIRTYPE,
    b"S",
    b"V",
)
PAX = ("size", "path", "GNU.sparse.map", "GNU.sparse.size", "GNU.sparse.name", "mtime", "uid", "hdrcharset")


def _ready(_: Path) -> Strike:
    pictures = [png(1), jpeg(), jpeg(seed=1), b"", b"no picture"]

    def strike(_number: int, rng: random.Random, empty: Path) -> Outcome:
        for shard in range(rng.choice((1, 1, 2))):
            data = _shard(rng, pictures)
            if rng.random() < 0.6:
                data = flipped(data, rng)
            (empty / f"{shard:05d}.tar").write_bytes(data)
        check(rng.choice((empty, empty / "00000.tar")), empty / "out", None)
        return Outcome(inputs=1)

    return strike


def _shard(rng: random.Random, pictures: list[bytes]) -> bytes:
    out = io.BytesIO()
    kind = rng.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT))
    with tarfile.open(fileobj=out, mode="w", format=kind, errors="surrogateescape") as tar:
        for number in range(rng.choice((1, 3, 8))):
            key = (
                f"{number:06d}" if rng.random() < 0.8 else encodable(text(rng))[:80].replace("\0", "") or "x"
            )
            record = {"label": "cat", "caption": encodable(text(rng))} if rng.random() < 0.7 else value(rng)
            parts = {
                "jpg": rng.choice(pictures),
                "txt": encodable(text(rng)).encode(),
                "json": json.dumps(record).encode(),
                "cls": b"cat" if rng.random() < 0.8 else encodable(text(rng)).encode(),
            }
            for ending in rng.sample(sorted(parts), rng.randint(1, 4)):
                _member(tar, f"{key}.{ending}", parts[ending], rng)
    return out.getvalue()


def _member(tar: tarfile.TarFile, name: str, data: bytes, rng: random.Random) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.type = rng.choice(KINDS)
    if member.type != tarfile.REGTYPE:
        member.linkname = rng.choice(("/etc/passwd", "../x", "000000.jpg"))
    if tar.format == tarfile.PAX_FORMAT and rng.random() < 0.1:
        member.pax_headers = {rng.choice(PAX): rng.choice(("-1", "0", "5,5,9,9", "x", "9" * 30, "1" * 300))}
    with contextlib.suppress(ValueError):  # no tar holds such a name
        tar.addfile(member, io.BytesIO(data))


ATTACK = Attack("tars", goal=15_000, share=2, ready=_ready, batch=200)
