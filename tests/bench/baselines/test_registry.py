"""Baselines: small parts against hand values, and every one on a tiny run of each task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from capro import config
from capro.bench.baselines import graphs, mentors
from capro.bench.baselines.registry import BASELINES, baseline, baseline_stage
from capro.bench.baselines.selection import SmallLoss
from capro.bench.baselines.work import Work
from capro.errors import ConfigError, DataError
from capro.pipeline.artefacts import BASELINE_FIGURES, STEP1
from capro.pipeline.run import Run
from capro.pipeline.stage import Job
from capro.train.setup import net_state, new_net, training_set
from tests.bench.cases import prepare


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((mentors, "CLEANNET_STEPS"), (mentors, "MENTOR_STEPS"), (graphs, "GRAPH_STEPS")):
        monkeypatch.setattr(module, name, 40)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return prepare(tmp_path_factory.mktemp("single"))


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return prepare(tmp_path_factory.mktemp("several"), multi=True)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Run:
    small = ("net.mode=full", "views.size=16", "pretrain.epochs=2")
    return prepare(tmp_path_factory.mktemp("full"), *small)


@pytest.mark.parametrize("name", [name for name, each in BASELINES.items() if each.single_label])
def test_one_label(single: Run, name: str) -> None:
    if name == "cleanlab":
        pytest.importorskip("cleanlab")
    found = baseline(single, name)
    assert set(found) == {"top1", "top5"}
    assert found["top1"] > 0.5  # a third is chance
    scores = np.load(single.folder(f"baselines/{name}") / "test.npy")
    assert scores.shape == (18, 3)
    np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-5)
    begun = single.path.joinpath("events.jsonl").read_text().count('"started"')
    assert baseline(single, name) == found
    assert single.path.joinpath("events.jsonl").read_text().count('"started"') == begun


@pytest.mark.parametrize("name", [name for name, each in BASELINES.items() if each.multi_label])
def test_several_labels(several: Run, name: str) -> None:
    if name == "cleanlab":
        pytest.importorskip("cleanlab")
    found = baseline(several, name)
    assert found["mAP"] > 0.5


def test_baselines_differ(single: Run) -> None:
    names = ["vanilla", "linear", "smoothing", "mixup", "bootstrap", "scc", "ncr", "smallloss"]
    for name in names:
        baseline(single, name)
    scores = [np.load(single.folder(f"baselines/{name}") / "test.npy") for name in names]
    for i, a in enumerate(scores):
        for b in scores[i + 1 :]:
            assert np.abs(a - b).max() > 1e-4


@pytest.mark.parametrize("kind", ["full", "single"])
def test_the_two_networks_of_co_teaching_start_apart(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Their heads always; their encoders too where these learn from random weights."""
    objectives: list[SmallLoss] = []
    monkeypatch.setattr(Work, "noise", lambda _: 0.2)
    monkeypatch.setattr(Work, "fit", lambda _, objective, name: objectives.append(objective))
    run: Run = request.getfixturevalue(kind)
    job = Job(run, baseline_stage("coteaching", multi_label=False), "key", tmp_path)
    BASELINES["coteaching"].learn(Work(job, training_set(run)))
    second = objectives[0]._other
    assert second is not None
    one, other = objectives[0].net.state_dict(), second.state_dict()
    weights = [name for name in one if name.endswith("weight") and one[name].ndim > 1]
    same = {name.split(".")[0] for name in weights if torch.equal(one[name], other[name])}
    assert not same
    assert {name.split(".")[0] for name in weights} >= {"heads"} | ({"encoder"} if kind == "full" else set())
    for start in (one, other):  # the key branch begins as the query's
        for name, value in start.items():
            if name.startswith("key_encoder."):
                assert torch.equal(value, start[name.removeprefix("key_")])


PUBLISHED = (
    "cleannet", "coteaching", "curriculumnet", "mentornet", "mile", "mopro", "ncr", "scc", "sinet", "somnet", "vsgraph",
)  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_encoder_learns_too(full: Run, name: str) -> None:
    baseline(full, name)
    loaded = net_state(new_net(full, training_set(full)))
    before = full.read(STEP1) if name == "vsgraph" else loaded  # VSGraph goes on from step 1
    after = full.read(STEP1.of(f"baselines/{name}"))
    moved = [key for key in after if key.startswith("encoder.") and not torch.equal(after[key], before[key])]
    assert moved


