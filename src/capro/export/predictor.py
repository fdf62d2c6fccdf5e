"""Labels for new images from an exported model folder. Needs no training code.

A model folder holds ``config.json`` and ``model.safetensors`` (docs/export.md). Every image gets a
row, in order; one that cannot be read gets a row with its error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError

from capro.config import DataSettings, ScanSettings
from capro.core.kept_scores import numbers_only
from capro.data import readers
from capro.data.images import REASONS, ImageProblem, decode
from capro.data.manifest import ROW_REASONS, blocks
from capro.data.pixels import file_bytes, row_bytes
from capro.data.readers.base import csv_writer, is_formula
from capro.data.views import center
from capro.errors import ConfigError, RunError, first_line
from capro.export.folders import new_folder
from capro.export.model_config import own_file, parse_model_config, read_model_config
from capro.models.deployed import Deployed, load_deployed
from capro.pipeline.artefacts import MODEL_CONFIG, MODEL_WEIGHTS, atomic_path
from capro.pipeline.checksums import fingerprint
from capro.pipeline.working_copy import cache_folder
from capro.stores import AnyPath, any_path

BATCH = 32
COLUMNS = ("image", "label", "probability", "open", "top", "error")
MULTI_LABEL_FROM = 0.5  # a label is given from this probability on, where there may be several


@dataclass(frozen=True)
class Item:
    """An image to label: its bytes, or why there are none."""

    name: str
    data: bytes = b""
    error: str = ""


class Predictor:
    """A model folder, opened.

    Attributes:
        classes: Class names, by class number.
        multi_label: Whether an image may have several labels.
        threshold: Open-set threshold, chosen at export; None where there is none.
        config: The content of config.json.
        limits: Limits of the images that it reads.
    """

    def __init__(self, net: Deployed, config: dict[str, Any], *, device: str = "cpu") -> None:
        checked = parse_model_config(config, "the model")
        self.net = net.eval().to(device)
        self.config = config
        self.classes = checked.classes
        self.multi_label = bool(net.multi_label)
        self.threshold = checked.threshold
        self._device = device
        self._size = checked.preprocessing.size
        self.limits = checked.preprocessing.limits

    @staticmethod
    def load(model: str | Path, *, device: str = "cpu") -> Predictor:
        """Open a model folder, or download one from an object store; no other file is read."""
        folder = model_folder(model)
        config = read_model_config(folder)
        checked = parse_model_config(config, str(folder))
        weights = own_file(folder, MODEL_WEIGHTS)
        multi = checked.problem_type == "multi_label_classification"
        try:
            net = load_deployed(
                checked.backbone.model_dump(), weights, classes=checked.num_labels, multi_label=multi
            )
        except ConfigError as error:
            raise ConfigError(f"{folder}: {error}", hint=error.hint) from None
        except (OSError, SafetensorError) as error:
            raise RunError(
                f"{weights}: cannot be read: {first_line(error)}", hint="export the model again"
            ) from None
        except RuntimeError as error:  # weights that do not fit
            reason = str(error).strip().splitlines()[-1].strip()
            raise RunError(f"{folder}: {reason}", hint="export the model again") from None
        _try_out(net, checked.preprocessing.size, folder)
        try:
            return Predictor(net, config, device=device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"device {device!r}: {first_line(error)}", hint="use cpu") from None

    def open_image(self, data: bytes) -> Image.Image:
        """Decode an image as in training; raises ``ImageProblem``."""
        return decode(data, self.limits, min_side=2 * self._size)[0]

    @torch.no_grad()
    def probabilities(
        self, images: Sequence[Image.Image], name: Callable[[int], str] = "number {}".format
    ) -> NDArray[np.float32]:
        """Return probabilities, (n, C), of RGB images of any size; an error names an image whose probability is nan."""
        parts = [np.zeros((0, len(self.classes)), np.float32)]
        for at in range(0, len(images), BATCH):
            pixels = np.stack([center(image, self._size) for image in images[at : at + BATCH]])
            x = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().to(self._device)
            parts.append(self.net.probabilities(x.float() / 255).float().cpu().numpy())
        return numbers_only(np.concatenate(parts), place="the model", name=name)

    # --- rows -------------------------------------------------------------------------------------

    def rows(
        self, items: Iterable[Item], *, top: int = 5, open_set: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield one row per item, in order; memory is that of a few batches.

        Args:
            items: From ``find_images``, or your own.
            top: How many classes are listed with their probability; 0 for all.
            open_set: Give no label where the highest probability is below the threshold.
        """
        if open_set and self.threshold is None:
            raise ConfigError("this model has no open-set threshold", hint="leave --open-set out")
        with ThreadPoolExecutor(4) as pool:
            for batch in blocks(items, BATCH):
                pairs = [*zip(batch, pool.map(self._decode, batch), strict=True)]
                good = [(item.name, image) for item, image in pairs if isinstance(image, Image.Image)]
                names = [name for name, _ in good]
                scores = iter(self.probabilities([image for _, image in good], names.__getitem__))
                for item, image in pairs:
                    if isinstance(image, str):
                        yield _row(item.name, error=image)
                    else:
                        yield self._label(item.name, next(scores), top, open_set)

    def _decode(self, item: Item) -> Image.Image | str:
        if item.error:
            return item.error
        try:
            return self.open_image(item.data)
        except ImageProblem as problem:
            detail = f" ({problem.detail})" if problem.detail else ""
            return REASONS.get(problem.reason, problem.reason) + detail

    def _label(self, name: str, p: NDArray[np.float32], top: int, open_set: bool) -> dict[str, Any]:
        order = np.argsort(-p, kind="stable")
        best = [(self.classes[c], round(float(p[c]), 6)) for c in order[: top or len(p)]]
        highest = float(p[order[0]])
        is_open = highest < (self.threshold or 0.0) if open_set else None
        label: str | list[str] | None = best[0][0]
        if self.multi_label:
            label = [self.classes[c] for c in order if p[c] >= MULTI_LABEL_FROM]
        answer = {"label": None if is_open else label, "probability": round(highest, 6), "open": is_open}
        return _row(name, **answer, top=best)


