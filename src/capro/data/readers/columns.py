"""Which column is what, and how a cell becomes text, labels or an image; shared by all readers."""

from __future__ import annotations

import json
import math
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from capro.config import MAX_NESTING, DataSettings
from capro.data.manifest import Row
from capro.data.readers.base import IDENTITY, TooDeep, WrittenText, looks_listed
from capro.errors import DataError, did_you_mean, first_line
from capro.stores import AnyPath, ObjectPath

# Compared without case, blanks, underscores and hyphens. A column is read for one kind of text only.
GUESSES = {
    "image": ("image", "file_name", "filename", "path", "image_path", "filepath", "file", "img", "jpg"),
    "label": ("label", "labels", "class", "category", "target", "cls"),
    "text": ("title", "caption", "text", "txt", "alt", "alt_text", "page_title"),
    "description": ("description", "desc", "page_title", "alt_text", "alt"),
    "tags": ("tags", "keywords", "hashtags"),
    "id": (IDENTITY,),  # of our own exports; no other column is taken for an id without being named
    "split": ("split",),
}
TEXTS = ("text", "description", "tags")  # purposes that give a sample its text
MAX_FIELDS = 10_000  # different names that are kept of records with fields of their own
REPLACED = "\N{REPLACEMENT CHARACTER}"  # for bytes that are not in the file's encoding
Missing = Literal["refuse", "guess", "leave out"]


@dataclass(frozen=True)
class Columns:
    """The name of the column for each purpose; None where there is none."""

    image: str | None = None
    label: str | None = None
    text: str | None = None
    description: str | None = None
    tags: str | None = None
    id: str | None = None
    split: str | None = None
    separator: str | None = None  # splits a label cell
    nesting: int = MAX_NESTING  # levels of lists and objects in a cell

    def used(self) -> dict[str, str]:
        """The columns that are read, by purpose."""
        return {purpose: name for purpose, name in asdict(self).items() if purpose in GUESSES and name}

    def row(self, bare: Row, /, cells: Mapping[Any, Any], **known: Any) -> Row:
        """Cells as a row: the one way from a source's columns to labels, texts, id and split.

        Args:
            bare: The row without its cells; it keeps its id and split where the cells have none.
            cells: By column.
            known: Further fields of the row, which win over the cells.
        """
        labels, multi_label = label_names(cells.get(self.label), self.separator, self.nesting)
        values: dict[str, Any] = {
            "id": text_of(cells.get(self.id)) or bare.id,
            "split": text_of(cells.get(self.split)) or bare.split,
            "title": text_of(cells.get(self.text), self.nesting),
            "description": text_of(cells.get(self.description), self.nesting),
            "tags": text_of(cells.get(self.tags), self.nesting),
            "labels": labels,
            "multi_label": multi_label,
        }
        return replace(bare, **(values | known))


def named_columns(settings: DataSettings) -> dict[str, str]:
    """The columns that the settings name, by purpose."""
    named = {purpose: getattr(settings, f"{purpose}_column") for purpose in GUESSES}
    return {purpose: column for purpose, column in named.items() if column is not None}


def if_missing(split: str) -> Missing:
    """What becomes of a column that the settings name and a source lacks: only training data must have it.

    Test data needs pictures and labels, not the texts of the crawl.

    >>> if_missing("train"), if_missing("test")
    ('refuse', 'guess')
    """
    return "refuse" if split == "train" else "guess"


