"""Files that others made are opened here: only regular ones, since a pipe or a device may never end."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

KINDS = {  # what a path may be instead of a file
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
# A pipe that takes the file's place between the look and the opening does not block either.
FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class NotAFileError(OSError):
    """A path that is there, and is no regular file."""


def require_regular(path: str | os.PathLike[str]) -> None:
    """Refuse a path that is no regular file: before a library opens it by its name."""
    _refuse_others(os.stat(path).st_mode, path)


def open_descriptor(path: str | os.PathLike[str]) -> int:
    """The descriptor of a regular file, to read from; links are followed."""
    require_regular(path)
    descriptor = os.open(path, FLAGS)
    try:
        _refuse_others(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: str | os.PathLike[str], *, buffering: int = -1) -> BinaryIO:
    """A regular file, to read bytes from."""
    return os.fdopen(open_descriptor(path), "rb", buffering=buffering)


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file."""
    with open_regular(path, buffering=0) as file:
        return file.read()


def _refuse_others(mode: int, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder, not a file", os.fspath(path))
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "not a regular file")
        raise NotAFileError(errno.EINVAL, f"is {kind}, not a file", os.fspath(path))
