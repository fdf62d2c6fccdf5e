"""A Hugging Face data set by name, through the optional ``datasets`` package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capro.config import DataSettings
from capro.data.manifest import Row, Source
from capro.data.readers.base import Reader
from capro.data.readers.columns import Columns, choose, label_names, text_of
from capro.errors import DataError


def load_hub(name: str) -> Any:
    """A data set with its splits; images stay encoded bytes."""
    try:
        import datasets
    except ImportError:
        raise DataError(f"hub:{name} needs the 'datasets' package", hint="pip install 'capro[hub]'") from None
    path, _, config = name.partition("@")
    try:
        found = datasets.load_dataset(path, config or None)
    except Exception as error:
        raise DataError(
            f"hub:{name}: {str(error).splitlines()[0][:300]}",
            hint="check the name (hub:OWNER/NAME or hub:OWNER/NAME@CONFIG) and the network",
        ) from None
    for split, data in found.items():
        for column, feature in data.features.items():
            if isinstance(feature, datasets.Image):
                found[split] = data.cast_column(column, datasets.Image(decode=False))
    return found


class HubReader(Reader):
    """Reads all splits of a hub data set."""

    def __init__(self, name: str, settings: DataSettings, split: str | None) -> None:
        self.name = name
        self.notes: dict[str, int] = {}
        self._settings = settings
        self._split = split
        self._data = load_hub(name)
        first = next(iter(self._data.values()))
        self._columns = choose(first.column_names, settings, place=f"hub:{name}")
        if self._columns.image is None:
            raise DataError(f"hub:{name}: no image column", hint="name it with --image-column")
        self.source = Source("hub", name, self._columns.image)

    def count(self) -> int | None:
        """Rows of all splits."""
        return sum(len(data) for data in self._data.values())

    def listing(self) -> list[Path]:
        """Nothing on this disk: the name stands for the data."""
        return []

    def rows(self) -> Iterator[Row]:
        """Every row, split by split; ``path`` is the split's name."""
        order = ("train", "validation", "val", "test")
        known = [split for split in order if split in self._data]
        for split in known + sorted(set(self._data) - set(known)):
            data = self._data[split]
            names = _class_names(data, self._columns)
            for number, cells in enumerate(data):
                yield self._row(split, number, cells, names)

    def _row(self, split: str, number: int, cells: dict[str, Any], names: list[str]) -> Row:
        columns = self._columns

        def cell(column: str | None) -> Any:
            return cells.get(column) if column else None

        data = image_bytes(cell(columns.image))
        value = cell(columns.label)
        if names:
            value = [_name(v, names) for v in value] if isinstance(value, list) else _name(value, names)
        labels, listed = label_names(value, self._settings.label_separator)
        return Row(
            text_of(cell(columns.id)) or f"{split}/{number:08d}",
            split,
            self._split or text_of(cell(columns.split)) or split.replace("validation", "val"),
            row=number,
            title=text_of(cell(columns.text)),
            description=text_of(cell(columns.description)),
            tags=text_of(cell(columns.tags)),
            labels=labels,
            listed=listed,
            problem=None if data else "no-image",
            data=data,
        )


def image_bytes(cell: Any) -> bytes | None:
    """The encoded image of a cell: bytes, or Hugging Face's {bytes, path}."""
    data = cell.get("bytes") if isinstance(cell, dict) else cell
    if data is None and isinstance(cell, dict) and cell.get("path"):
        try:
            return Path(cell["path"]).read_bytes()
        except OSError:
            return None
    return data if isinstance(data, bytes) else None


def _class_names(data: Any, columns: Columns) -> list[str]:
    feature = data.features.get(columns.label) if columns.label else None
    inner = getattr(feature, "feature", feature)
    return list(getattr(inner, "names", None) or [])


def _name(value: Any, names: list[str]) -> Any:
    if isinstance(value, int):
        return names[value] if 0 <= value < len(names) else None
    return value
