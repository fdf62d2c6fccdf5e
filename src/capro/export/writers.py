"""One writer per format. Each gets the cleaned table, the pictures and the class names."""

from __future__ import annotations

import csv
import io
import json
import math
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from capro.run.artefacts import write_json

SHARD = 10_000  # samples per tar or Parquet shard
BLOCK = 256  # samples in memory


class PicturesLike(Protocol):
    """Names of the pictures and ways to write or read them (see cleaned.Pictures)."""

    names: list[str]
    mode: str

    def __len__(self) -> int: ...
    def read(self, number: int) -> bytes: ...
    def path(self, number: int) -> Path | None: ...
    def write_all(self, below: str = "") -> None: ...


Writer = Callable[[Path, pd.DataFrame, PicturesLike, Sequence[str]], None]


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """A CSV in which lists are JSON, as ``capro scan`` reads them."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
        writer.writerow(table.columns)
        for row in table.itertuples(index=False, name=None):
            writer.writerow(
                json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value
                for value in map(_plain, row)
            )


def _plain(value: Any) -> Any:
    """A cell as Python knows it: null and NaN become None."""
    if isinstance(value, float) and math.isnan(value):
        return None
    return round(value, 6) if isinstance(value, float) else value


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows = table.itertuples(index=False, name=None)
    return [dict(zip(table.columns, map(_plain, row), strict=True)) for row in rows]


def folder(out: Path, table: pd.DataFrame, pictures: PicturesLike, _: Sequence[str]) -> None:
    """LABEL/NUMBER-NAME.png and metadata.csv: an image folder as torchvision and Hugging Face read."""
    write_csv(out / "metadata.csv", table)
    pictures.write_all()


def csv_table(out: Path, table: pd.DataFrame, pictures: PicturesLike, _: Sequence[str]) -> None:
    """samples.csv, and images/ where they were asked for."""
    write_csv(out / "samples.csv", table)
    pictures.write_all()


def parquet(out: Path, table: pd.DataFrame, pictures: PicturesLike, _: Sequence[str]) -> None:
    """samples.parquet, and images/ where they were asked for."""
    table.to_parquet(out / "samples.parquet", index=False)
    pictures.write_all()


def webdataset(out: Path, table: pd.DataFrame, pictures: PicturesLike, names: Sequence[str]) -> None:
    """train-000000.tar ...: KEY.png, KEY.json and, for one label, KEY.cls with the class number."""
    index = {name: number for number, name in enumerate(names)}
    records = _records(table.drop(columns="file_name"))
    for shard, begin in enumerate(range(0, len(table), SHARD)):
        with tarfile.open(out / f"train-{shard:06d}.tar", "w", format=tarfile.PAX_FORMAT) as tar:
            for number in range(begin, min(begin + SHARD, len(table))):
                record = records[number]
                ending = PurePosixPath(pictures.names[number]).suffix
                _add(tar, f"{number:09d}{ending}", pictures.read(number))
                _add(tar, f"{number:09d}.json", json.dumps(record, ensure_ascii=False).encode())
                if "label" in record:
                    _add(tar, f"{number:09d}.cls", str(index[record["label"]]).encode())


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)  # no time, no owner: the same export gives the same bytes
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def hugging_face(out: Path, table: pd.DataFrame, pictures: PicturesLike, names: Sequence[str]) -> None:
    """train-00000-of-00002.parquet ... with image bytes and ClassLabel, and a README.md card."""
    schema = _hf_schema(table, names)
    index = {name: number for number, name in enumerate(names)}
    records = _records(table)
    shards = -(-len(table) // SHARD)
    for shard in range(shards):
        file = out / f"train-{shard:05d}-of-{shards:05d}.parquet"
        last = min((shard + 1) * SHARD, len(table))
        with pq.ParquetWriter(file, schema) as writer:
            for begin in range(shard * SHARD, last, BLOCK):
                block = []
                for number in range(begin, min(begin + BLOCK, last)):
                    row = records[number]
                    image = {"bytes": pictures.read(number), "path": row.pop("file_name")}
                    if "label" in row:
                        row["label"] = index[row["label"]]
                    else:
                        row["labels"] = [index[name] for name in row["labels"]]
                    block.append({"image": image, **row})
                writer.write_table(pa.Table.from_pylist(block, schema=schema))
    card = [
        "---", "configs:", "- config_name: default", "  data_files:", "  - split: train",
        "    path: train-*.parquet", "task_categories:", "- image-classification", "tags:",
        "- capro", "---", "# Cleaned data set", "",
        "Made by `capro export`: `label` is the corrected label, `given_label` the one it came "
        "with; `decision` and `evidence` say why. Samples that were dropped are in `dropped.csv`.",
    ]  # fmt: skip
    (out / "README.md").write_text("\n".join(card) + "\n", "utf-8")


def _hf_schema(table: pd.DataFrame, names: Sequence[str]) -> pa.Schema:
    """Arrow columns, and the features that the datasets library reads from their metadata."""
    fields: list[tuple[str, pa.DataType]] = [
        ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    ]
    features: dict[str, Any] = {"image": {"_type": "Image"}}
    label = {"names": list(names), "_type": "ClassLabel"}
    text = {"dtype": "string", "_type": "Value"}
    kinds: dict[str, tuple[pa.DataType, Any]] = {
        "label": (pa.int64(), label),
        "labels": (pa.list_(pa.int64()), {"feature": label, "_type": "Sequence"}),
        "given_labels": (pa.list_(pa.string()), {"feature": text, "_type": "Sequence"}),
        "label_score": (pa.float64(), {"dtype": "float64", "_type": "Value"}),
    }
    for column in table.columns:
        if column != "file_name":
            kind, feature = kinds.get(column, (pa.string(), text))
            fields.append((column, kind))
            features[column] = feature
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema(fields, metadata=metadata)


def fiftyone(out: Path, table: pd.DataFrame, pictures: PicturesLike, names: Sequence[str]) -> None:
    """FiftyOneImageClassificationDataset: labels.json, and data/ or a data.json of paths.

    ``labels`` maps each picture to its target with attributes; the key ``capro``, which FiftyOne
    does not read, holds each sample's whole record.
    """
    index = {name: number for number, name in enumerate(names)}
    labels: dict[str, Any] = {}
    whole: dict[str, Any] = {}
    places: dict[str, str] = {}
    for number, record in enumerate(_records(table)):
        file = record.pop("file_name")
        in_place = pictures.mode == "none"
        key = f"{number:08d}" if in_place else str(PurePosixPath(file).with_suffix(""))
        if in_place:
            places[key] = str(pictures.path(number))
        given = "given_label" if "label" in record else "given_labels"
        said = {name: record[name] for name in ("capro_id", "decision", "evidence", given)}
        if "label" in record:
            labels[key] = {"label": index[record["label"]], "attributes": said}
        else:
            labels[key] = [{"label": index[name], "attributes": said} for name in record["labels"]]
        whole[key] = record
    write_json(out / "labels.json", {"classes": list(names), "labels": labels, "capro": whole})
    if places:
        write_json(out / "data.json", places)
    pictures.write_all("data")


WRITERS: dict[str, Writer] = {
    "folder": folder,
    "csv": csv_table,
    "parquet": parquet,
    "webdataset": webdataset,
    "hf": hugging_face,
    "fiftyone": fiftyone,
}
