"""The exported model: the same probabilities as evaluation, a card, ONNX, a threshold."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import capro
from capro.data.manifest import manifest_of
from capro.data.pixels import ImageStore
from capro.errors import CaproError
from capro.export.model import export_model
from capro.export.predictor import Predictor
from capro.pipeline.artefacts import SCORES
from capro.pipeline.run import Run
from capro.stages.threshold import threshold
from tests.made_up import CLASSES, make_run


@pytest.mark.parametrize("kind", ["single", "multi", "frozen", "centred"])
def test_predictions_are_those_of_evaluate(kind: str, tmp_path: Path) -> None:
    run = make_run(
        tmp_path, multi=kind == "multi", frozen=kind in ("frozen", "centred"), centred=kind == "centred"
    )
    export_model(run, tmp_path / "model", open_set=threshold(run))
    predictor = Predictor.load(tmp_path / "model")
    manifest = manifest_of(run)
    store = ImageStore(manifest)
    images = [predictor.open_image(store.read(int(i))) for i in manifest.split("test")]
    evaluated = run.read(SCORES["capro"])
    assert len(images) == len(evaluated) > 0
    np.testing.assert_allclose(
        predictor.probabilities(images), evaluated, atol=1e-5
    )  # cached features are of the folded encoder
    assert np.ptp(evaluated) > 0.1  # the comparison could fail
    other = run.read(SCORES["vanilla"])
    assert np.abs(other - evaluated).max() > 1e-3


def test_config_says_everything_a_reader_needs(run: Run, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    assert config["id2label"] == {str(i): name for i, name in enumerate(CLASSES)}
    assert config["label2id"] == {name: i for i, name in enumerate(CLASSES)}
    assert config["problem_type"] == "single_label_classification"
    assert config["preprocessing"]["size"] == 16
    assert len(config["preprocessing"]["mean"]) == 3
    assert config["backbone"]["name"] == "small"
    open_set = config["open_set"]
    assert 0 <= open_set["threshold"] <= 1
    dropped = int((run.issues()["decision"] == "drop").sum())
    assert open_set["known"]["samples"] == len(run.issues()) - dropped
    assert "trained without them" in open_set["known"]["from"]
    names = set(load_file(model / "model.safetensors"))
    assert {"classifier.weight", "classifier.bias"} <= names
    assert not any("projector" in name or "key" in name for name in names)  # nothing for training


def test_onnx_equals_pytorch(run: Run, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    config = export_model(run, tmp_path / "m", open_set=threshold(run), onnx=True)
    assert config["onnx"]["largest_difference"] <= 1e-4
    assert str(Path(capro.__file__).parent).encode() not in (tmp_path / "m" / "model.onnx").read_bytes()
    session = runtime.InferenceSession(str(tmp_path / "m" / "model.onnx"))
    x = torch.rand(5, 3, 16, 16)
    ours = Predictor.load(tmp_path / "m").net.probabilities(x).detach().numpy()
    np.testing.assert_allclose(session.run(None, {"images": x.numpy()})[0], ours, atol=1e-4)


def test_export_refuses_an_existing_folder_and_an_unfinished_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "mine.txt").write_text("mine")
    with pytest.raises(CaproError, match="exists already"):
        export_model(run, tmp_path / "m", open_set={})
    empty = Run.create(tmp_path / "empty", run.settings)
    with pytest.raises(CaproError, match="the finetune stage has not finished"):
        export_model(empty, tmp_path / "n", open_set={})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "m"]
