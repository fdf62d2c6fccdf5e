"""An image-text model as backbone, through the stages."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from capro.errors import ConfigError
from capro.export.model import export_model
from capro.export.predictor import Predictor, find_images
from capro.models.backbones import load_backbone
from capro.models.text_encoders import load_text_encoder
from capro.pipeline.artefacts import JOINT_PICTURES, JOINT_PROMPTS, JOINT_TEXTS, PLAIN_FEATURES
from capro.pipeline.progress import Watch
from capro.pipeline.run import Run
from capro.stages import PLAN, run_all
from capro.stages.threshold import threshold
from tests import squares, towers

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("words")]


def made(folder: Path, *overrides: str, family: str = "clip", multi: bool = False) -> Run:
    towers.SAVERS[family](folder / "model")
    data = squares.write_data(folder / "data", multi=multi)
    given = [f"net.backbone={folder / 'model'}", "views.size=null", "method=plus", *overrides]
    return Run.create(folder / "run", squares.settings(data, *given, multi=multi))


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Run:
    run = made(tmp_path_factory.mktemp("clip"))
    run_all(run)
    return run


def test_prompts_texts_and_pictures_are_in_one_space(clip):
    encoder = load_text_encoder(clip.settings.net.backbone)
    prompts, pictures = np.array(clip.read(JOINT_PROMPTS)), np.array(clip.read(JOINT_PICTURES))
    assert prompts.shape == (3, 8)
    both = encoder.encode(["a photo of a azure", "a photo of a azure, blue clear sky"]).mean(axis=0)
    np.testing.assert_allclose(prompts[1], both / np.linalg.norm(both), atol=1e-5)
    train = pictures.shape[0]
    np.testing.assert_allclose(
        pictures, encoder.project(np.array(clip.read(PLAIN_FEATURES))[:train]), atol=1e-5
    )
    texts = np.array(clip.read(JOINT_TEXTS["title"]))
    assert texts.shape == (train, 8)
    assert 0 < (~texts.any(axis=1)).sum() < train  # some have no title


def test_its_weights_are_named(clip):
    found = clip.result("posterior")
    assert isinstance(found["zero_shot_weight"], float)
    assert [*found["fit_weights"]] == [*found["field_weights"]] == ["title"]
    assert "joint" in [stage.name for stage in PLAN.of(clip.settings)]


def test_who_has_no_text_tower_has_no_such_stage(tmp_path, clip):
    data = Path(str(clip.settings.data.source))
    run = Run.create(tmp_path / "run", squares.settings(data, "method=plus"))
    names = [stage.name for stage in PLAN.of(run.settings)]
    assert "joint" not in names
    assert PLAN["posterior"].inputs(run.settings) == ["scan", "classes", "embed", "match"]
    paper = Run.create(tmp_path / "paper", clip.settings.model_copy(update={"method": "paper"}))
    assert "joint" not in [stage.name for stage in PLAN.of(paper.settings)]


def test_everything_is_fresh_the_second_time(clip):
    PLAN.do(clip, "clean")
    kept = [json.loads(line) for line in (clip.path / "events.jsonl").read_text().splitlines()]
    seen = [event for event in kept if event.get("stage") == "joint"]
    assert [event["event"] for event in seen] == ["started", "finished"]


def test_the_model_that_leaves_needs_no_folder(clip, tmp_path):
    export_model(clip, tmp_path / "model", open_set=threshold(clip))
    moved = Path(clip.settings.net.backbone)
    moved.rename(moved.with_name("moved"))
    try:
        images = [*find_images([Path(str(clip.settings.data.source)) / "test"])]
        rows = [*Predictor.load(tmp_path / "model").rows(images)]
        assert [row["label"] for row in rows] == [Path(row["image"]).name.split("-")[0] for row in rows]
        assert len(rows) == 18
    finally:
        moved.with_name("moved").rename(moved)


@pytest.mark.parametrize("multi", [False, True])
def test_siglip_and_several_labels(tmp_path, multi):
    run = made(tmp_path, family="siglip", multi=multi)
    run_all(run)
    assert np.array(run.read(JOINT_PICTURES)).shape[1] == 16
    assert isinstance(run.result("posterior")["zero_shot_weight"], float)


def test_an_encoder_that_learns_gives_evidence_as_it_was(tmp_path):
    run = made(tmp_path, "net.mode=full", "train.epochs=1", "pretrain.epochs=1")
    run_all(run)
    frozen = made(tmp_path / "frozen")
    PLAN.do(frozen, "scan", "pretrain", "joint")
    np.testing.assert_allclose(run.read(JOINT_PICTURES), frozen.read(JOINT_PICTURES), atol=1e-4)


def test_pictures_and_class_names_without_texts(tmp_path):
    run = made(tmp_path, "data.unlabelled=true", "data.without_texts=true")
    for part in ("train", "test"):
        table = tmp_path / "data" / part / "metadata.csv"
        lines = table.read_text().splitlines()
        bare = [lines[0], *(",".join([*line.split(",")[:2], ""]) for line in lines[1:])]
        table.write_text("\n".join(bare) + "\n")
    run_all(run)
    assert run.result("posterior")["fit_weights"] == {}
    assert set(run.issues()["decision"]) <= {"relabel", "drop"}


def test_a_mistyped_folder_stops_before_the_scan(tmp_path):
    run = made(tmp_path)
    run = run.with_settings(
        run.settings.model_copy(
            update={"net": run.settings.net.model_copy(update={"backbone": str(tmp_path / "modle")})}
        )
    )
    with pytest.raises(ConfigError, match="no such folder"):
        run_all(run)
    assert run.finished("scan") is None


class Said(Watch):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def say(self, text: str) -> None:
        self.texts.append(text)


def test_smaller_pictures_than_its_own_are_said(tmp_path):
    run = made(tmp_path, "views.size=16")
    watch = Said()
    PLAN.do(run, "scan", "features", watch=watch)
    assert any("pictures have 16 px, the encoder's own size is 32 px" in text for text in watch.texts)
    own = made(tmp_path / "own")
    watch = Said()
    PLAN.do(own, "scan", "features", watch=watch)
    assert not any("own size" in text for text in watch.texts)
    with torch.no_grad():
        assert load_backbone(own.settings.net.backbone).own_size == 32
