"""`capro evaluate` on a tiny run: figures, another source, truth, open set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capro.cli import evaluation_tables
from capro.data.manifest import Manifest, manifest_of
from capro.errors import DataError, RunError
from capro.pipeline.artefacts import DETAILS, read_array
from capro.pipeline.run import Run
from capro.results.comparison import compare, jsonable
from capro.results.doctor import examine
from capro.review.answers import Decision
from capro.review.log import open_log
from capro.review.progress import reviewed
from capro.review.queue import random_order, review_seed
from capro.stages import run_all
from capro.stages.evaluate import evaluate
from tests import squares as tiny
from tests.data.corpus import jpeg
from tests.data.published import NAMES, SYNSETS, put, webvision
from tests.review.made import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    base = tmp_path_factory.mktemp("evaluate")
    data = tiny.write_data(base / "data", val=4, novel=True)
    made = Run.create(base / "run", tiny.settings(data))
    run_all(made)
    return made


def test_a_reviewed_random_part_is_printed_without_a_test_split(tmp_path: Path, capsys: Any) -> None:
    made = make_run(tmp_path)
    samples = manifest_of(made).samples
    train = samples[samples["split"] == "train"]
    ids = train["id"].to_numpy()[random_order(len(train), review_seed(made))][:4]
    log = open_log(made)
    for number, sample in enumerate(ids):
        given = train.loc[train["id"] == sample, "labels"].iloc[0]
        shown = {"given": given, "proposed": given if number else (), "random": True}
        log.decide(
            [Decision(sample, "labels" if number else "out", yes=given if number else (), **shown)],
            person="me",
        )
    log.close()
    found = reviewed(made)
    assert found is not None
    part = found["estimate"]
    assert (part["before"]["hits"], part["before"]["total"]) == (3, 4)
    assert (part["after"]["hits"], part["after"]["total"]) == (3, 3)
    evaluation_tables.assessment({"on": "no test split", "samples": 0, "open": 0, "reviewed": found})
    said = " ".join(capsys.readouterr().out.split())
    assert "75.0" in said
    assert "3 of 4" in said
    assert "random questions" in said
    waiting = {"decided": 2, "estimate": None, "waiting": 2}
    evaluation_tables.assessment({"on": "no test split", "samples": 0, "open": 0, "reviewed": waiting})
    said = " ".join(capsys.readouterr().out.split())
    assert "2 random answers not counted yet: an earlier sample of the random order is open" in said


def data_of(run: Run) -> Path:
    return Path(run.settings.data.source or "")


def test_own_test_split(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluate(run, truth=data_of(run) / "train_truth.csv", with_open_set=True)
    json.dumps(found, allow_nan=False)
    stored = run.result("evaluate")
    assert set(stored) == {"vanilla", "capro"}
    for name in stored:
        assert found["methods"][name]["top1"] == stored[name]["top1"]
    assert (found["samples"], found["open"]) == (24, 6)
    changes = [row["difference"] for row in found["classes"]]
    assert changes == sorted(changes)  # made worse first
    assert found["worse"] + found["equal"] + found["better"] == 3
    assert found["ambiguous"]["samples"] == 6
    assert found["ambiguous"]["classes"] == 1
    evaluation_tables.assessment(found)
    text = capsys.readouterr().out
    for words in ("worse", "open set", "calibration", "anchors whose label is true", "ambiguous"):
        assert words in text


def test_kept_figures_are_checked_when_they_are_read_and_kills_leave_nothing(run: Run) -> None:
    left = run.folder("evaluate") / ".details.1.2.tmp.json"
    left.write_text("{")
    evaluate(run)
    assert not left.exists()
    assert run.find_sealed(DETAILS) is not None
    file = run.file(DETAILS)
    whole = file.read_text("utf-8")
    for damaged in (whole.replace('"better": ', '"better": 1'), whole[: len(whole) // 2], "", "[]"):
        file.write_text(damaged, "utf-8")
        with pytest.raises(RunError, match=r"details\.json: damaged") as error:
            examine(run)
        assert "capro evaluate" in error.value.hint
    evaluate(run)
    assert file.read_text("utf-8") == whole
    examine(run)


def test_open_set_has_curve_and_threshold_from_val(run: Run) -> None:
    found = evaluate(run, with_open_set=True)["open_set"]
    assert found["novel"] == ["gold"]
    assert found["held_out"]["capro"]["known"]["samples"] == 12
    assert "val split" in found["held_out"]["vanilla"]["known"]["from"]
    row = found["methods"]["capro"]
    assert len(row["curve"]) == 101
    assert row["held_out"]["f1"] <= row["best"]["f1"]


def test_truth_counts_what_cleaning_did(run: Run) -> None:
    found = evaluate(run, truth=data_of(run) / "train_truth.csv")["truth"]
    assert found["web_label_accuracy"] == pytest.approx(0.75)
    assert found["noise_detection"]["noise"] == pytest.approx(0.25)
    before = {row["class"] for row in evaluate(run)["classes"]}
    assert set(found["purity_by_class"]) == before


def test_another_source_gives_the_same_figures_and_touches_no_stage(run: Run) -> None:
    here = evaluate(run, with_open_set=True)
    prints = {name: run.identity(name) for name in ("scan", "features", "evaluate")}
    there = evaluate(run, on=str(data_of(run)), with_open_set=True)
    assert there["samples"] == here["samples"]
    assert there["methods"]["capro"]["top1"] == here["methods"]["capro"]["top1"]
    assert prints == {name: run.identity(name) for name in prints}
    folder = next((run.path / "on").iterdir())
    assert (folder / "details.json").exists()
    own = np.sort(read_array(run.folder("evaluate") / "capro.npy"), axis=0)
    other = np.sort(read_array(folder / "scores" / "capro.npy"), axis=0)
    np.testing.assert_allclose(own, other, atol=1e-5)


def test_unknown_labels_of_another_source_are_told(run: Run) -> None:
    with pytest.raises(DataError, match=r"6 samples .* 'gold'") as error:
        evaluate(run, on=str(data_of(run) / "test"))
    assert "--open-set" in error.value.hint


def test_class_list_limits_the_open_class(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "novel.txt"
    file.write_text("gold\n")
    assert evaluate(run, with_open_set=True, novel=file)["open_set"]["novel"] == ["gold"]
    file.write_text("lime\n")
    with pytest.raises(DataError, match="'gold' is neither"):
        evaluate(run, with_open_set=True, novel=file)


def test_compare_several_labels() -> None:
    rng = np.random.default_rng(0)
    y = (rng.random((20, 4)) < 0.4).astype(np.int64)
    scores = {"vanilla": rng.random((20, 4)), "capro": y * 0.5 + rng.random((20, 4)) * 0.4}
    found = compare(scores, y, list("abcd"), np.array([True, False, False, False]))
    assert found["methods"]["capro"]["mAP"] == 1
    assert found["class_figure"] == "AP"
    assert found["better"] + found["equal"] == 4
    assert found["ambiguous"]["capro"]["mAP"] == 1
    assert {"C-F1@0.5", "mAP-micro", "F1-image"} <= set(found["methods"]["capro"])


def test_jsonable_has_no_nan() -> None:
    assert jsonable({"a": float("nan"), "b": [1.0, float("inf")]}) == {"a": None, "b": [1.0, None]}


def test_without_a_test_split_truth_is_still_measured(tmp_path: Path) -> None:
    data = tiny.write_data(tmp_path / "data", train=8, test=0)
    bare = Run.create(tmp_path / "run", tiny.settings(data))
    run_all(bare)
    found = evaluate(bare, truth=data / "train_truth.csv")
    assert "methods" not in found
    assert found["truth"]["web_label_accuracy"] == 0.5
    with pytest.raises(DataError, match="no test split"):
        evaluate(bare)


def test_imagenet_is_scored_apart_from_webvision(tmp_path: Path) -> None:
    """Folders are named by WordNet id, the run's classes by words; the run's own test set stays."""
    tree = webvision(tmp_path / "wv")
    names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, len(SYNSETS) + 1)]
    for number, (name, line) in enumerate(zip(names, SYNSETS, strict=True)):
        for folder in ("flat", f"folders/{line.split()[0]}"):
            put(tmp_path / folder / name, jpeg(20, 16, seed=900 + number))
    listed = "".join(f"{name} {number}\n" for number, name in enumerate(names))
    put(tmp_path / "flat" / "val.txt", listed)
    given = ["data.classes=null", "embed.max_tokens=16", "pretrain.epochs=1", "train.epochs=1"]
    made = Run.create(tmp_path / "run", tiny.settings(tree, *given))
    run_all(made)
    before = {name: made.identity(name) for name in ("scan", "evaluate")}
    for layout in ("flat", "folders"):
        found = evaluate(made, on=str(tmp_path / layout))
        assert (found["samples"], found["open"]) == (4, 0)
        folder = next((made.path / "on").glob(f"{layout}-*"))
        rows = Manifest.load(folder / "scan" / "manifest.parquet").samples
        assert [labels[0] for labels in rows["labels"]] == NAMES
    own = evaluate(made)
    assert own["samples"] == 8
    assert {name: made.identity(name) for name in before} == before
    again = evaluate(made, on=str(tree))  # the authors' own validation images
    assert again["samples"] == 8
    assert again["methods"]["capro"]["top1"] == own["methods"]["capro"]["top1"]
