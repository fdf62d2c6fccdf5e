"""Artefacts: the files that stages leave in a run directory, their names and format versions."""

from __future__ import annotations

import errno
import json
import os
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from capro import __version__
from capro.errors import RunError, shortened
from capro.pipeline import files
from capro.pipeline.files import writing

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from scipy.sparse import csr_array
    from torch import Tensor


@dataclass(frozen=True)
class FormatVersion:
    """The version of a format that this capro writes, the only one that it reads.

    Attributes:
        name: Of the format, in messages.
        now: Raised when the format changes.
    """

    name: str
    now: int = 1

    def check(self, version: Any, *, place: str, made_by: Any, again: str) -> None:
        """Refuse a version that this capro does not read.

        Args:
            version: As it was read; None where there is none.
            place: The file or folder.
            made_by: The version of capro that wrote it, if it says so.
            again: How to get one that can be read.
        """
        if type(version) is int and version == self.now:
            return
        known = isinstance(made_by, str) and made_by not in ("", __version__)
        writer = f" by capro {made_by[:20]}" if known else ""
        raise RunError(
            f"{place}: {self.name} of version {shortened(version)}{writer}, capro {__version__} reads {self.now}",
            hint=f"{f'install capro {made_by[:20]}' if known else 'install the capro that made it'}, or {again}",
        )


RUN_FORMAT = FormatVersion("a run directory")
VERDICT_FORMAT = FormatVersion("a table of verdicts")
MODEL_FORMAT = FormatVersion("a model folder")

_TABLE, _WRITER = b"capro_table", b"capro_version"  # keys in the metadata of a Parquet schema


def table_metadata() -> dict[bytes, bytes]:
    """What a table of verdicts says about itself in the metadata of its Parquet schema."""
    return {_TABLE: str(VERDICT_FORMAT.now).encode(), _WRITER: __version__.encode()}


def check_table(metadata: Mapping[bytes, bytes] | None, *, place: str, again: str) -> None:
    """Refuse a table of verdicts of a version that this capro does not read; any other table passes."""
    if not metadata or _TABLE not in metadata:
        return
    text = metadata[_TABLE].decode("utf-8", "replace")
    version = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else text
    writer = metadata.get(_WRITER, b"").decode("utf-8", "replace")
    VERDICT_FORMAT.check(version, place=place, made_by=writer, again=again)


T = TypeVar("T")
SETTINGS, FINISHED, EVENTS = "run.yaml", "stage.json", "events.jsonl"  # FINISHED: in the folder of each stage
REVIEW, DECISIONS = "review", "decisions.sqlite"  # the folder of a review, and its log


# --- writing and reading --------------------------------------------------------------------------