def choose_columns(
    names: Sequence[str], settings: DataSettings, *, where: str, missing: Missing = "refuse"
) -> Columns:
    """Match column names to purposes: as the settings name them, else by common names.

    Args:
        names: Of the columns.
        settings: Which columns were named.
        where: Where the columns are, for the message.
        missing: What becomes of a column that was named and is not there: an error, a guess like one that
            was not named, or nothing (a row of a source whose rows differ).

    >>> choose_columns(["File-Name", "Alt Text", "label"], DataSettings(), where="metadata.csv").text
    'Alt Text'
    """
    named = named_columns(settings)
    for purpose, column in named.items():
        if missing == "refuse" and column not in names:
            raise DataError(
                f"{where}: no column '{column}' for --{purpose}-column",
                hint=did_you_mean(column, map(valid_text, names)),
            )
    if missing == "guess":
        named = {purpose: column for purpose, column in named.items() if column in names}
    chosen = guess_columns(names, named) | named
    for purpose, name in chosen.items():
        if name is not None and names.count(name) > 1:
            raise DataError(
                f"{where}: {names.count(name)} columns are called '{name}', which is read as {purpose}",
                hint=f"rename one of them, or name another column with --{purpose}-column",
            )
    return Columns(**chosen, separator=settings.label_separator, nesting=settings.max_nesting)


def guess_columns(names: Sequence[str], named: Mapping[str, str]) -> dict[str, str | None]:
    """The columns for purposes that are not named yet, by common names; of equal names the first.

    >>> chosen = guess_columns(["page title", "ALT_TEXT", "Path"], {})
    >>> chosen["image"], chosen["text"], chosen["description"]
    ('Path', 'ALT_TEXT', 'page title')
    """
    known = {_plain_name(name): name for name in reversed(names)}
    chosen: dict[str, str | None] = {}
    texts = {named[purpose] for purpose in TEXTS if purpose in named}
    for purpose, guesses in GUESSES.items():
        if purpose in named:
            continue
        candidates = [known[_plain_name(guess)] for guess in guesses if _plain_name(guess) in known]
        if purpose in TEXTS:
            candidates = [name for name in candidates if name not in texts]
            texts.update(candidates[:1])
        chosen[purpose] = candidates[0] if candidates else None
    return chosen


