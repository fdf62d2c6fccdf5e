"""The cleaned data set: kept training samples with corrected labels, in formats that others read.

Every format keeps what is needed to go back: the given label, the decision and its evidence, the
texts, and the sample's id as ``capro_id``, by which ``capro scan`` knows the sample again. Dropped
samples are left out and listed in ``dropped.csv``; ``export.json`` lists what was written.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from capro import __version__
from capro.data.image_bytes import ImageStore
from capro.data.manifest import Manifest, manifest_of
from capro.data.readers import load_writer
from capro.data.readers.writing import FORMULA_MODES, IMAGE_MODES, Writer, write_csv
from capro.errors import ConfigError, DataError, did_you_mean
from capro.export.folders import new_folder, safe_name, safe_names
from capro.run.artefacts import write_json
from capro.run.directory import Run
from capro.text.classes import classes_of

ENDINGS = {"JPEG": ".jpg", "MPO": ".jpg", "TIFF": ".tif"}  # MPO: a JPEG with further pictures in it
EXPORTED = ("capro_id", "split", "title", "description", "tags", "decision", "label_score", "evidence")

Progress = Callable[[int], None]


def export_data(
    run: Run,
    out: Path,
    *,
    to: str,
    images: str | None = None,
    formulas: str = "escape",
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Write the cleaned training set of a run.

    Args:
        run: With a finished clean stage.
        out: A folder that does not exist yet; appears whole or not at all.
        to: One of data.readers.WRITERS.
        images: ``none``, ``link`` (hard links) or ``copy``; None: what the format needs at least.
        formulas: ``escape`` or ``keep`` texts in CSV files that a spreadsheet would compute.
        progress: Called with the number of images done in each step.

    Returns:
        The content of export.json.
    """
    if formulas not in FORMULA_MODES:
        raise ConfigError(f"--formulas {formulas!r}", hint=did_you_mean(formulas, FORMULA_MODES))
    writer = load_writer(to)
    mode = _mode(to, writer, images)
    manifest = manifest_of(run)
    table = cleaned_table(run, manifest)
    kept, dropped = table[table["decision"] != "drop"], table[table["decision"] == "drop"]
    if not len(kept):
        raise DataError("every training sample was dropped", hint="lower train.gamma and clean again")
    classes = [spec.name for spec in classes_of(run)]
    with new_folder(out) as folder:
        pictures = ExportedPictures(manifest, kept, folder, writer, mode, progress, formulas)
        kept = kept.assign(file_name=pictures.names)
        root = ["--image-root", pictures.root] if pictures.root else []
        note = {
            "capro": __version__,
            "format": to,
            "task": manifest.task,
            "run": str(run.path.resolve()),
            "data": run.need("scan"),
            "images": mode,
            "formulas": formulas,
            "image_root": pictures.root,
            "samples": len(kept),
            "dropped": len(dropped),
            "decisions": {str(k): int(v) for k, v in table["decision"].value_counts().items()},
            "classes": classes,
            "scan": shlex.join(["capro", "scan", str(out / writer.entry), *root]),
        }
        write_json(folder / "export.json", note)
        write_csv(folder / "dropped.csv", _columns(dropped, manifest.task), formulas=formulas)
        writer.write(folder, _columns(kept, manifest.task), pictures, classes)
    return note


def _mode(to: str, writer: Writer, images: str | None) -> str:
    mode = images or writer.images[0]
    if mode not in IMAGE_MODES:
        raise ConfigError(f"--images {mode!r}", hint=did_you_mean(mode, IMAGE_MODES))
    if mode not in writer.images:
        raise ConfigError(
            f"--to {to} holds images, --images {mode} is not possible",
            hint=f"use --images {' or '.join(writer.images)}, or --to csv for the table alone",
        )
    return mode