@contextmanager
def atomic_path(path: Path, *, needed: int | None = None, cache: bool = False) -> Iterator[Path]:
    """A temporary path beside ``path`` that replaces it when the block ends without an exception.

    Args:
        path: What is written.
        needed: Bytes, where they are known: named where the disk is full.
        cache: It can be made again at any time: nothing waits for the disk.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with atomic_path(target) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> target.read_text(), [p.name for p in target.parent.iterdir()]
    ('whole', ['a.txt'])
    """
    with writing(path, needed=needed):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        files.make_folder(path.parent)
        temporary = _temporary(path)
        try:
            temporary.touch()
            rights = temporary.stat().st_mode
            yield temporary
            if temporary.stat().st_mode != rights:  # safetensors makes a file for its owner alone
                temporary.chmod(rights)
            if cache:
                os.replace(temporary, path)
            else:
                files.sync(temporary)
                files.rename(temporary, path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    """A name beside a file, of this thread alone; a long name is cut, since file systems stop at 255 bytes."""
    stem = path.stem.encode()[:60].decode(errors="ignore")
    # the suffix stays last: some writers (np.save) append one otherwise
    return path.with_name(f".{stem}.{os.getpid()}.{threading.get_ident()}.tmp{path.suffix}")


def temporaries(folder: Path, name: str = "") -> list[Path]:
    """What processes that were killed while writing have left: of a file, or of any in the folder."""
    if name:
        return sorted(folder.glob(f".{Path(name).stem}.*.tmp{Path(name).suffix}"))
    return sorted(
        [*folder.glob(".*.*.tmp*"), *folder.glob(".tmp" + 6 * "[a-zA-Z0-9]")]
    )  # the latter: safetensors'


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, "utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text("utf-8"))


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write an ``.npy`` file, whole or not at all."""
    with atomic_path(path, needed=array.nbytes) as temporary:
        np.save(temporary, array, allow_pickle=False)


def read_array(path: Path) -> NDArray[Any]:
    """Open an ``.npy`` file as a read-only memory map."""
    return cast(NDArray[Any], np.load(path, mmap_mode="r", allow_pickle=False))


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write a Parquet table, whole or not at all."""
    with atomic_path(path) as temporary:
        frame.to_parquet(temporary, index=False)


def write_verdicts(path: Path, frames: Iterable[pd.DataFrame], types: Mapping[str, pa.DataType]) -> None:
    """Write a table of verdicts from its rows in blocks, a row group each, whole or not at all.

    Its version is in the metadata of the Parquet schema.

    Args:
        path: The file.
        frames: Blocks of rows with the same columns, at least one; one is held at a time.
        types: Of columns whose type a block may not show (empty lists, nothing but missing values).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_path(path) as temporary, ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for frame in frames:
            if writer is None:
                form = pa.Schema.from_pandas(frame, preserve_index=False)
                for place, name in enumerate(form.names):
                    if name in types:
                        form = form.set(place, pa.field(name, types[name]))
                form = form.with_metadata({**(form.metadata or {}), **table_metadata()})
                writer = stack.enter_context(pq.ParquetWriter(temporary, form))
            writer.write_table(pa.Table.from_pandas(frame, schema=form, preserve_index=False))


def read_table(path: Path) -> pd.DataFrame:
    """Read a Parquet table."""
    import pandas as pd

    return pd.read_parquet(path)


def write_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors, whole or not at all."""
    from safetensors.torch import save_file

    owned = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with atomic_path(path) as temporary:
        save_file(owned, temporary)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file."""
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = load_file(path)
    return tensors


def write_graph(path: Path, graph: csr_array) -> None:
    """Write a sparse square matrix as ``.npz``, whole or not at all."""
    with atomic_path(path) as temporary:
        np.savez(temporary, data=graph.data, indices=graph.indices, indptr=graph.indptr)


def read_graph(path: Path) -> csr_array:
    """Read a sparse square matrix."""
    from scipy.sparse import csr_array

    with np.load(path, allow_pickle=False) as file:  # each access reads the array from the disk: once only
        data, indices, indptr = file["data"], file["indices"], file["indptr"]
    size = len(indptr) - 1
    return csr_array((data, indices, indptr), shape=(size, size))


# --- declarations ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Artefact(Generic[T]):
    """A file of a stage: its name, its writer and reader, and a check that refuses a file that cannot be read."""

    stage: str
    file: str
    save: Callable[[Path, T], None]
    load: Callable[[Path], T]
    check: Callable[[Path], None] = lambda _: None

    def of(self, stage: str) -> Artefact[T]:
        """The same kind of file in another stage's folder."""
        return replace(self, stage=stage)


def _array(stage: str, file: str) -> Artefact[NDArray[Any]]:
    return Artefact(stage, file, write_array, read_array)


def _table(stage: str, file: str) -> Artefact[pd.DataFrame]:
    return Artefact(stage, file, write_table, read_table)


def _verdicts(file: str) -> Artefact[pd.DataFrame]:
    return replace(_table("clean", file), check=_check_verdicts)


def _check_verdicts(path: Path) -> None:
    import pyarrow.parquet as pq

    mark, run = (shlex.quote(str(each)) for each in (path.parent / FINISHED, path.parent.parent))
    again = f"`rm {mark}`, then `capro run --run {run}` judges the samples again"
    check_table(pq.read_schema(path).metadata, place=str(path), again=again)


def _json(stage: str, file: str) -> Artefact[Any]:
    return Artefact(stage, file, write_json, read_json)


def _text(stage: str, file: str) -> Artefact[str]:
    return Artefact(stage, file, write_text, lambda path: path.read_text("utf-8"))


MANIFEST = _table("scan", "manifest.parquet")  # read it with data.manifest.manifest_of
QUARANTINE = _table("scan", "quarantine.parquet")
SUMMARY = _json("scan", "summary.json")
PUBLISHED_CLASSES = _json("scan", "classes.json")  # of a dataset that brings its own

CLASSES = _json("classes", "classes.json")
CLASSES_DRAFT = _text("classes", "classes.yaml")

PIXELS = _array("pixels", "pixels.npy")
PIXEL_INDEX = _array("pixels", "index.npy")

PLAIN_FEATURES = _array("features", "plain.npy")  # (samples, d_v)
QUERY_FEATURES = _array("features", "query.npy")  # (views, training samples, d_v)
KEY_FEATURES = _array("features", "key.npy")

STEP1, STEP2, STEP3 = (
    Artefact(stage, "model.safetensors", write_weights, read_weights)
    for stage in ("pretrain", "train", "finetune")
)
MODELS = {"vanilla": STEP1, "capro": STEP3}  # the two that are compared, by name
HISTORIES = {name: _json(name, "history.json") for name in ("pretrain", "train", "finetune")}

TEXTS = _array("embed", "texts.npy")  # s, (training samples, d_t)
FIELDS = ("title", "description", "tags")
FIELD_TEXTS = {name: _array("embed", f"texts-{name}.npy") for name in FIELDS}  # method plus: each field alone
CLASS_NAME_TEXTS = _array("embed", "names.npy")  # method plus: the bare names, (C, d_t)
NAMED = _array(
    "embed", "named.npy"
)  # method plus: the class that each field's nouns name, (training samples, fields)
OTHER_SENSES = _array("embed", "senses.npy")  # method plus: other senses of the class names, (m, d_t)
CLASS_TEXTS = _array("embed", "prototypes.npy")  # s^c, (C, d_t)
VISUAL = _array("embed", "visual.npy")  # v, (training samples, d_v)

# in the space of an image-text model, unit rows of width d_j
JOINT_PICTURES = _array("joint", "pictures.npy")  # of the training samples
JOINT_PROMPTS = _array("joint", "prompts.npy")  # of the classes
JOINT_TEXTS = {name: _array("joint", f"texts-{name}.npy") for name in FIELDS}  # each field

ENHANCED_TEXTS = _array("graph", "texts.npy")  # s_hat
ADJACENCY = Artefact("graph", "graph.npz", write_graph, read_graph)  # absent without enhancement

ANCHORS = _table("match", "anchors.parquet")
DISTANCES = _table("match", "distances.parquet")
ANCHOR_SHEET = "anchors.png"

# kept scores (core/kept_scores.py) of states, C is none of these: q, log P(z | words), log P(z | picture);
# several labels: of classes, with log-odds in place of logs
POSTERIOR = _array("posterior", "scores.npy")

CLEANED_LABELS = _array("clean", "labels.npy")  # -1: dropped
FUSED_SCORES = _array("clean", "scores.npy")  # kept scores: o, or the posterior of the method plus
SOFT_LABELS = _array(
    "clean", "soft_labels.npy"
)  # plus, multi-label: what step 3 learns, (training samples, C)
VERDICTS = _verdicts("verdicts.parquet")  # several labels: one row per (sample, class)
SAMPLE_VERDICTS = _verdicts("samples.parquet")  # several labels: one row per sample

SCORES = {name: _array("evaluate", f"{name}.npy") for name in MODELS}  # (test samples, C)
DETAILS = _json("evaluate", "details.json")
REPORT = _text("report", "report.html")

BELIEFS = _array("beliefs", "probabilities.npy")  # cross-validated, (training samples, C)
BASELINE_FIGURES = _json("baselines", "figures.json")
BASELINE_HISTORY = _json("baselines", "history.json")  # of its training; the vote of neighbours has none
TEST_SCORES = _array("baselines", "test.npy")
VAL_SCORES = _array("baselines", "val.npy")

# Beside the stages: a checkpoint's folder, the samples that stopped a training, folders of exports.
CHECKPOINT_TENSORS, CHECKPOINT_STATE = "tensors.safetensors", "state.json"
NOT_FINITE = "not-finite.json"
BESIDE_RESULTS = {NOT_FINITE, DETAILS.file, ANCHOR_SHEET}  # in a stage's folder, but not part of its result
MODEL_WEIGHTS, MODEL_CONFIG, MODEL_ONNX = "model.safetensors", "config.json", "model.onnx"
EXPORT_NOTE, EXPORT_DROPPED, EXPORT_CHANGED = "export.json", "dropped.csv", "changed.csv"  # of a dataset
CARD = "README.md"  # of both
MODEL_VERDICTS = "issues.parquet"  # of a model that CAPro.save wrote
