"""A memory budget: large arrays become files that are mapped, and mapped pages are given back.

The graph's own memory is O(N k); what does not fit beside it, features, texts and their copies, is
read and written through memory maps in a folder for scratch files. Mapped pages count as resident
until they are released, so blocked loops release what they have read once it is a share of the budget.
"""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.errors import ConfigError
from capro.run.disk_errors import writing

IN_MEMORY = 32  # an array below this share of the budget stays in memory
LEAST_BYTES = 64 << 20  # below, not even one block of rows fits


@dataclass(frozen=True)
class Budget:
    """How many bytes to use, and where to put the rest.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     budget = Budget(1 << 30, Path(folder))
    ...     type(budget.array("s", (10, 4))).__name__, type(budget.array("l", (1 << 20, 32))).__name__
    ('ndarray', 'memmap')
    """

    bytes: int
    folder: Path
    _names: set[str] = field(default_factory=set, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.bytes < LEAST_BYTES:
            raise ConfigError(
                f"match.memory_gb: {self.bytes / 2**30:.3f} GB of memory is too little for the graph",
                hint=f"give at least {LEAST_BYTES / 2**30:.2f} GB to match.memory_gb",
            )

    @staticmethod
    def of(gigabytes: float | None, folder: Path) -> Budget | None:
        """The budget that a setting names; None if it names none."""
        return Budget(int(gigabytes * 2**30), folder) if gigabytes else None

    def array(self, name: str, shape: tuple[int, ...], dtype: type[np.generic] = np.float32) -> NDArray[Any]:
        """An array to fill: in memory if it is small, else a file of that name in the folder."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if size * IN_MEMORY <= self.bytes or not size:
            return np.empty(shape, dtype)
        path = self.file(f"{name}.npy")
        with writing(path, needed=size):
            made: NDArray[Any] = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
            _reserve(path)
        return made

    def file(self, name: str) -> Path:
        """A path for a scratch file; the name is made unique."""
        self.folder.mkdir(parents=True, exist_ok=True)
        unique = name
        while unique in self._names:
            unique = f"{len(self._names)}-{name}"
        self._names.add(unique)
        return self.folder / unique

    def rows(self, row_bytes: int, *, most: int) -> int:
        """Rows of a block that takes a 16th of the budget at most; at least one."""
        return max(1, min(most, self.bytes // 16 // max(1, row_bytes)))


def new_array(
    budget: Budget | None, name: str, shape: tuple[int, ...], dtype: type[np.generic] = np.float32
) -> NDArray[Any]:
    """An array to fill: `Budget.array`, or in memory without a budget."""
    return np.empty(shape, dtype) if budget is None else budget.array(name, shape, dtype)


def _reserve(path: Path) -> None:
    """Take a file's space now: where the disk is full, writing to a mapped file would end the process."""
    if not hasattr(os, "posix_fallocate"):
        return
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, os.fstat(descriptor).st_size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # file systems that cannot
            raise
    finally:
        os.close(descriptor)


def release(*arrays: Any) -> None:
    """Give the mapped pages of memory maps back to the system; values stay, in the file.

    A dirty page of a shared mapping goes to the page cache, not away.
    """
    for array in arrays:
        base = array
        while base is not None and not isinstance(base, mmap.mmap):
            base = getattr(base, "_mmap", None) or getattr(base, "base", None)
        if base is not None and hasattr(mmap, "MADV_DONTNEED"):
            base.madvise(mmap.MADV_DONTNEED)


class RowReader:
    """Rows of an array, released after every share of the budget that has been read.

    Args:
        array: (n, d), in memory or mapped.
        budget: None never releases.
    """

    def __init__(self, array: NDArray[Any], budget: Budget | None) -> None:
        self.array = array
        self._limit = None if budget is None else budget.bytes // 8
        self._read = 0

    def __len__(self) -> int:
        return len(self.array)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole array."""
        return self.array.shape

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """A copy of some rows."""
        if self._limit is None:
            return np.asarray(self.array[rows])
        found = np.array(self.array[rows])
        # scattered rows touch a page each, whatever their width
        each = max(found[:1].nbytes, 4096 if not isinstance(rows, slice) else 0)
        self._read += each * len(found)
        if self._read > self._limit:
            release(self.array)
            self._read = 0
        return found
