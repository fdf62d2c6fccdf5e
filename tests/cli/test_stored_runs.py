"""Data, runs and results in an object store, by the commands that a user types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from capro.cli import main
from capro.pipeline import working_copy
from capro.stages import classes, embed, match
from capro.stores import ObjectPath
from tests import squares, tiny
from tests.commands import Capro, capro
from tests.stores import RUN, Fault, Flaky, Killed, flaky, flaky_store, put_tree

__all__ = ["capro", "flaky"]
DATA = "flaky://bucket/data"
TRAIN, TEST = f"{DATA}/train/metadata.csv", f"{DATA}/test/metadata.csv"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Objects of a store: data, and a run that was killed on one machine and went on on another."""
    base = tmp_path_factory.mktemp("stored")
    data = squares.write_data(base / "data", train=8, test=3, noise=2)
    (base / "settings.yaml").write_text(yaml.safe_dump(squares.settings(data).model_dump()))
    words = ["run", base / "settings.yaml", "--run", RUN, "--data", TRAIN, "--test", TEST]
    with pytest.MonkeyPatch.context() as patch:
        flaky_store(patch, base / "one")
        for module in (classes, embed, match):
            patch.setattr(module, "load_text_encoder", lambda *_, **__: tiny.WordEncoder())
        put_tree(data, DATA)
        patch.setattr("sys.argv", ["capro", *map(str, words)])
        Flaky.faults[:] = [Fault("put_file", "match/", kind="kill")]
        with pytest.raises(Killed):
            main()
        there = ObjectPath("flaky", "bucket/runs/a").below()
        assert "embed/stage.json" in there
        assert "match/stage.json" not in there
        Flaky.faults.clear()
        patch.setenv("CAPRO_CACHE", str(base / "two"))
        patch.setattr(working_copy, "_copies", {})
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 0
        return dict(Flaky.store)


@pytest.fixture
def stored(flaky: type[Flaky], finished: dict[str, Any]) -> str:
    """The data and the finished run, in the store; a machine that has never seen them."""
    flaky.store.update(finished)
    return RUN


def test_what_was_finished_before_the_kill_is_not_done_again(capro: Capro, stored: str) -> None:
    events = [
        json.loads(line)
        for line in ObjectPath("flaky", "bucket/runs/a/events.jsonl").read_bytes().splitlines()
    ]
    started = [event["stage"] for event in events if event["event"] == "started"]
    assert started.count("scan") == started.count("embed") == 1
    assert started.count("match") == 2
    assert f"source: {TRAIN}" in ObjectPath("flaky", "bucket/runs/a/run.yaml").read_bytes().decode()
    code, out, err = capro("run", "--run", RUN, "--dry-run", "--json")
    assert code == 0, err
    assert {each["state"] for each in json.loads(out)} == {"fresh"}
    code, _, err = capro("run", "--run", RUN)
    assert code == 0
    assert f"results are in {RUN}" in err
    assert f"capro report {RUN}" in err


def test_commands_that_look_at_a_run(capro: Capro, stored: str) -> None:
    code, out, err = capro("evaluate", stored, "--json", "--truth", f"{DATA}/train_truth.csv")
    assert code == 0, err
    assert json.loads(out)["truth"]["web_label_accuracy"] == 0.75
    fetched = [path.name for path in working_copy.cache_folder().rglob("*")]
    assert "labels.npy" in fetched
    assert "model.safetensors" not in fetched  # of no use here
    code, out, err = capro("doctor", stored, "--json")
    assert code == 0, err
    assert json.loads(out)["facts"]["samples"] == 24
    code, out, err = capro("evaluate", stored, "--on", TEST, "--json")
    assert code == 0, err
    assert json.loads(out)["samples"] == 9


def test_a_report_at_an_address(capro: Capro, stored: str) -> None:
    assert capro("scan", TRAIN, "--run", "flaky://bucket/scanned")[0] == 0
    code, out, err = capro("report", "flaky://bucket/scanned", "--out", "flaky://bucket/report.html")
    assert (code, out.strip()) == (0, "flaky://bucket/report.html"), err
    assert ObjectPath("flaky", "bucket/report.html").read_bytes().startswith(b"<!doctype html>")
    assert "report/stage.json" in ObjectPath("flaky", "bucket/scanned").below()


