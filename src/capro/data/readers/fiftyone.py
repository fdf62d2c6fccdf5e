"""FiftyOne's image classification format: ``labels.json``, and ``data/`` or a ``data.json`` of paths.

A target is a class (a number where ``classes`` are given), an object with ``label`` and
``attributes``, or a list of either: multi-label. Paths of a ``data.json`` are absolute; they are
followed only below ``--image-root``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capro.config import DataSettings
from capro.data.manifest import Row, Source
from capro.data.readers.base import Reader
from capro.data.readers.columns import GUESSES, is_inside, label_names, safe_relative, text_of
from capro.errors import DataError

LABELS, PLACES = "labels.json", "data.json"


def is_fiftyone(path: Path) -> bool:
    """Whether a folder looks like such an export."""
    return (path / LABELS).is_file() and ((path / "data").is_dir() or (path / PLACES).is_file())


class FiftyOneReader(Reader):
    """Reads one export folder."""

    def __init__(self, path: Path, settings: DataSettings, split: str) -> None:
        self.notes: dict[str, int] = {}
        self._settings = settings
        self._split = split
        document = _object(path / LABELS)
        labels = document.get("labels")
        if not isinstance(labels, dict):
            raise DataError(
                f"{path / LABELS}: no 'labels' object", hint="is it a folder? use --format folder"
            )
        self._labels: dict[str, Any] = labels
        classes = document.get("classes")
        self._classes: list[Any] = classes if isinstance(classes, list) else []
        whole = document.get("capro")
        self._whole: dict[str, Any] = whole if isinstance(whole, dict) else {}
        if (path / PLACES).is_file():
            self.root = Path(settings.image_root) if settings.image_root else path
            self._places = {key: text_of(v) for key, v in _object(path / PLACES).items()}
        else:
            self.root = path / "data"
            self._places = {}
            for file in sorted(self.root.rglob("*")):
                if file.is_file() and not file.name.startswith("."):
                    relative = file.relative_to(self.root)
                    self._places[str(relative.with_suffix("").as_posix())] = relative.as_posix()
        self.source = Source("files", str(self.root.resolve()))
        self._file = path / LABELS

    def count(self) -> int | None:
        """Labelled samples."""
        return len(self._labels)

    def listing(self) -> list[Path]:
        """The labels."""
        return [self._file]

    def rows(self) -> Iterator[Row]:
        """Every labelled sample, in the order of labels.json."""
        multi = any(isinstance(target, list) for target in self._labels.values())
        for key, target in self._labels.items():
            yield self._row(key, target, multi)

    def _row(self, key: str, target: Any, multi: bool) -> Row:
        found = target if isinstance(target, list) else [] if target is None else [target]
        names = [self._name(one) for one in found]
        attributes = next((one.get("attributes") for one in found if isinstance(one, dict)), None)
        cells: dict[str, Any] = dict(attributes) if isinstance(attributes, dict) else {}
        record = self._whole.get(key)
        cells |= record if isinstance(record, dict) else {}

        def cell(purpose: str) -> str:
            named = getattr(self._settings, f"{purpose}_column")
            guesses = [named] if named else GUESSES[purpose]
            return text_of(next((cells[name] for name in guesses if name in cells), None))

        labels, _ = label_names(names, None)
        path, problem, detail = self._place(key)
        return Row(
            cell("id") or f"{self._split}/{key}", path, cell("split") or self._split,
            title=cell("text"), description=cell("description"), tags=cell("tags"),
            labels=labels, listed=multi, problem=problem, detail=detail[:500],
        )  # fmt: skip

    def _name(self, target: Any) -> Any:
        value = target.get("label") if isinstance(target, dict) else target
        if isinstance(value, int) and self._classes:
            return self._classes[value] if 0 <= value < len(self._classes) else None
        return value

    def _place(self, key: str) -> tuple[str, str | None, str]:
        name = self._places.get(key)
        if name is None:
            return "", "missing-file", key
        path = self.root / name  # an absolute name wins over the root
        relative = safe_relative(name)
        if Path(name).is_absolute() and is_inside(self.root, path):
            relative = path.resolve().relative_to(self.root.resolve()).as_posix()
        if relative is None or not is_inside(self.root, self.root / relative):
            return "", "outside-folder", f"{name} (give --image-root to follow absolute paths)"
        if not (self.root / relative).is_file():
            return relative, "missing-file", name
        return relative, None, ""


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read: {error}", hint="check the file") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: not a JSON object", hint="check the file")
    return found
