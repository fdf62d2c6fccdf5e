"""FiftyOne's image classification format: ``labels.json``, and ``data/`` or a ``data.json`` of paths.

A target is a class (a number where ``classes`` are given), an object with ``label`` and
``attributes``, or a list of either: multi-label. Paths of a ``data.json`` are absolute; they are
followed only below ``--image-root``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from capro.config import DataSettings
from capro.data.manifest import Row, Source
from capro.data.readers.base import Format, Pictures, Reader, Writer, guarded, plain_records
from capro.data.readers.columns import (
    choose_columns,
    class_name,
    file_below,
    is_inside,
    json_object,
    label_names,
    text_of,
)
from capro.errors import ConfigError, DataError
from capro.files import read_regular
from capro.pipeline.artefacts import write_json

LABELS, PLACES = "labels.json", "data.json"


class FiftyOneReader(Reader):
    """Reads one export folder."""

    def __init__(self, path: Path, settings: DataSettings, split: str) -> None:
        self._settings, self._split, self._file = settings, split, path / LABELS
        document = _object(self._file)
        labels, classes, whole = (document.get(key) for key in ("labels", "classes", "capro"))
        if not isinstance(labels, dict):
            raise DataError(
                f"{self._file}: no 'labels' object", hint="if it is a folder of images, use --format folder"
            )
        self._labels: dict[str, Any] = labels
        self._classes: list[Any] = classes if isinstance(classes, list) else []
        self._whole: dict[str, Any] = whole if isinstance(whole, dict) else {}
        if (path / PLACES).is_file():
            self.root = Path(settings.image_root) if settings.image_root else path
            self._places: dict[str, Any] = _object(path / PLACES)
        else:
            self.root = path / "data"
            files = (file.relative_to(self.root) for file in sorted(self.root.rglob("*")) if file.is_file())
            self._places = {
                file.with_suffix("").as_posix(): file.as_posix()
                for file in files
                if not file.name.startswith(".")
            }
        self.source = Source("files", str(self.root.resolve()))

    def count(self) -> int | None:
        """Labelled samples."""
        return len(self._labels)

    def listing(self) -> list[Path]:
        """The labels, the paths, and the pictures that they name."""
        pictures = (self._place(key) for key in self._labels)
        files = (self.root / picture["path"] for picture in pictures if "problem" not in picture)
        return [self._file, self._file.with_name(PLACES), *files]

    def rows(self) -> Iterator[Row]:
        """Every labelled sample, in the order of labels.json."""
        multi = any(isinstance(target, list) for target in self._labels.values())
        for key, target in self._labels.items():
            yield guarded(Row(f"{self._split}/{key}", "", self._split), self._row, key, target, multi)

    def _row(self, bare: Row, key: str, target: Any, multi: bool) -> Row:
        targets = target if isinstance(target, list) else [] if target is None else [target]
        values = [one.get("label") if isinstance(one, dict) else one for one in targets]
        labels, _ = label_names(class_name(values, self._classes), None)
        attributes = next((one.get("attributes") for one in targets if isinstance(one, dict)), None)
        known = (part for part in (attributes, self._whole.get(key)) if isinstance(part, dict))
        cells = {name: value for part in known for name, value in part.items()}
        columns = choose_columns(list(cells), self._settings, where=str(self._file), missing="leave out")
        return columns.row(bare, cells, labels=labels, multi_label=multi, **self._place(key))

    def _place(self, key: str) -> dict[str, Any]:
        name = text_of(self._places.get(key))
        if not name:
            return {"path": "", "problem": "missing-file", "detail": key}
        if Path(name).is_absolute():
            if not is_inside(self.root, Path(name)):
                detail = f"{name} (give --image-root to follow absolute paths)"
                return {"path": "", "problem": "outside-folder", "detail": detail}
            name = Path(name).resolve().relative_to(self.root.resolve()).as_posix()
        return file_below(self.root, name)


def _object(path: Path) -> dict[str, Any]:
    try:
        fields, problem = json_object(read_regular(path).decode("utf-8-sig"))
    except (OSError, ValueError) as error:
        problem = str(error)
    if problem:
        raise DataError(f"{path}: cannot be read: {problem}", hint="check the file")
    return fields


def _write(out: Path, table: pd.DataFrame, pictures: Pictures, names: Sequence[str]) -> None:
    """FiftyOneImageClassificationDataset: labels.json, and data/ or a data.json of paths.

    ``labels`` maps each picture to its target with attributes; the key ``capro``, which FiftyOne
    does not read, holds each sample's whole record.
    """
    index = {name: number for number, name in enumerate(names)}
    labels, whole, paths = dict[str, Any](), dict[str, Any](), dict[str, str]()
    for number, record in enumerate(plain_records(table)):
        key = str(PurePosixPath(record.pop("file_name")).with_suffix(""))
        if pictures.mode == "none":
            key = f"{number:08d}"
            path = pictures.path(number)
            if path is None:
                raise ConfigError("FiftyOne takes pictures from a disk", hint="use --images copy")
            paths[key] = str(path)
        web_labels = "given_label" if "label" in record else "given_labels"
        attributes = {name: record[name] for name in ("capro_id", "decision", "evidence", web_labels)}
        targets = [
            {"label": index[name], "attributes": attributes}
            for name in record.get("labels", [record.get("label")])
        ]
        labels[key] = targets[0] if "label" in record else targets
        whole[key] = record
    write_json(out / LABELS, {"classes": list(names), "labels": labels, "capro": whole})
    if paths:
        write_json(out / PLACES, paths)
    pictures.write_all("data")


FORMAT = Format(
    layout=f"give the folder that holds {LABELS}, and data/ or {PLACES}",
    recognises=lambda path, _: (
        (path / LABELS).is_file() and ((path / "data").is_dir() or (path / PLACES).is_file())
    ),
    readers=lambda path, settings, split: [FiftyOneReader(path, settings, split or "train")],
    writers={"fiftyone": Writer(_write)},
)
