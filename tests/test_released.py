"""Runs, tables and models of released versions, kept by scripts/keep_release.py: today's code takes them on."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capro.export.hub import contents_of
from capro.pipeline.run import Run
from tests.commands import Capro, capro

__all__ = ["capro"]
KEPT = {path.name.removesuffix(".tar.xz"): path for path in Path(__file__).parent.glob("released/*.tar.xz")}
# the data are at another place now, so they are scanned again; 0.1.0 kept its scores in another form
DONE_AGAIN = {"0.1.0": ["scan", "clean", "finetune", "evaluate"], "0.2.0": ["scan"]}
TABLES = {"single": ["verdicts.parquet"], "multi": ["samples.parquet", "verdicts.parquet"]}


@pytest.fixture(params=[f"{version} {kind}" for version in sorted(KEPT) for kind in TABLES])
def kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A version and one or several labels; the current folder has what was kept of it."""
    version, kind = request.param.split()
    with tarfile.open(KEPT[version]) as archive:
        archive.extractall(
            tmp_path, [each for each in archive if each.name.split("/")[0] == kind], filter="data"
        )
    monkeypatch.chdir(tmp_path / kind)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return version, kind


def test_every_release_is_kept() -> None:
    assert set(KEPT) == set(DONE_AGAIN)
    assert all(path.stat().st_size < 1_000_000 for path in KEPT.values())


def test_a_model_of_a_release_predicts_as_it_did(kept: tuple[str, str], capro: Capro) -> None:
    code, out, err = capro("predict", "model", "data/test/images", "--top", "0", "--format", "jsonl")
    assert code == 0, err
    now = [json.loads(line) for line in out.splitlines()]
    then = [json.loads(line) for line in Path("predicted.jsonl").read_text("utf-8").splitlines()]
    assert [Path(row["image"]).name for row in now] == [Path(row["image"]).name for row in then]
    for new, old in zip(now, then, strict=True):
        assert dict(new["top"]) == pytest.approx(dict(old["top"]), abs=1e-4)
    assert contents_of(Path("model")).kind == "model"


def test_a_run_of_a_release_goes_on(kept: tuple[str, str], capro: Capro) -> None:
    version, kind = kept
    old = Run.open(Path("run")).issues()
    before = _schemas(kind, "table")
    for command in (["evaluate", "run"], ["report", "run"], ["export", "run", "--out", "before"]):
        code, _, err = capro(*command)
        if version == "0.1.0":  # refused, with the way out
            assert (code, "capro 0.1.0 made it" in err) == (2, True)
            assert "hint: `capro run --run run` does it again" in err
        else:
            assert code == 0, err
    code, _, err = capro("run", "--run", "run")
    assert code == 0, err
    said = [line.split(" is done again: ") for line in err.splitlines() if " is done again: " in line]
    assert {name for name, why in said if not why.startswith("only if")} == set(DONE_AGAIN[version])
    assert _done_since_last_scan() == DONE_AGAIN[version]
    for command in (
        ["evaluate", "run"],
        ["report", "run"],
        ["export", "run", "--out", "after", "--to", "parquet"],
    ):
        code, _, err = capro(*command)
        assert code == 0, err
    assert list(Run.open(Path("run")).issues()["id"]) == list(old["id"])
    for name, now in _schemas(
        kind, "after"
    ).items():  # within a version columns are added; none goes or changes
        assert now.metadata[b"capro_table"] == b"1"
        assert [
            each for each in before[name] if _kind(now.field(each.name).type) != _kind(each.type)
        ] == [], name


def _kind(column: pa.DataType) -> str:
    """A type as a reader sees it: a text is a text in 32 and 64 bits, a list of nothing one of texts."""
    return str(column).replace("large_", "").replace("null", "string").replace("item", "element")


def _schemas(kind: str, export: str) -> dict[str, pa.Schema]:
    """Of the tables of verdicts, and of the exported one."""
    files = {name: Path("run/clean", name) for name in TABLES[kind]}
    return {
        name: pq.read_schema(file)
        for name, file in (files | {"export": Path(export, "samples.parquet")}).items()
    }


def _done_since_last_scan() -> list[str]:
    """The stages that the last command has done, the first of them the scan."""
    events = [json.loads(line) for line in Path("run/events.jsonl").read_text("utf-8").splitlines()]
    begun = max(
        number for number, row in enumerate(events) if (row["event"], row["stage"]) == ("started", "scan")
    )
    return [row["stage"] for row in events[begun:] if row["event"] == "finished"]


def test_every_column_of_every_release_is_described(kept: tuple[str, str]) -> None:
    pages = [Path(__file__).parents[1] / "docs" / name for name in ("export.md", "files.md")]
    words = " ".join(page.read_text("utf-8") for page in pages)
    for table in _schemas(kept[1], "table").values():
        assert [name for name in table.names if f"`{name}`" not in words] == []


def test_an_exported_table_of_a_release_is_scanned(kept: tuple[str, str], capro: Capro) -> None:
    code, _, err = capro(
        "scan", "table/samples.parquet", "--image-root", "data/train", "--run", "again", "--json"
    )
    assert code == 0, err
    note = json.loads(Path("table/export.json").read_text("utf-8"))
    assert json.loads(Path("again/scan/summary.json").read_text("utf-8"))["samples"] == note["samples"]