def cleaned_table(run: Run, manifest: Manifest) -> pd.DataFrame:
    """All training samples with verdicts and texts, in manifest order; ``position`` is theirs there."""
    verdicts: pd.DataFrame = run.issues().set_index("id")
    position = manifest.split("train")
    samples = manifest.samples.iloc[position]
    found = verdicts.loc[samples["id"]].reset_index(drop=True)
    found["capro_id"], found["position"] = samples["id"].to_numpy(), position
    for name in ("split", "title", "description", "tags", "path", "format", "source"):
        found[name] = samples[name].to_numpy()
    if manifest.task == "single":
        found["label"] = found["corrected_label"]
    else:
        found["labels"] = [list(names) for names in found["corrected_labels"]]
        found["given_labels"] = [list(names) for names in samples["labels"]]  # in their own order
    return found


def _columns(table: pd.DataFrame, task: str) -> pd.DataFrame:
    """What an export's table holds, file and label first."""
    labels = ["label", "given_label"] if task == "single" else ["labels", "given_labels"]
    first = ["file_name"] if "file_name" in table else []
    place = [] if first else ["path"]
    return table[[*first, *labels, *EXPORTED, *place]].reset_index(drop=True)


# --- pictures -------------------------------------------------------------------------------------


@dataclass
class ExportedPictures:
    """Names of the exported pictures, and a way to write or read each: what a ``Writer`` gets.

    ``names`` are relative to the export folder; without images, to ``root``.
    """

    manifest: Manifest
    table: pd.DataFrame
    folder: Path
    writer: Writer
    mode: str
    progress: Progress
    formulas: str

    def __post_init__(self) -> None:
        self._store = ImageStore(self.manifest)
        sources = enumerate(self.manifest.sources)
        self._files = {number: source.root for number, source in sources if source.kind == "files"}
        self.root: str | None = None
        if self.mode == "none":
            self.root, self.names = self._in_place()
        else:
            self.names = self._new_names()

    def _in_place(self) -> tuple[str, list[str]]:
        """The pictures where they are: a root and paths below it."""
        used = set(self.table["source"])
        if missing := sorted(used - self._files.keys()):
            source = self.manifest.sources[missing[0]]
            raise ConfigError(
                f"{source.root}: its images lie in {source.kind}, not in files of their own",
                hint="use --images copy",
            )
        root = os.path.commonpath([self._files[number] for number in used])
        rows = zip(self.table["source"], self.table["path"], strict=True)
        return root, [os.path.relpath(Path(self._files[number], path), root) for number, path in rows]

    def _new_names(self) -> list[str]:
        single = self.manifest.task == "single"
        folders = safe_names(sorted(set(self.table["label"]))) if single else {}
        names = []
        for number, row in enumerate(self.table.to_dict("records")):
            stem = safe_name(Path(str(row["path"])).stem) if row["source"] in self._files else ""
            ending = ENDINGS.get(row["format"], f".{row['format'].lower()}")
            name = f"{number:08d}{'-' + stem if stem else ''}{ending}"
            below = folders[row["label"]] if self.writer.by_class and single else self.writer.below
            names.append(f"{below}/{name}" if below else name)
        return names

    def path(self, number: int) -> Path | None:
        """The source file of a picture; None where it lies inside another file."""
        row = self.table.iloc[number]
        root = self._files.get(int(row["source"]))
        return Path(root, str(row["path"])) if root is not None else None

    def read(self, number: int) -> bytes:
        """The bytes of a picture."""
        self.progress(1)
        return self._store.read(int(self.table["position"].iloc[number]))

    def write_all(self, below: str = "") -> None:
        """Link or copy every picture into the export."""
        if self.mode == "none":
            return
        for number, name in enumerate(self.names):
            target = self.folder / below / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if self.mode == "link":
                self._link(number, target)
                self.progress(1)
            else:
                target.write_bytes(self.read(number))

    def _link(self, number: int, target: Path) -> None:
        path = self.path(number)
        if path is None:
            raise ConfigError(
                "images inside tars, tables or hub data sets cannot be linked", hint="use --images copy"
            )
        try:  # a symbolic link out of the folder would be refused by `scan`, a hard link is a file
            os.link(path.resolve(), target)
        except OSError as error:
            raise DataError(f"{path}: cannot be linked: {error.strerror}", hint="use --images copy") from None
