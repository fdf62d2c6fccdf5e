"""Table files as records: CSV and TSV, JSONL, Parquet. A row that cannot be read costs that row alone."""

from __future__ import annotations

import csv
import json
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from capro.config import MAX_GROUP_ROWS, DataSettings
from capro.data.readers.base import ESCAPED, ReadingNotes, Record, unescaped, written_texts
from capro.data.readers.columns import (
    REPLACED,
    add_fields,
    choose_columns,
    class_name,
    if_missing,
    json_object,
    valid_text,
)
from capro.data.readers.text_files import MAX_LINE, WINDOWS, bounded_lines, encoding_of, open_text
from capro.errors import DataError, described, first_line
from capro.files import require_regular
from capro.pipeline.artefacts import check_table
from capro.stores import AnyPath, ObjectPath

CLOSE = "close the quote in the first of these lines; a cell with such lines has to be left out"
TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


def header(path: AnyPath, encoding: str = "auto") -> list[str]:
    """The column names of a table file; those of a JSONL file are the fields of all its records: one pass."""
    kind = path.suffix.lower()
    if kind == ".parquet":
        with open_parquet(path) as file:
            return list(file.schema_arrow.names)
    if kind == ".jsonl":
        names: dict[str, None] = {}
        for record in _jsonl(path, encoding):
            add_fields(names, record.cells)
        return [*names]
    with open_text(path, encoding) as text:
        return [name for name in _Table(text, path).names if name != ESCAPED]


def records(
    path: AnyPath,
    encoding: str = "auto",
    *,
    wanted: Collection[str] | None = None,
    max_group_rows: int = MAX_GROUP_ROWS,
) -> Iterator[Record]:
    """Every row of a CSV, TSV, JSONL or Parquet file (by its ending), bad ones with their problem.

    Args:
        path: The file.
        encoding: Of a text file.
        wanted: The columns that are needed, where others cost time (Parquet); None: all.
        max_group_rows: The most rows of a Parquet row group.
    """
    kind = path.suffix.lower()
    if kind == ".parquet":
        return parquet_records(path, wanted, max_group_rows)
    return _jsonl(path, encoding) if kind == ".jsonl" else csv_records(path, encoding)


def whole_records(path: AnyPath) -> Iterator[Record]:
    """Every row of a small table that a person made: one that cannot be read is an error."""
    for record in records(path):
        if record.problem:
            raise DataError(f"{path}: {record.problem}", hint="correct the row, or leave it out")
        if record.doubt:
            raise DataError(f"{path}: {record.doubt} are one row, and each could be a row", hint=CLOSE)
        yield record


class SourceTable:
    """Table files of the same columns, read as the settings of a source say; how, goes to its notes.

    Attributes:
        names: Of all columns.
        columns: Those that are read, by purpose.
    """

    def __init__(self, first: AnyPath, settings: DataSettings, split: str, notes: ReadingNotes) -> None:
        self._limit, self._notes = settings.max_group_rows, notes
        self._encoding = settings.encoding
        if settings.encoding == "auto" and first.suffix.lower() != ".parquet":
            self._encoding = encoding_of(first)  # a text table is one file
            if self._encoding == WINDOWS:
                notes.guessed_encodings = {first.name: WINDOWS}
        self.names = header(first, self._encoding)
        self.columns = choose_columns(self.names, settings, where=str(first), missing=if_missing(split))
        used = self._used = self.columns.used()
        notes.columns = used
        notes.unused = [valid_text(name) for name in self.names if name.strip() and name not in used.values()]

    def records(self, file: AnyPath, replaced: str = "replaced") -> Iterator[Record]:
        """The rows of one of the files; those with replaced bytes are counted under this name."""
        wanted = self._used.values()
        for record in records(file, self._encoding, wanted=wanted, max_group_rows=self._limit):
            self._notes.counts[replaced] += record.replaced
            if record.doubt:
                self._notes.doubtful_lines.append(f"{file.name}, {record.doubt}")
            yield record


def _jsonl(path: AnyPath, encoding: str) -> Iterator[Record]:
    with open_text(path, encoding) as file:
        for number, (line, cut) in enumerate(bounded_lines(file), start=1):
            if not line.strip():
                continue
            cells, problem = ({}, f"more than {MAX_LINE:,} characters") if cut else json_object(line)
            where = f"line {number}: {problem}" if problem else ""
            yield Record(number, written_texts(cells), where, REPLACED in line)


MANY_LINES = 20  # of a cell that are rows of the table: more are no chance
NEARLY_ALL = 0.9  # share of the lines
LOOKED_AT = 1000  # lines of a cell: what a swallowed table shows at once


def csv_records(path: AnyPath, encoding: str) -> Iterator[Record]:
    """Every row after the header, bad ones with their problem."""
    with open_text(path, encoding) as file:
        table = _Table(file, path)
        names = table.names
        for number, (cells, problem) in enumerate(table.rows(), start=1):
            wrong = problem
            if not problem and len(cells) != len(names):
                wrong = f"{table.where}: {len(cells)} cells under {len(names)} column names"
            named = unescaped(dict(zip(names, cells, strict=False)))
            replaced = any(REPLACED in cell for cell in cells)
            doubt = table.where if table.doubtful and not wrong else ""
            yield Record(number, named, wrong, replaced, doubt=doubt)


