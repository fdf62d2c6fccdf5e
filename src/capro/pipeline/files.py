"""Writing files: errors of the disk as messages, and what is synced to survive a power cut."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capro.errors import CaproError, RunError
from capro.wording import byte_size

_ELSEWHERE = "give a folder on another disk to --run or --out"
_RIGHTS = "change its permissions (`ls -ld` shows them), or give another folder to --run or --out"

# What a number of the system means, and what to do. Any other number is a bug of ours, and is reported as one.
MEANINGS = {
    errno.ENOSPC: (
        "no space is left on the disk",
        f"free some space, then give the same command again; or {_ELSEWHERE}",
    ),
    errno.EDQUOT: (
        "your disk quota is used up",
        f"free some space, then give the same command again; or {_ELSEWHERE}",
    ),
    errno.EROFS: ("the disk is mounted read-only", _ELSEWHERE),
    errno.EACCES: ("permission denied", _RIGHTS),
    errno.EPERM: ("operation not permitted", _RIGHTS),
    errno.ENAMETOOLONG: ("the name is too long for the file system", "give a shorter name"),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "correct the path"),
    errno.EISDIR: ("is a folder, but a file is needed here", "give the name of a file"),
    errno.ELOOP: ("symbolic links form a loop", "correct the link"),
    errno.EFBIG: ("the file is too large for the file system", _ELSEWHERE),
    errno.EMFILE: ("too many open files", "run `ulimit -n 4096`, then give the same command again"),
    errno.EIO: ("the disk cannot be read or written (input/output error)", "check the disk, then try again"),
    errno.ESTALE: ("the network drive has lost the file", "mount it again, then try again"),
    errno.ENOTCONN: ("the network drive is not connected", "mount it again, then try again"),
}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_NUMBER = re.compile(r"(?:os error|errno) (\d+)", re.IGNORECASE)  # safetensors; pyarrow
_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")  # numpy, which gives no number


class DiskError(RunError):
    """A file cannot be written or read, for a reason that lies with the disk or the path."""


def explained(
    error: BaseException, path: Path | None = None, *, needed: int | None = None
) -> DiskError | None:
    """The message for an error of the disk; None for any other error.

    Args:
        error: As it was raised, also by libraries that hide the system's number in a text.
        path: What was being written, where the error does not say.
        needed: Bytes, where they are known.

    >>> found = explained(OSError(errno.EROFS, "", "/mnt/run.yaml"))
    >>> str(found), found.hint
    ('/mnt/run.yaml: the disk is mounted read-only', 'give a folder on another disk to --run or --out')
    >>> explained(OSError(errno.EINVAL, "", "x")) is None, explained(ValueError("errno 28")) is None
    (True, True)
    """
    number = _number(error)
    if number not in MEANINGS:
        return None
    place = _place(error, path)
    text, hint = MEANINGS[number]
    if number in _FULL:
        text += _space(path or place, needed)
    return DiskError(f"{place}: {text}" if place else text, hint=hint)


def _number(error: BaseException) -> int | None:
    """The system's number of an error."""
    foreign = type(error).__name__ == "SafetensorError"
    if isinstance(error, CaproError) or not (foreign or isinstance(error, OSError)):
        return None
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if _SHORT_WRITE.search(str(error)):
        return errno.ENOSPC
    named = _NUMBER.search(str(error))
    return int(named[1]) if named else None


def _place(error: BaseException, path: Path | None) -> Path | None:
    """The file that an error is about; what is written under a temporary name has its own."""
    named = getattr(error, "filename2", None) or getattr(error, "filename", None)
    if not isinstance(named, str | bytes) or (path is not None and ".tmp" in os.fsdecode(named)):
        return path
    return Path(os.fsdecode(named))


def _space(path: Path | None, needed: int | None) -> str:
    """How much is free, and how much is needed where that is known."""
    known = [f"{byte_size(needed)} needed"] if needed else []
    for folder in (path, *path.absolute().parents) if path else ():
        try:
            known.append(f"{byte_size(shutil.disk_usage(folder or '.').free)} free")
            break
        except OSError:
            continue
    return f" ({', '.join(known)})" if known else ""


@contextmanager
def writing(path: Path, *, needed: int | None = None) -> Iterator[None]:
    """What writes a file or folder: an error of the disk becomes a message with its name."""
    try:
        yield
    except Exception as error:
        if explanation := explained(error, path, needed=needed):
            raise explanation from error
        raise


MANY = 1000  # files of a folder above which one sync of the machine's disks takes less time than one for each
_UNABLE = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM}  # of folders: some file systems cannot


def wanted() -> bool:
    """Whether files are synced."""
    return os.environ.get("CAPRO_FSYNC", "").strip().lower() not in {"0", "no", "off", "false"}


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    if not wanted():
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _UNABLE or not path.is_dir():
            raise


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder, replacing what the name meant before (a file, or an empty folder)."""
    os.replace(source, target)
    sync(target.parent)
    if source.parent != target.parent:
        sync(source.parent)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, where they are missing."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    if not missing and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync(folder.parent)


def sync_tree(folder: Path) -> None:
    """Wait until everything in a folder is on the disk; its own name is up to whoever renames it."""
    if not wanted():
        return
    files = [Path(root, name) for root, _, names in os.walk(folder) for name in names]
    if len(files) > MANY:
        os.sync()
        return
    for file in files:
        sync(file)
    for root, _, _ in os.walk(folder, topdown=False):
        sync(Path(root))