@pytest.mark.parametrize(
    ("to", "entry"), [("webdataset", ""), ("csv", "/samples.csv"), ("parquet", "/samples.parquet")]
)
def test_exports_to_an_address_can_be_scanned(
    capro: Capro, stored: str, flaky: type[Flaky], tmp_path: Path, to: str, entry: str
) -> None:
    out = "flaky://bucket/cleaned"
    words = ["export", stored, "--out", out, "--to", to, "--images", "copy", "--json"]
    flaky.faults[:] = [Fault("put_file", "bucket/cleaned", kind="kill", after=1)]
    with pytest.raises(Killed):
        capro(*words)
    assert "bucket/cleaned/export.json" not in [name.strip("/") for name in flaky.store]
    flaky.faults.clear()
    code, text, err = capro(*words)  # what the killed one left is replaced
    assert code == 0, err
    found = json.loads(text)
    assert ".capro-uploading" not in ObjectPath("flaky", "bucket/cleaned").below()
    code, text, err = capro("scan", f"{out}{entry}", "--run", tmp_path / "again", "--json")
    assert code == 0, err
    assert json.loads(text)["samples"] == found["samples"]
    code, _, err = capro(*words)
    assert code == 2
    assert f"{out}: exists already" in err


def test_a_table_alone_names_pictures_in_the_store(capro: Capro, stored: str, tmp_path: Path) -> None:
    code, text, err = capro("export", RUN, "--out", tmp_path / "out", "--json")
    assert code == 0, err
    assert json.loads(text)["image_root"] is None
    assert "--image-root FOLDER_OF_THE_PICTURES" in err
    table = pd.read_csv(tmp_path / "out" / "samples.csv")
    assert table["file_name"].str.match(r"\w+-\d+\.png").all()
    code, _, err = capro("export", RUN, "--out", tmp_path / "link", "--images", "link")
    assert code == 2
    assert "use --images copy" in err


def test_a_model_at_an_address_labels_pictures_there(capro: Capro, stored: str, flaky: type[Flaky]) -> None:
    code, _, err = capro("export-model", stored, "--out", "flaky://bucket/model")
    assert code == 0, err
    code, out, err = capro(
        "predict", "flaky://bucket/model", TEST, f"{DATA}/train/lime-000.png", "--format", "jsonl"
    )
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert len(rows) == 10
    assert not any(row["error"] for row in rows)
    fetched = flaky.requests["get_file"]
    assert capro("predict", "flaky://bucket/model", f"{DATA}/train/lime-000.png")[0] == 0
    assert flaky.requests["get_file"] == fetched  # the model is here already
    code, _, err = capro("predict", "flaky://bucket/no", TEST)
    assert code == 2
    assert "flaky://bucket/no/config.json: no such file" in err


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["scan", "flaky://bucket/no", "--run", "RUNS"], "flaky://bucket/no: no such file or folder"),
        (["scan", "ftp://host/data", "--run", "RUNS"], "hint: known: s3://, gs://, memory://"),
        (["scan", "s3://me:hunter2@bucket/data", "--run", "RUNS"], "a user's name or a password"),
        (["run", "--data", "x", "--run", "s3://me:hunter2@bucket/run"], "s3://***@bucket/run"),
        (["evaluate", "flaky://bucket/no"], "flaky://bucket/no: no run.yaml"),
        (["demo", "--run", "flaky://bucket/demo"], "--run flaky://bucket/demo: cannot be an address"),
        (["predict", "m", "x", "--out", "s3://b/out.csv"], "s3://b/out.csv: cannot be an address"),
        (
            ["classes", "suggest", "--run", "r", "--out", "s3://b/c.yaml"],
            "s3://b/c.yaml: cannot be an address",
        ),
    ],
)
def test_mistakes(capro: Capro, flaky: type[Flaky], tmp_path: Path, words: list[Any], says: str) -> None:
    code, out, err = capro(*(str(tmp_path / "run") if word == "RUNS" else word for word in words))
    assert code == 2
    assert says in err
    assert "hint: " in err
    assert "hunter2" not in out + err
    assert not (tmp_path / "run").exists()
    assert flaky.store == {}


def test_a_store_that_is_down(capro: Capro, stored: str, flaky: type[Flaky], tmp_path: Path) -> None:
    flaky.faults[:] = [Fault(name, times=1000) for name in ("info", "ls", "cat_file")]
    for words in (["evaluate", stored], ["scan", TRAIN, "--run", tmp_path / "run"]):
        code, out, err = capro(*words)
        assert code == 2
        assert "the store cannot be reached, tried 5 times" in err
        assert "secret" not in out + err
