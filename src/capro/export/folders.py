"""Folders that appear whole or not at all, and file names that are safe everywhere."""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from capro.errors import RunError

LONGEST = 60  # characters of a name; file systems stop at 255 bytes


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside ``path`` that becomes it when the block ends without an exception.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "out"
    >>> with new_folder(target) as temporary:
    ...     _ = (temporary / "a.txt").write_text("whole")
    >>> [p.name for p in target.parent.iterdir()], [p.name for p in target.iterdir()]
    (['out'], ['a.txt'])
    """
    if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise RunError(f"{path}: exists already", hint="give a new folder to --out, or delete it")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        os.replace(temporary, path)  # onto nothing, or onto an empty folder
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def safe_name(text: str) -> str:
    r"""A name that every file system and shell takes: letters, digits, ``-`` and ``_`` of any script.

    >>> safe_name("tiger cat"), safe_name("../../etc/passwd"), safe_name("Käse & <b>"), safe_name("..")
    ('tiger_cat', 'etc_passwd', 'Käse_b', 'unnamed')
    """
    text = unicodedata.normalize("NFC", text)
    found = re.sub(r"[^\w-]+", "_", text).strip("_-")[:LONGEST].strip("_-")
    return found or "unnamed"


def safe_names(names: Iterable[str]) -> dict[str, str]:
    """A safe name for each, all different, on systems that ignore case as well.

    >>> safe_names(["a/b", "a b", "A_B"])
    {'a/b': 'a_b', 'a b': 'a_b-2', 'A_B': 'A_B-3'}
    """
    found: dict[str, str] = {}
    used: set[str] = set()
    for name in names:
        base, number = safe_name(name), 1
        candidate = base
        while candidate.casefold() in used:
            number += 1
            candidate = f"{base}-{number}"
        used.add(candidate.casefold())
        found[name] = candidate
    return found