def model_folder(model: str | Path) -> Path:
    """The folder of a model; that of an object store is fetched once, as long as it stays the same."""
    address = any_path(model)
    if isinstance(address, Path):
        return address
    files = [address / name for name in (MODEL_CONFIG, MODEL_WEIGHTS)]
    for file in files:
        if not file.is_file():
            raise RunError(f"{file}: no such file", hint="give a folder made by `capro export-model`")
    folder = cache_folder() / "models" / fingerprint([str(address), *(file.version for file in files)])
    if not folder.exists():
        with new_folder(folder) as temporary:
            for file in files:
                file.fetch(temporary / file.name)
    return folder


@torch.no_grad()
def _try_out(net: Deployed, size: int, folder: Path) -> None:
    """One blank image: the network must take images of this size and give probabilities."""
    try:
        p = net.eval().probabilities(torch.zeros(1, 3, size, size))
    except Exception as error:  # each kind of encoder has its own
        raise ConfigError(
            f"{folder}: the network does not take images of {size} px: {first_line(error)}",
            hint="export the model again",
        ) from None
    if p.shape != (1, net.classifier.out_features) or not bool(torch.isfinite(p).all()):
        raise RunError(f"{folder}: the network gives no probabilities", hint="export the model again")


def _row(name: str, **values: Any) -> dict[str, Any]:
    return dict.fromkeys(COLUMNS) | {"image": name, "top": [], **values}


# --- images ---------------------------------------------------------------------------------------


def find_images(paths: Iterable[str | Path], limits: ScanSettings = ScanSettings()) -> Iterator[Item]:
    """Every image of files, folders, tar shards and tables, in order; nothing is left out.

    Args:
        paths: Where to look, addresses of object stores among them.
        limits: Of a file no more is read than shows that it is too large.
    """
    most = limits.max_bytes + 1
    for path in map(any_path, paths):
        if path.is_file() and readers.recognise(path, DataSettings()) is None:
            yield _item(str(path), partial(file_bytes, str(path), most=most))
        elif path.exists():
            yield from _source(path, most)
        else:
            yield Item(str(path), error="no such file or folder")


def _item(name: str, read: Callable[[], bytes]) -> Item:
    try:
        return Item(name, read())
    except OSError as error:
        return Item(name, error=error.strerror or "cannot be read")


def _source(path: AnyPath, most: int) -> Iterator[Item]:
    for reader in readers.find(DataSettings(), source=str(path)):
        for row in reader.rows():
            inside = any_path(reader.source.root) / row.path if row.path else reader.source.root
            name = f"{inside}:{row.id}" if row.offset is not None or row.row is not None else str(inside)
            if row.problem and row.problem != "no-label":
                yield Item(name, error=ROW_REASONS.get(row.problem, row.problem))
            else:
                yield _item(name, partial(row_bytes, row, reader.source, most=most))


# --- output ---------------------------------------------------------------------------------------


def save_rows(rows: Iterable[dict[str, Any]], out: Path | None, kind: str | None = None) -> dict[str, int]:
    """Write rows to a new file, whole or not at all, or to stdout.

    Args:
        rows: From ``Predictor.rows``.
        out: The file; None for stdout.
        kind: ``csv`` or ``jsonl``; None: by the file's ending, else csv.
    """
    chosen = kind or (out.suffix.lower().lstrip(".") if out else "csv")
    if chosen not in ("csv", "jsonl"):
        raise ConfigError(f"predictions as {chosen!r}", hint="use csv or jsonl")
    if out is None:
        return stream_rows(rows, sys.stdout, chosen)
    if out.exists():
        raise RunError(f"{out}: exists already", hint="give another file to --out, or delete it")
    with atomic_path(out) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        return stream_rows(rows, file, chosen)


def stream_rows(rows: Iterable[dict[str, Any]], file: TextIO, kind: str) -> dict[str, int]:
    """Write rows as they come; lists are JSON in a CSV cell. Returns how many, open, with errors."""
    counts = {"images": 0, "open": 0, "errors": 0}
    writer = csv_writer(file)
    if kind == "csv":
        writer.writerow(COLUMNS)
    for row in rows:
        counts["images"] += 1
        counts["open"] += bool(row["open"])
        counts["errors"] += row["error"] is not None
        if kind == "jsonl":
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        else:
            writer.writerow(_cell(row[name]) for name in COLUMNS)
    return counts


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    if is_formula(value):  # a file's name or a class that a spreadsheet would compute
        return f"'{value}"
    return str(value).lower() if isinstance(value, bool) else value
