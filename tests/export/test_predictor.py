"""Predict: every image a row, whatever it is; no training code."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from capro.errors import CaproError, RunError
from capro.export.predictor import Item, Predictor, find_images, save_rows, stream_rows
from capro.models.backbones import load_backbone
from capro.models.deployed import Deployed, describe
from tests.data.corpus import BAD_IMAGES, jpeg, png


def config(multi: bool = False, threshold: float | None = 0.5) -> dict[str, object]:
    return {
        "capro_format": 1, "num_labels": 3, "id2label": {"0": "a", "1": "b,c", "2": "d"},
        "problem_type": f"{'multi' if multi else 'single'}_label_classification",
        "backbone": describe(load_backbone("small", image_size=16)),
        "preprocessing": {"size": 16, "limits": {"max_pixels": 50_000_000, "max_aspect": 100.0}},
        "open_set": {"threshold": threshold},
    }  # fmt: skip


def predictor(multi: bool = False, threshold: float | None = 0.5) -> Predictor:
    net = Deployed(load_backbone("small", image_size=16), 3, multi_label=multi)
    return Predictor(net, config(multi, threshold))  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "one.png").write_bytes(png(1))
    (tmp_path / "in" / "two.jpg").write_bytes(jpeg(seed=2))
    (tmp_path / "in" / "bad.jpg").write_bytes(b"nothing")
    (tmp_path / "in" / "notes.txt").write_text("no picture")
    with tarfile.open(tmp_path / "in.tar", "w") as tar:
        for name, data in (("k1.png", png(3)), ("k1.json", b"{}"), ("k2.jpg", b"junk")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return tmp_path


def test_files_folders_and_tars_in_order_with_errors_as_rows(folder: Path) -> None:
    paths = [folder / "in", folder / "in.tar", folder / "in" / "two.jpg", folder / "gone.png"]
    rows = list(predictor().rows(find_images(paths)))
    names = [Path(row["image"]).name for row in rows]
    assert names == ["bad.jpg", "one.png", "two.jpg", "k1", "k2", "two.jpg", "gone.png"]
    errors = [row["error"] for row in rows]
    assert [bool(error) for error in errors] == [True, False, False, False, True, False, True]
    assert errors[-1] == "no such file or folder"
    assert rows[2] | {"image": ""} == rows[5] | {"image": ""}
    assert all(row["label"] in ("a", "b,c", "d") for row in rows if not row["error"])


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_no_bad_image_crashes(name: str) -> None:
    items = [Item("good", png(1)), Item("bad", BAD_IMAGES[name][0]), Item("good too", png(2))]
    rows = list(predictor().rows(items))
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert rows[1]["label"] is None


def test_rows_are_the_networks_probabilities() -> None:
    found = predictor()
    p = found.probabilities([found.open_image(png(seed)) for seed in range(40)])  # two batches
    rows = list(found.rows([Item(str(seed), png(seed)) for seed in range(40)], top=0))
    for row, values in zip(rows, p, strict=True):
        assert row["label"] == found.classes[values.argmax()]
        listed = dict(row["top"])
        np.testing.assert_allclose([listed[name] for name in found.classes], values, atol=1e-5)
    assert [len(r["top"]) for r in found.rows([Item("x", png(1))], top=2)] == [2]


def test_a_picture_without_probabilities_is_an_error_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found = predictor()
    whole = found.net.probabilities

    def broken(x: torch.Tensor) -> torch.Tensor:
        p = whole(x)
        p[1] = torch.nan
        return p

    monkeypatch.setattr(found.net, "probabilities", broken)
    with pytest.raises(RunError, match=r"the model: sample b\.png has nan as a score"):
        list(found.rows([Item("x.png", b"junk"), Item("a.png", png(1)), Item("b.png", png(2))]))
    with pytest.raises(RunError, match="sample number 1 has nan"):
        found.probabilities([found.open_image(png(seed)) for seed in (1, 2)])


def test_open_set_rejects_below_the_threshold() -> None:
    items = [Item("x", png(1))]
    for threshold, is_open in ((0.01, False), (1.0, True)):
        row = next(predictor(threshold=threshold).rows(items, open_set=True))
        assert (row["open"], row["label"] is None) == (is_open, is_open)
        assert row["probability"] is not None
    assert next(predictor(threshold=1.0).rows(items))["label"] is not None
    with pytest.raises(CaproError, match="no open-set threshold"):
        next(predictor(threshold=None).rows(items, open_set=True))


def test_multi_label_gives_every_label_from_one_half_on() -> None:
    found = predictor(multi=True)
    row = next(found.rows([Item("x", png(1))], top=0))
    assert row["label"] == [name for name, p in row["top"] if p >= 0.5]


def test_csv_and_jsonl_hold_the_same(tmp_path: Path) -> None:
    rows = list(predictor().rows([Item('a "b"\n', png(1)), Item("bad", b"")], open_set=True))
    counts = save_rows(rows, tmp_path / "out.csv")
    save_rows(rows, tmp_path / "out.jsonl")
    assert counts["images"] == 2
    assert counts["errors"] == 1
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    with (tmp_path / "out.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    for line, cell in zip(lines, cells, strict=True):
        assert cell["image"] == line["image"]
        assert cell["label"] == (line["label"] or "")
        assert json.loads(cell["top"]) == line["top"]
    with pytest.raises(CaproError, match="exists already"):
        save_rows(rows, tmp_path / "out.csv")
    with pytest.raises(CaproError, match="predictions as 'xml'"):
        save_rows(rows, tmp_path / "out.xml")


def test_write_rows_streams() -> None:
    out = io.StringIO()
    rows = predictor().rows(Item(str(n), png(1)) for n in range(3))
    assert stream_rows(rows, out, "jsonl") == {"images": 3, "open": 0, "errors": 0}


@pytest.mark.parametrize("damage", ["nothing", "no config", "not json", "old", "no weights", "cut"])
def test_a_folder_that_is_no_model_says_so(tmp_path: Path, damage: str) -> None:
    from safetensors.torch import save_file

    save_file(predictor().net.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config()))
    if damage == "nothing":
        with pytest.raises(CaproError, match="device 'tpux'"):
            Predictor.load(tmp_path, device="tpux")
        assert Predictor.load(tmp_path).classes == ["a", "b,c", "d"]
        return
    if damage == "no config":
        (tmp_path / "config.json").unlink()
    elif damage == "not json":
        (tmp_path / "config.json").write_text("{")
    elif damage == "old":
        (tmp_path / "config.json").write_text(json.dumps(config() | {"capro_format": 0}))
    elif damage == "no weights":
        (tmp_path / "model.safetensors").unlink()
    else:
        (tmp_path / "model.safetensors").write_bytes(b"12345678")
    with pytest.raises(CaproError) as caught:
        Predictor.load(tmp_path)
    assert caught.value.hint


def test_predict_needs_no_training_code() -> None:
    code = (
        "import sys, capro.export.predictor\n"
        "training = ('capro.train', 'capro.core.losses', 'capro.graph', 'capro.models.text_encoders', 'capro.stages',"
        " 'faiss', 'accelerate', 'kornia', 'transformers')\n"
        "print([name for name in training if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_name_that_a_spreadsheet_would_compute_is_escaped_in_a_csv_only() -> None:
    row = {"image": "=1+1.jpg", "label": "@a", "probability": 0.5, "open": None, "top": [], "error": None}
    table, lines = io.StringIO(), io.StringIO()
    stream_rows([row], table, "csv")
    stream_rows([row], lines, "jsonl")
    found = next(csv.DictReader(table.getvalue().splitlines()))
    assert (found["image"], found["label"]) == ("'=1+1.jpg", "'@a")
    assert json.loads(lines.getvalue())["image"] == "=1+1.jpg"
