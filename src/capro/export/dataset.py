"""The cleaned dataset: kept training samples with corrected labels, in formats that others read.

Every format keeps what is needed to go back: the given label, the decision and its evidence, the
texts, and the sample's id as ``capro_id``, by which ``capro scan`` knows the sample again. Dropped
samples are left out and listed in ``dropped.csv``; ``export.json`` lists what was written. It holds no
absolute path: whoever gets the export learns nothing about the machine that made it.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pandas as pd

from capro import __version__
from capro.data.manifest import Manifest
from capro.data.pixels import PLACES
from capro.data.readers import load_writer
from capro.data.readers.base import FORMULA_MODES, IMAGE_MODES, Writer, write_csv
from capro.errors import ConfigError, DataError, did_you_mean
from capro.export.card import check_license, data_card
from capro.export.folders import new_place
from capro.export.pictures import ChangedPicture, ExportedPictures, Progress
from capro.pipeline.artefacts import (
    CARD,
    EXPORT_CHANGED,
    EXPORT_DROPPED,
    EXPORT_NOTE,
    VERDICT_FORMAT,
    write_json,
)
from capro.pipeline.engine import THIS_PROCESS, Engine
from capro.pipeline.run import Run
from capro.results.store import VerdictStore
from capro.stores import AnyPath, is_address
from capro.wording import many

EXPORTED = ("capro_id", "split", "title", "description", "tags", "decision", "label_score", "evidence")
# of the manifest
SAMPLE_COLUMNS = ("split", "title", "description", "tags", "path", "format", "source", "sha256")
NAMED = 5  # changed pictures in a message


def export_data(
    run: Run,
    out: AnyPath,
    *,
    to: str,
    images: str | None = None,
    skip_changed: bool = False,
    formulas: str = "escape",
    license: str | None = None,
    progress: Progress = lambda _: None,
    engine: Engine = THIS_PROCESS,
) -> dict[str, Any]:
    """Write the cleaned training set of a run.

    Args:
        run: With a finished clean stage.
        out: A folder that does not exist yet, or an address of an object store; appears whole or not at all.
        to: One of data.readers.WRITERS.
        images: ``none``, ``link`` (hard links) or ``copy``; None: what the format needs at least.
        skip_changed: Leave out pictures that are not what the scan saw, instead of stopping.
        formulas: ``escape`` or ``keep`` texts in CSV files that a spreadsheet would compute.
        license: For the card of the format hf, as the Hugging Face hub names it.
        progress: Called with the number of images done in each step.
        engine: Who reads and writes images.

    Returns:
        The content of export.json.
    """
    if formulas not in FORMULA_MODES:
        raise ConfigError(f"--formulas {formulas!r}", hint=did_you_mean(formulas, FORMULA_MODES))
    run, writer = run.thoroughly(), load_writer(to)
    check_license(license)
    if license is not None and not writer.card:
        raise ConfigError(f"--license: --to {to} has no card", hint="leave it out, or use --to hf")
    mode = _mode(to, writer, images)
    store = VerdictStore(run)
    table, places = cleaned_table(store), store.manifest_columns(*PLACES, "status")
    decisions = {str(k): int(v) for k, v in table["decision"].value_counts().items()}
    kept, dropped = table[table["decision"] != "drop"], table[table["decision"] == "drop"]
    del table  # of a million samples half a gigabyte
    if not len(kept):
        raise DataError(
            "every training sample was dropped", hint="lower train.gamma and run again: --set train.gamma=..."
        )
    with new_place(out, last=EXPORT_NOTE) as folder:

        def pictures_of(rows: pd.DataFrame) -> ExportedPictures:
            manifest = Manifest(places.take(rows.index.to_numpy()))
            return ExportedPictures(
                manifest, rows, folder, writer, mode, formulas, progress=progress, engine=engine
            )

        changed = _changed(pictures_of(kept)) if skip_changed else kept[:0]
        if len(changed) == len(kept):
            raise DataError(
                f"all {len(kept):,} pictures have changed since the scan: {changed['problem'].iloc[0]}",
                hint="put the data back, or read them again with `capro scan --force`",
            )
        if len(changed):
            kept = kept.drop(changed.index)
            write_csv(folder / EXPORT_CHANGED, changed, formulas=formulas)
        pictures = pictures_of(kept)
        kept = kept.assign(file_name=pictures.names)
        note = {
            "capro": __version__,
            "table": VERDICT_FORMAT.now,
            "format": to,
            "task": store.kind.task,
            "run": run.path.resolve().name,
            "data": run.identity("scan"),
            "images": mode,
            "image_root": _relative(pictures.root, out),
            "formulas": formulas,
            "samples": len(kept),
            "dropped": len(dropped),
            "changed": len(changed),
            "decisions": decisions,
            "classes": store.names,
        }
        note["scan"] = scan_command(note, entry=writer.entry)
        write_json(folder / EXPORT_NOTE, note)
        if writer.card:
            (folder / CARD).write_text(data_card(note, license=license), "utf-8")
        write_csv(folder / EXPORT_DROPPED, _columns(dropped), formulas=formulas)
        try:
            writer.write(folder, _columns(kept), pictures, store.names)
        except ChangedPicture:
            raise _refusal(run, _changed(pictures), len(kept)) from None
    return note


def _relative(root: str | None, out: AnyPath) -> str | None:
    """The way from an export to the pictures that it names; None where it has them, or one is in an object store."""
    if root is None or is_address(root) or not isinstance(out, Path):
        return None
    return os.path.relpath(root, out.resolve())


def scan_command(note: dict[str, Any], *, entry: str, out: AnyPath | None = None) -> str:
    """The command that reads an export back, typed in its folder; with ``out``, anywhere."""
    root = note["image_root"]
    if root and isinstance(out, Path):
        root = os.path.normpath(out.resolve() / root)
    if root is None and note["images"] == "none":
        root = "FOLDER_OF_THE_PICTURES"
    option = ["--image-root", root] if root else []
    return shlex.join(["capro", "scan", str((out or Path()) / entry), *option])


def _changed(pictures: ExportedPictures) -> pd.DataFrame:
    """The pictures that are not what the scan saw, and why."""
    table = pictures.table[["capro_id", "path"]].assign(problem=pictures.problems())
    return table[table["problem"] != ""]


def _refusal(run: Run, changed: pd.DataFrame, count: int) -> DataError:
    """The message that names what has changed."""
    first = changed[:NAMED]
    shown = [f"{path}: {problem}" for path, problem in zip(first["path"], first["problem"], strict=True)]
    more = f"; and {len(changed) - NAMED:,} more" if len(changed) > NAMED else ""
    path = shlex.quote(run.place)
    return DataError(
        f"{len(changed):,} of {many(count, 'picture')} changed since the scan ({'; '.join(shown)}{more})",
        hint=f"put them back; or `capro scan --run {path} --force`, then `capro run --run {path}` takes them as "
        "they are; or --skip-changed leaves them out and lists them in changed.csv",
    )


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


def cleaned_table(store: VerdictStore) -> pd.DataFrame:
    """All training samples with verdicts and texts, in the order of the store.

    Only the columns that an export has: all of them would take gigabytes of a million samples.
    """
    label = "labels" if store.multi_label else "label"
    verdicts = store.verdict_columns(f"corrected_{label}", "decision", "label_score", "evidence").to_pandas()
    samples = store.manifest_columns("id", label, *SAMPLE_COLUMNS).to_pandas()
    samples = samples.rename(columns={"id": "capro_id", label: f"given_{label}"})  # labels in their own order
    table: pd.DataFrame = pd.concat([samples, verdicts.rename(columns={f"corrected_{label}": label})], axis=1)
    if store.multi_label:
        for name in (label, f"given_{label}"):
            table[name] = [[] if labels is None else list(labels) for labels in table[name]]
    return table


def _columns(table: pd.DataFrame) -> pd.DataFrame:
    """What an export's table holds, file and label first."""
    labels = ["label", "given_label"] if "label" in table else ["labels", "given_labels"]
    columns = ["file_name", *labels, *EXPORTED] if "file_name" in table else [*labels, *EXPORTED, "path"]
    return table[columns].reset_index(drop=True)
