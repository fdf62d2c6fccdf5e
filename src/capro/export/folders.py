"""Folders that appear whole or not at all, and file names that are safe everywhere."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from capro.errors import RunError
from capro.pipeline import files
from capro.pipeline.files import DiskError, writing
from capro.pipeline.working_copy import cache_folder
from capro.stores import AnyPath, ObjectPath

TEMPORARY = ".capro-new.tmp-"  # how the name of a folder begins that is being written
BEGUN = ".capro-uploading"  # at an address until everything is there
LONGEST = 60  # characters of a name; file systems stop at 255 bytes
# a folder whose name has such a word is a split to Hugging Face's imagefolder, at any depth
SPLIT_WORDS = "train|training|validation|valid|dev|val|test|testing|eval|evaluation"
DEVICES = "con|prn|aux|nul|(?:com|lpt)[0-9¹²³]"  # Windows has no files of these names
_RESERVED = re.compile(rf"(?<![^-_0-9])(?:{SPLIT_WORDS})(?![^-_0-9])|^(?:{DEVICES})$", re.IGNORECASE)


@contextmanager
def new_place(out: AnyPath, *, last: str) -> Iterator[Path]:
    """A temporary folder that becomes ``out`` when the block ends without an exception.

    Args:
        out: A folder that does not exist yet, or an address with nothing below it: there the files are uploaded.
        last: The file that is uploaded last: an export without it is not whole, and the next one replaces it.
    """
    if isinstance(out, Path):
        with new_folder(out) as folder:
            yield folder
        return
    _left(out, last)
    parent = cache_folder() / "uploads"
    with writing(parent), _temporary_in(parent) as folder:
        yield folder
        _upload(folder, out, last)


def _left(out: ObjectPath, last: str) -> list[ObjectPath]:
    """What an upload that was killed has left at an address; anything else there is refused."""
    objects = out.below()
    if ObjectPath(out.protocol, out.key).is_file() or (objects and (BEGUN not in objects or last in objects)):
        raise _exists(out)
    return [*objects.values()]


def _upload(folder: Path, out: ObjectPath, last: str) -> None:
    for left in _left(out, last):
        if left.name != BEGUN:
            left.remove()
    (out / BEGUN).write_bytes(b"capro is writing here\n")
    names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    for name in sorted(names, key=lambda name: name == last):
        (out / name).upload(folder / name)
    (out / BEGUN).remove()


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside ``path`` that becomes it when the block ends without an exception.

    The temporary folder is locked as long as its process lives: those of processes that were killed are
    removed by the next one that writes beside them.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "out"
    >>> with new_folder(target) as temporary:
    ...     _ = (temporary / "a.txt").write_text("whole")
    >>> [p.name for p in target.parent.iterdir()], [p.name for p in target.iterdir()]
    (['out'], ['a.txt'])
    """
    path = Path(os.path.abspath(path))
    if path == Path.cwd():
        raise RunError(f"{path}: is the folder you are in", hint="give a new folder to --out")
    with writing(path):
        if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
            raise _exists(path)
        with _temporary_in(path.parent) as temporary:
            try:
                yield temporary
                files.sync_tree(temporary)
                _take_place(temporary, path)
            except DiskError as error:
                named = str(error).replace(str(temporary), str(path))
                raise DiskError(named, hint=error.hint) from error


def _exists(path: AnyPath) -> RunError:
    return RunError(f"{path}: exists already", hint="give a new folder to --out, or delete it")


def _take_place(temporary: Path, path: Path) -> None:
    """Rename onto nothing, or onto an empty folder."""
    try:
        files.rename(temporary, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise _exists(path) from None  # somebody has filled it meanwhile


@contextmanager
def _temporary_in(parent: Path) -> Iterator[Path]:
    """A locked temporary folder; it is removed at the end, unless it was renamed."""
    files.make_folder(parent)
    _remove_left(parent)
    while True:
        folder = parent / f"{TEMPORARY}{secrets.token_hex(8)}"
        folder.mkdir()
        lock = os.open(folder, os.O_RDONLY)
        with suppress(OSError):  # of a file system that has no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            break
        os.close(lock)  # a process that tidies up was quicker than the lock
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_left(parent: Path) -> None:
    """Remove the temporary folders of processes that no longer live."""
    for left in parent.glob(f"{TEMPORARY}*"):
        with suppress(OSError):
            lock = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where its process lives
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)


def safe_name(text: str) -> str:
    r"""A name that every file system and shell takes: letters, digits, ``-`` and ``_`` of any script.

    >>> safe_name("tiger cat"), safe_name("../../etc/passwd"), safe_name("Käse & <b>"), safe_name("..")
    ('tiger_cat', 'etc_passwd', 'Käse_b', 'unnamed')
    """
    text = unicodedata.normalize("NFC", text)
    name = re.sub(r"[^\w-]+", "_", text).strip("_-")[:LONGEST].strip("_-")
    return name or "unnamed"


def safe_names(names: Iterable[str]) -> dict[str, str]:
    """A safe folder name for each, all different, on systems that ignore case as well. Cost: O(names).

    Words that make a folder a split or a device get an ``x``.

    >>> safe_names(["a/b", "a b", "A_B"])
    {'a/b': 'a_b', 'a b': 'a_b-2', 'A_B': 'A_B-3'}
    >>> safe_names(["test", "train station", "trainer", "con"])
    {'test': 'testx', 'train station': 'trainx_station', 'trainer': 'trainer', 'con': 'conx'}
    """
    chosen: dict[str, str] = {}
    used: set[str] = set()
    last: dict[str, int] = {}  # number of a name that several have: all up to it are taken
    for name in names:
        base = candidate = _RESERVED.sub(r"\g<0>x", safe_name(name))
        number = last.get(base.casefold(), 1)
        while candidate.casefold() in used:
            number += 1
            candidate = f"{base}-{number}"
        last[base.casefold()] = number
        used.add(candidate.casefold())
        chosen[name] = candidate
    return chosen