class _Table:
    """A CSV file whose header has been read."""

    def __init__(self, file: TextIO, path: AnyPath) -> None:
        csv.field_size_limit(MAX_LINE)
        self._separator, skipped = _separator(file, path)
        self._lines = bounded_lines(file)
        self._first = 1 + skipped  # number of the present row's first line
        self._again: deque[str] = deque()  # lines that come next
        self._row: list[str] = []  # lines of the present row
        self.names: list[str] = []
        cells, problem = next(self.rows(), ([], ""))
        if problem:
            raise DataError(
                f"{path}: the column names: {problem}", hint="correct the first line of the table"
            )
        self.names = cells

    def rows(self) -> Iterator[tuple[list[str], str]]:
        """Cells of each row, or what is wrong with it; ``where`` names its lines, ``doubtful`` if it may be more."""
        while True:
            self._first += len(self._row)
            self._row, problem = [], ""
            try:
                reader = csv.reader(self._lines_of_row(), delimiter=self._separator, strict=True)
                cells = next(reader, None)
                if cells is None:
                    return
                if self._swallowed(cells, self._row[1:-1]):
                    cells, problem = self._first_line()
            except csv.Error as error:
                cells, problem = self._first_line(str(error))
            if cells or problem:
                yield cells, problem and f"{self.where}: {problem}"

    def _lines_of_row(self) -> Iterator[str]:
        """Lines as csv.reader asks for them."""
        size = 0
        while line := self._again.popleft() if self._again else next(self._lines, ("", False))[0]:
            self._row.append(line)
            size += len(line)
            if size >= MAX_LINE:
                raise csv.Error(f"more than {MAX_LINE:,} characters")
            yield line

    @property
    def where(self) -> str:
        """The lines of the present row, from 1."""
        first, last = self._first, self._first + len(self._row) - 1
        return f"line {first}" if first == last else f"lines {first} to {last}"

    @property
    def doubtful(self) -> bool:
        """Whether each line of the present row could be a row."""
        return len(self._row) > 1 and len(self.names) > 1 and self._share_of_rows(self._row) >= NEARLY_ALL

    def _swallowed(self, cells: list[str], inner: Sequence[str]) -> bool:
        """Whether lines of a row that is well formed are rows of the table themselves."""
        if len(self.names) < 2:
            return False
        if len(cells) != len(self.names):
            return self._share_of_rows(inner) > 0
        return len(inner) >= MANY_LINES and self._share_of_rows(inner) >= NEARLY_ALL

    def _share_of_rows(self, lines: Sequence[str]) -> float:
        """The share of lines that have as many separators as a row of the table."""
        looked, separators = lines[:LOOKED_AT], len(self.names) - 1
        return sum(line.count(self._separator) == separators for line in looked) / max(1, len(looked))

    def _first_line(self, error: str = "") -> tuple[list[str], str]:
        """The first line of a row alone: what is wrong with it, or its cells; the others come again."""
        first, *others = self._row
        if others and not self._share_of_rows(others) and "expected after" in error:
            cells, problem = _leniently(self._row, self._separator)  # text behind a cell of several lines
            if not problem and len(cells) == len(self.names):
                return cells, ""
        self._again.extendleft(reversed(others))
        self._row = [first]
        return ([], error) if len(first) >= MAX_LINE else _leniently([first], self._separator)


def _leniently(lines: list[str], separator: str) -> tuple[list[str], str]:
    """The cells of a row in which text may follow a closing quote, or what is wrong with it."""
    asked = []

    def read_lines() -> Iterator[str]:
        yield from lines
        asked.append(True)  # the reader wants a further line: it is within a quote

    try:
        cells = next(csv.reader(read_lines(), delimiter=separator), [])
    except csv.Error as error:  # mostly a carriage return outside quotes
        return [], str(error).partition(" - ")[0]
    return ([], "a quote that is not closed") if asked else (cells, "")


def _separator(file: TextIO, path: AnyPath) -> tuple[str, int]:
    """What separates the cells, and the lines above the header, where it leaves the file.

    Excel may write ``sep=;`` above the header. Line ends of old Macs are recognised by the header's.
    """
    head = file.readline(MAX_LINE)
    if head.lower().startswith("sep=") and len(head.strip()) == 5:
        return head[4], 1
    file.seek(0)
    plain = head.rstrip("\r\n")
    if "\r" in plain and '"' not in plain.partition("\r")[0]:
        file.reconfigure(newline="")  # type: ignore[attr-defined]  # of io.TextIOWrapper
        head = plain.partition("\r")[0]
    if path.suffix.lower() == ".tsv" or head.count("\t") > max(head.count(","), head.count(";")):
        return "\t", 0
    return (";" if head.count(";") > head.count(",") else ","), 0


