"""Durability: what was written is still there after a power cut.

A file is durable once it was synced (fsync), and so was each folder that names it; a rename once both folders
were. ``CAPRO_FSYNC=0`` turns it off, for a disk on which syncing is slow and a run that may be lost. It is no
setting: it decides no result.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

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
    found = [Path(root, name) for root, _, names in os.walk(folder) for name in names]
    if len(found) > MANY:
        os.sync()
        return
    for file in found:
        sync(file)
    for root, _, _ in os.walk(folder, topdown=False):
        sync(Path(root))
