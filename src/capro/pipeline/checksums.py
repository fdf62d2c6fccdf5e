"""Checksums of what stages wrote, fingerprints of what decides a result, and seeds for named purposes."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from capro.pipeline.artefacts import BESIDE_RESULTS

SELF = "check"  # in stage.json: the hash of all else in it


def recorded(folder: Path, *, leave_out: str) -> dict[str, dict[str, Any]]:
    """Size, time and hash of each file that a stage left in its folder."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    return {file.name: _measured(file) for file in files if file.name not in {leave_out, *BESIDE_RESULTS}}


def _measured(file: Path) -> dict[str, Any]:
    stat = file.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": sha256_of(str(file))}


def sha256_of(file: str) -> str:
    """The hash of a file's content."""
    with open(file, "rb", buffering=0) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def same(file: Path, record: Mapping[str, Any], *, thorough: bool = False) -> bool:
    """Whether a file is what was recorded; ``thorough`` hashes it though size and time are the same."""
    try:
        # opened, not only asked for: on a network drive that is when another host's changes are seen
        with file.open("rb") as opened:
            stat = os.fstat(opened.fileno())
    except (FileNotFoundError, IsADirectoryError):
        return False
    if stat.st_size != record["size"]:
        return False
    if thorough:
        return bool(sha256_of(str(file)) == record["sha256"])
    if stat.st_mtime_ns == record["mtime_ns"]:
        return True
    return bool(_known(str(file), stat.st_size, stat.st_mtime_ns, stat.st_ino) == record["sha256"])


@lru_cache(maxsize=4096)
def _known(file: str, *_state: int) -> str:
    """A file's hash, computed once a process as long as its size, time and inode stay."""
    return sha256_of(file)


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document with a hash of itself.

    >>> is_sealed(sealed({"a": 1})), is_sealed(sealed({"a": 1}) | {"a": 2}), is_sealed([])
    (True, False, False)
    """
    plain = json.loads(json.dumps(document))  # as it will be read: keys are texts
    return {**plain, SELF: fingerprint(plain)}


def is_sealed(document: Any) -> bool:
    """Whether a document has the hash of itself."""
    if not isinstance(document, dict):
        return False
    rest = {name: value for name, value in document.items() if name != SELF}
    return bool(document.get(SELF) == fingerprint(rest))


def read_sealed(file: Path) -> dict[str, Any] | None:
    """A document that has the hash of itself; None if it is absent or damaged. Shared: not to be changed."""
    try:
        return _parsed(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None


@lru_cache(maxsize=256)
def _parsed(content: bytes) -> dict[str, Any] | None:
    """A sealed document, parsed and checked once as long as its bytes stay."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return document if is_sealed(document) else None


def says_damaged(error: Exception) -> bool:
    """Whether a reader found a file cut or changed: not an error of the disk, and none of the program."""
    kinds = (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)
    parquet = isinstance(error, OSError) and error.errno is None
    return parquet or isinstance(error, kinds) or type(error).__name__ == "SafetensorError"


def fingerprint(value: Any) -> str:
    """A hash of a JSON-like value; equal values give equal hashes in any key order.

    >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def seed_for(seed: int, *names: str | int) -> int:
    """An independent 63-bit seed for a named purpose.

    >>> seed_for(0, "match") == seed_for(0, "match"), seed_for(0, "match") == seed_for(1, "match")
    (True, False)
    """
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