# --- Parquet --------------------------------------------------------------------------------------

ROWS_AT_ONCE = 256
BYTES_AT_ONCE = 32 << 20  # of a batch, by the average size of the group's rows
FOREIGN = (pa.ArrowException, OSError, ValueError, OverflowError)  # what pyarrow raises for damaged files


def parquet_file(path: AnyPath) -> pq.ParquetFile:
    """A Parquet file, as pyarrow opens it; of an object the columns of a row group come at once."""
    if isinstance(path, ObjectPath):
        return pq.ParquetFile(path.open(buffering=0), pre_buffer=True)
    require_regular(path)
    return pq.ParquetFile(path, buffer_size=1 << 20)


def open_parquet(path: AnyPath) -> pq.ParquetFile:
    """A Parquet file; pages are read as they are needed."""
    try:
        file = parquet_file(path)
        _ = file.schema_arrow.names  # a name that is not UTF-8 fails here
    except FOREIGN as error:
        raise DataError(
            f"{path}: not a Parquet file: {first_line(error)}", hint="check that the file is complete"
        ) from None
    check_table(file.schema_arrow.metadata, place=str(path), again="export it again with this version")
    return file


def parquet_records(path: AnyPath, wanted: Collection[str] | None, max_group_rows: int) -> Iterator[Record]:
    """Every row.

    Args:
        path: The file.
        wanted: The columns that are needed; None: all.
        max_group_rows: A larger row group is one record with that problem.
    """
    with open_parquet(path) as file:
        names = file.schema_arrow.names
        columns = [name for name in names if wanted is None or name in wanted]
        labels = class_labels(file.schema_arrow)
        number = 0
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if count > max_group_rows:
                detail = f"rows {number + 1} to {number + count}: {count} in row group {group + 1}"
                yield Record(number + 1, {}, detail, reason="large-group")
            else:
                yield from _group(file, group, columns, labels, number)
            number += count


def _group(
    file: pq.ParquetFile, group: int, columns: list[str], labels: Mapping[str, list[str]], before: int
) -> Iterator[Record]:
    """The rows of a group; from the first that cannot be read on, one record each with the problem."""
    facts = file.metadata.row_group(group)
    number, last = before, before + facts.num_rows
    average = facts.total_byte_size // max(1, facts.num_rows)
    rows_at_once = max(1, min(ROWS_AT_ONCE, BYTES_AT_ONCE // max(1, average)))
    try:
        for batch in file.iter_batches(rows_at_once, row_groups=[group], columns=columns):
            for record in _batch(batch, labels, number):
                number = record.number
                yield record
        problem = "the row group ends too early"
    except FOREIGN as error:
        problem = first_line(error)
    for missing in range(number + 1, last + 1):
        yield Record(missing, {}, problem=f"row {missing}: {problem}")


def _batch(batch: pa.RecordBatch, labels: Mapping[str, list[str]], before: int) -> Iterator[Record]:
    """The rows of a batch, with class names for numbers."""
    try:
        rows: list[Any] = batch.to_pylist()
    except FOREIGN:  # one bad cell fails the batch: each row is tried alone
        rows = [None] * batch.num_rows
    for at, row in enumerate(rows):
        number = before + at + 1
        try:
            columns = zip(batch.schema.names, batch.columns, strict=True)
            cells = row or {name: _value(column[at]) for name, column in columns}
            for name in labels.keys() & cells.keys():
                cells[name] = class_name(cells[name], labels[name])
        except (*FOREIGN, RecursionError) as error:
            yield Record(number, {}, problem=f"row {number}: {described(error)}")
            continue
        texts = () if row else cells.values()
        replaced = any(isinstance(value, str) and REPLACED in value for value in texts)
        yield Record(number, written_texts(cells), replaced=replaced)


def _value(cell: pa.Scalar) -> Any:
    """A cell as Python knows it; bytes of a text that are not UTF-8 become replacement characters."""
    if cell.is_valid and (pa.types.is_string(cell.type) or pa.types.is_large_string(cell.type)):
        return cell.as_buffer().to_pybytes().decode("utf-8", "replace")
    return cell.as_py()


def class_labels(columns: pa.Schema) -> dict[str, list[str]]:
    """Names behind integer labels where Hugging Face's ClassLabel wrote them into the schema."""
    try:
        features = json.loads((columns.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    names_by_column = {}
    for column, feature in features.items() if isinstance(features, dict) else []:
        inner = feature.get("feature", feature) if isinstance(feature, dict) else {}
        if isinstance(inner, dict) and isinstance(inner.get("names"), list):
            names_by_column[column] = inner["names"]
    return names_by_column


def holds_bytes(file: AnyPath, column: str) -> bool:
    """Whether a column holds image bytes (plain, or Hugging Face's {bytes, path})."""
    with open_parquet(file) as opened:
        kind = opened.schema_arrow.field(column).type
    if pa.types.is_struct(kind):
        at = kind.get_field_index("bytes")
        kind = kind.field(at).type if at >= 0 else pa.null()
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
