"""Rows in shards: large results of an engine's parts, which a killed run does not lose.

A shard is a file of some rows. Which rows are in it does not depend on the engine, so the values do not either.
A shard that is whole is not computed again. Nothing here holds more than one shard in memory.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from capro.errors import RunError
from capro.pipeline import files
from capro.pipeline.artefacts import atomic_path
from capro.pipeline.engine import THIS_PROCESS, Engine
from capro.pipeline.progress import Step

PATIENCE = 90.0  # seconds until a file of another host is there: NFS keeps a listing for up to 60
HASH = hashlib.sha256().digest_size
NOT_SHARED = "put the run directory and the data on a file system that all hosts share"

Compute = Callable[[int, int, Step], NDArray[Any]]  # rows begin to end; the step counts them
Part = tuple[int, int, Path]  # begin, end and file of a shard


def nothing(_rows: int) -> None:
    """Progress that nobody shows."""


@dataclass(frozen=True)
class Shards:
    """The files of ``count`` rows, in order."""

    folder: Path
    count: int
    size: int  # rows per shard

    def parts(self) -> list[Part]:
        """Begin, end and file of each shard.

        >>> shards = Shards(Path("x"), 10, 4)
        >>> [(begin, end) for begin, end, _ in shards.parts()]
        [(0, 4), (4, 8), (8, 10)]
        """
        return [
            (begin, min(begin + self.size, self.count), self.folder / f"{begin:012d}.npy")
            for begin in range(0, self.count, self.size)
        ]

    def blocks(self) -> Iterator[NDArray[Any]]:
        """The rows in order, a mapped shard at a time."""
        for _, _, file in self.parts():
            wait_until(file.exists, f"{file}: another process has written it, but this one does not see it")
            yield np.load(file, mmap_mode="r", allow_pickle=False)

    def whole(self) -> NDArray[Any]:
        """All rows in memory."""
        return np.concatenate([*self.blocks()] or [np.zeros((0, 0), np.float32)])


def planned(folder: Path, count: int, *, key: str, size: int) -> Shards:
    """The shards of some rows; ``key`` is a fingerprint of what decides the values."""
    return Shards(folder / f"shards-{key}-{size}", count, size)


def sharded(
    shards: Shards,
    compute: Compute,
    *,
    engine: Engine = THIS_PROCESS,
    gpu: bool = False,
    progress: Step = nothing,
) -> Shards:
    """Compute the shards that are not there yet; finished ones survive a kill.

    Args:
        shards: What to compute; folders of other keys beside it are removed.
        compute: Picklable for a remote engine (`capro.pipeline.engine.Portable`).
        engine: Computes the shards.
        gpu: Whether it runs on a GPU where there is one.
        progress: Called with numbers of rows: by ``compute`` in this process, after each shard of a remote engine.
    """
    files.make_folder(shards.folder)
    for old in shards.folder.parent.glob("shards-*"):
        if old != shards.folder:
            shutil.rmtree(old)

    def missing() -> Iterator[Part]:
        for begin, end, file in shards.parts():
            if _is_whole(file):
                progress(end - begin)
            else:
                yield begin, end, file

    work = partial(_compute_shard, compute, nothing if engine.remote else progress)
    for rows in engine.map(work, missing(), gpu=gpu):
        if engine.remote:
            progress(rows)
    return shards


def _compute_shard(compute: Compute, progress: Step, part: Part) -> int:
    """Write a shard; returns its number of rows."""
    begin, end, file = part
    see_folder(file.parent)
    rows = compute(begin, end, progress)
    if len(rows) != end - begin:
        raise RunError(f"{file}: got {len(rows)} rows, expected {end - begin}")
    _write_shard(file, rows)
    return end - begin


def see_folder(folder: Path) -> None:
    """Refuse to work where a folder that another process has made is not seen."""
    wait_until(folder.is_dir, f"{folder}: host {platform.node()} does not see it")


def _write_shard(file: Path, rows: NDArray[Any]) -> None:
    """An ``.npy`` file with the hash of its values behind them, where no reader looks."""
    with atomic_path(file, needed=rows.nbytes) as temporary:
        np.save(temporary, rows, allow_pickle=False)
        with temporary.open("ab") as end:
            end.write(_hash_of(rows))


def _is_whole(file: Path) -> bool:
    """Whether a shard is there as it was written; a damaged one is computed again."""
    try:
        rows = np.load(file, mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, ValueError, EOFError):
        return False
    with file.open("rb") as end:
        end.seek(-HASH, os.SEEK_END)
        return end.read() == _hash_of(rows)


def _hash_of(rows: NDArray[Any]) -> bytes:
    described = f"{rows.dtype.str}{rows.shape}".encode()
    return hashlib.sha256(described + np.ascontiguousarray(rows).tobytes()).digest()


def write_rows(
    path: Path, shape: tuple[int, ...], blocks: Iterable[NDArray[Any]], *, dtype: DTypeLike = "<f4"
) -> None:
    """Write an ``.npy`` file from blocks of rows in order, whole or not at all.

    Args:
        path: The file.
        shape: Of the array, (..., d).
        blocks: (b, d) each; one is held at a time.
        dtype: Of its numbers.
    """
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    rows = 0
    needed = np.dtype(dtype).itemsize * math.prod(shape)
    with atomic_path(path, needed=needed) as temporary, temporary.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            if block.shape[1:] != shape[-1:]:
                raise RunError(f"{path}: rows of shape {block.shape[1:]}, expected {shape[-1:]}")
            file.write(np.ascontiguousarray(block, dtype).data)
            rows += len(block)
        if rows * shape[-1] != np.prod(shape):
            raise RunError(f"{path}: {rows} rows do not fill the shape {shape}")


def chosen_rows(array: NDArray[Any], rows: NDArray[np.int64], *, size: int = 4096) -> Iterator[NDArray[Any]]:
    """Some rows of an array, in blocks."""
    for begin in range(0, len(rows), size):
        yield array[rows[begin : begin + size]]


def wait_until(seen: Callable[[], bool], message: str) -> None:
    """Until something that another rank wrote is seen here; hosts may see it late."""
    until = time.monotonic() + PATIENCE
    while not seen():
        if time.monotonic() > until:
            raise RunError(message, hint=NOT_SHARED)
        time.sleep(0.2)
