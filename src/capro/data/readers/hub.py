"""A Hugging Face dataset by name, through the optional ``datasets`` package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from capro.config import DataSettings
from capro.data.manifest import Row, Source
from capro.data.readers.base import Format, Reader, guarded
from capro.data.readers.columns import cell_bytes, choose_columns, class_name, if_missing, image_column
from capro.errors import DataError, first_line
from capro.files import read_regular


def load_hub(name: str) -> Mapping[str, Any]:
    """The splits of a dataset."""
    try:
        import datasets
    except ImportError:
        raise DataError(f"hub:{name} needs the 'datasets' package", hint="pip install 'capro[hub]'") from None
    path, _, config = name.partition("@")
    try:
        splits = datasets.load_dataset(path, config or None)
    except Exception as error:
        raise DataError(
            f"hub:{name}: {first_line(error)}",
            hint="check the name (hub:OWNER/NAME or hub:OWNER/NAME@CONFIG) and the network",
        ) from None
    return {split: undecoded(data) for split, data in splits.items()}


def undecoded(data: Any) -> Any:
    """A dataset whose images are encoded bytes, not decoded pictures."""
    import datasets

    for column, feature in (data.features or {}).items():
        if isinstance(feature, datasets.Image):
            data = data.cast_column(column, datasets.Image(decode=False))
    return data


def hub_bytes(cell: Any) -> bytes | None:
    """The encoded image of a cell, whose path is a file that the datasets package has fetched."""
    data = cell_bytes(cell)
    if data is None and isinstance(cell, dict) and isinstance(cell.get("path"), str):
        try:
            return read_regular(cell["path"])
        except (OSError, ValueError):
            return None
    return data


class HubReader(Reader):
    """Reads all splits of a hub dataset.

    Args:
        name: Of the dataset.
        splits: Its rows, by split; images are encoded bytes.
        settings: Columns.
        split: Put every row into this split.
    """

    def __init__(
        self, name: str, splits: Mapping[str, Any], settings: DataSettings, split: str | None = None
    ) -> None:
        self._splits, self._split = splits, split
        names = list(next(iter(splits.values())).column_names)
        columns = choose_columns(names, settings, where=name, missing=if_missing(split or "train"))
        self.source = Source("hub", name.removeprefix("hub:"), image_column(columns, names, where=name))
        self._columns = replace(columns, split=None) if split else columns
        self.notes.columns = columns.used()
        self.notes.unused = [each for each in names if each not in self.notes.columns.values()]

    def count(self) -> int | None:
        """Rows of all splits."""
        return sum(len(data) for data in self._splits.values())

    def listing(self) -> list[Path]:
        """Nothing on this disk: the name stands for the data."""
        return []

    def rows(self) -> Iterator[Row]:
        """Every row, split by split; ``path`` is the split's name."""
        order = ("train", "validation", "val", "test")
        columns = self._columns
        for split in sorted(self._splits, key=lambda name: (order.index(name) if name in order else 9, name)):
            data = self._splits[split]
            feature = (data.features or {}).get(columns.label)
            names = getattr(getattr(feature, "feature", feature), "names", None) or []
            for number, cells in enumerate(data):
                own = self._split or split.replace("validation", "val")
                bare = Row(f"{split}/{number:08d}", split, own, row=number)
                yield guarded(bare, self._row, cells, names)

    def _row(self, bare: Row, cells: Mapping[str, Any], names: Sequence[Any]) -> Row:
        image = hub_bytes(cells[self.source.image_column or ""])
        label = self._columns.label
        numbered: dict[Any, Any] = {**cells, label: class_name(cells.get(label or ""), names)}
        return self._columns.row(bare, numbered, problem=None if image else "no-image", data=image)


FORMAT = Format(
    layout="give the name of a dataset, hub:OWNER/NAME",
    recognises=lambda *_: False,  # a name is no path: see `find`
    readers=lambda path, settings, split: [HubReader(f"hub:{path}", load_hub(str(path)), settings, split)],
)