def _plain_name(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold()


_GUESSED = frozenset(_plain_name(guess) for guesses in GUESSES.values() for guess in guesses)


def image_column(columns: Columns, names: Sequence[str], *, where: str) -> str:
    """The column with the images, which there must be."""
    if columns.image is None:
        raise DataError(
            f"{where}: no column with images among {valid_text(', '.join(names[:12]))[:500]}",
            hint="name it with --image-column (data.image_column)",
        )
    return columns.image


def text_of(value: Any, nesting: int = MAX_NESTING) -> str:
    """A cell as text; lists are joined, numbers kept, nothing is lost but null.

    Args:
        value: Of the cell.
        nesting: Levels of lists and objects in it; more are a problem of the row.

    >>> text_of(["red", "car"]), text_of(None), text_of(3)
    ('red car', '', '3')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping | list | tuple):
        if nesting == 0:
            raise TooDeep(f"{type(value).__name__} in a list or object at the limit")
        items = value.values() if isinstance(value, Mapping) else value
        return " ".join(text_of(item, nesting - 1) for item in items)
    return str(value)


def label_names(
    value: Any, separator: str | None, nesting: int = MAX_NESTING
) -> tuple[tuple[str, ...], bool]:
    """A label cell as labels, and whether it was a list (multi-label).

    Args:
        value: Of the cell.
        separator: Splits a text.
        nesting: Levels of lists and objects in it.

    >>> label_names("cat", None), label_names(["cat", "dog"], None), label_names("cat; dog", ";")
    ((('cat',), False), (('cat', 'dog'), True), (('cat', 'dog'), True))
    """
    multi_label = bool(separator)
    if isinstance(value, str):
        if separator:
            value = value.split(separator)
        elif looks_listed(value):
            try:
                parsed = json.loads(value)  # a list that went through a CSV
            except (ValueError, RecursionError):
                parsed = None
            value = parsed if isinstance(parsed, list) else value
    if isinstance(value, list | tuple):
        multi_label = True
    else:
        value = [value]
    names = (" ".join(text_of(part, nesting - 1).split()) for part in value)
    return tuple(dict.fromkeys(name for name in names if name)), multi_label


def class_name(value: Any, names: Sequence[Any]) -> Any:
    """The name behind a number, where a source numbers its classes; a list of them for a list.

    >>> class_name(1, ["cat", "dog"]), class_name([0, -1], ["cat", "dog"]), class_name("cat", [])
    ('dog', ['cat', None], 'cat')
    """
    if isinstance(value, list):
        return [class_name(item, names) for item in value]
    if names and isinstance(value, int):
        name = names[value] if 0 <= value < len(names) else None  # -1: Hugging Face's "no label"
        return WrittenText(name) if isinstance(name, str) else name
    return value


def cell_bytes(cell: Any) -> bytes | None:
    """The encoded image of a cell: bytes, or Hugging Face's {bytes, path}; its path is not followed."""
    data = cell.get("bytes") if isinstance(cell, dict) else cell
    return data if isinstance(data, bytes) else None


def safe_relative(name: str) -> str | None:
    r"""A path from metadata, normalised; None if it leaves the folder or is no path.

    >>> safe_relative("cats/1.jpg"), safe_relative("cats\\1.jpg"), safe_relative("./a//b.jpg")
    ('cats/1.jpg', 'cats/1.jpg', 'a/b.jpg')
    >>> [safe_relative(name) for name in ("../1.jpg", "/etc/passwd", "C:/1.jpg", "a/../../b", "")]
    [None, None, None, None, None]
    """
    name = name.strip().replace("\\", "/")
    if not name or "\0" in name or name.startswith("/") or re.match(r"^[A-Za-z]:", name):
        return None
    parts = PurePosixPath(name).parts
    if ".." in parts or not parts:
        return None
    return "/".join(parts)


def safe_location(name: str, detail: str) -> dict[str, Any]:
    """The path of a row by a published list, or that it leaves the folder."""
    path = safe_relative(name)
    return {"path": path} if path else {"path": "", "problem": "outside-folder", "detail": detail}


def is_inside(root: Path, path: Path) -> bool:
    """Whether a path, symbolic links followed, stays in the folder."""
    try:
        real, inside = os.path.realpath(path), os.path.realpath(root)
        return os.path.commonpath([real, inside]) == inside
    except (OSError, RuntimeError, ValueError):  # a loop of links, a name that no file system has
        return False


def file_below(root: AnyPath, name: str) -> dict[str, Any]:
    """The path of a row whose image is a file below a folder, or why it cannot be used.

    An object is not looked for here, where rows are read one after the other: it is when its image is read.
    """
    relative = safe_relative(name)
    if valid_text(name) != name:
        return {"path": "", "problem": "bad-name", "detail": ascii(name)}
    outside = {"path": "", "problem": "outside-folder", "detail": name}
    if isinstance(root, ObjectPath):
        return outside if relative is None else {"path": relative}
    if relative is None or not is_inside(root, root / relative):
        return outside
    # a name with accents has two forms in Unicode: macOS writes one, tables mostly have the other
    forms = [relative, *(unicodedata.normalize(form, relative) for form in ("NFC", "NFD"))]
    existing = next((form for form in forms if os.path.isfile(root / form)), None)  # False for names too long
    if existing is not None:
        return {"path": existing}
    there = any(os.path.exists(root / form) for form in forms)
    return {"path": relative, "problem": "not-a-file" if there else "missing-file", "detail": name}


def json_object(text: str) -> tuple[dict[str, Any], str]:
    """The fields of a JSON object, or what is wrong with it."""
    try:
        parsed = json.loads(text)
    except RecursionError:
        return {}, "nested too deeply"
    except ValueError as error:
        return {}, first_line(error)
    return (parsed, "") if isinstance(parsed, dict) else ({}, "not an object")


def add_fields(names: dict[str, None], fields: Iterable[str]) -> None:
    """Add the fields of a record to those of the records before it, in the order in which they first occur.

    Beyond MAX_FIELDS names only those are added that may be read for something.
    """
    for name in fields:
        if name not in names and (len(names) < MAX_FIELDS or _plain_name(name) in _GUESSED):
            names[name] = None


def valid_text(text: str) -> str:
    r"""Text that can be written: lone surrogates become question marks.

    >>> valid_text("caf\udce9")
    'caf?'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