@pytest.mark.parametrize("name", [name for name in PUBLISHED if not BASELINES[name].multi_label])
def test_several_labels_are_refused_where_a_system_has_no_form_for_them(several: Run, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} has no form for multi-label data") as error:
        baseline(several, name)
    assert "--row" in error.value.hint


def test_the_encoder_learns_from_partial_labels_too(tmp_path: Path) -> None:
    small = ("net.mode=full", "views.size=16", "pretrain.epochs=2")
    run = prepare(tmp_path, *small, multi=True)
    baseline(run, "mcpl")
    before = net_state(new_net(run, training_set(run)))
    after = run.read(STEP1.of("baselines/mcpl"))
    assert any(key.startswith("encoder.") and not torch.equal(after[key], before[key]) for key in after)


def test_multimodal_works_where_the_encoder_learns(full: Run) -> None:
    """With step 1's encoder, which stays; the joined classifier is kept with the model."""
    baseline(full, "multimodal")
    before, after = full.read(STEP1), full.read(STEP1.of("baselines/multimodal"))
    assert all(torch.equal(after[key], before[key]) for key in after if key.startswith("encoder."))
    assert "heads.classifier.generators.1.phrases" in after


def test_one_label_is_refused_where_a_system_has_no_form_for_it(single: Run) -> None:
    with pytest.raises(ConfigError, match="mcpl has no form for single-label data") as error:
        baseline(single, "mcpl")
    assert "--row" in error.value.hint


def with_verified(run: Run, *verified: str) -> Run:
    return replace(run, settings=config.update(run.settings, verified or ("baselines.verified=null",)))


def test_cleannet_is_refused_without_verified_samples(single: Run) -> None:
    with pytest.raises(ConfigError, match="cleannet needs verified samples") as error:
        baseline(with_verified(single), "cleannet")
    assert "baselines.verified=FILE" in error.value.hint


def test_verified_samples_that_are_no_file_or_of_other_data_are_refused(single: Run, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        baseline(with_verified(single, f"baselines.verified={tmp_path / 'none.csv'}"), "cleannet")
    (tmp_path / "other.csv").write_text("file_name,true_labels\nelsewhere.png,lime\n")
    with pytest.raises(DataError, match="none of its 1 names is a training sample"):
        baseline(with_verified(single, f"baselines.verified={tmp_path / 'other.csv'}"), "mentornet")


def test_verified_samples_decide_a_stage_that_learns_from_them(single: Run, tmp_path: Path) -> None:
    half = tmp_path / "half.csv"
    lines = Path(str(single.settings.baselines.verified)).read_text().splitlines()
    half.write_text("\n".join(lines[:25]))
    fewer, none = with_verified(single, f"baselines.verified={half}"), with_verified(single)
    for name in ("mentornet", "mopro"):
        keys = [
            baseline_stage(name, multi_label=False).causes(run).fingerprint for run in (single, fewer, none)
        ]
        assert len(set(keys)) == (3 if name == "mentornet" else 1)
    copy = tmp_path / "copy.csv"
    copy.write_text(half.read_text())
    again = with_verified(single, f"baselines.verified={copy}")
    stage = baseline_stage("mentornet", multi_label=False)
    # what it says decides, not where it is
    assert stage.causes(again).fingerprint == stage.causes(fewer).fingerprint
    copy.write_text("\n".join(lines[:26]))
    assert stage.causes(again).fingerprint != stage.causes(fewer).fingerprint


def test_the_mentor_is_data_driven_where_samples_are_verified(single: Run) -> None:
    for run, kind in ((single, "data-driven"), (with_verified(single), "predefined")):
        baseline(run, "mentornet")
        assert run.read(BASELINE_FIGURES.of("baselines/mentornet"))["mentor"] == kind


def test_unknown_baseline(single: Run) -> None:
    with pytest.raises(ConfigError, match="no baseline 'knnn'") as error:
        baseline(single, "knnn")
    assert "knn" in error.value.hint


def test_several_processes_are_refused(single: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="baselines train in one process, 2 were launched"):
        baseline(single, "knn")
