"""The method plus through the stages: what is cleaned, what is written, what a kill changes (nothing)."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from capro.core.evidence import ClassMeanings, Evidence
from capro.core.kept_scores import KeptScores, keep
from capro.core.linear import NO_CALIBRATION
from capro.data.manifest import manifest_of
from capro.errors import ConfigError
from capro.pipeline.artefacts import (
    CLEANED_LABELS,
    FUSED_SCORES,
    KEY_FEATURES,
    PLAIN_FEATURES,
    POSTERIOR,
    QUERY_FEATURES,
    SOFT_LABELS,
    STEP3,
    Artefact,
)
from capro.pipeline.progress import Watch
from capro.pipeline.run import Run
from capro.results.label_changes import finding_text
from capro.results.truth import on_truth
from capro.stages import PLAN, clean, run_all
from capro.stages.posterior import check, memory_of_all, row_blocks, rows_at_once
from capro.stages.training import calibration_of, judge_of
from capro.train.objectives import ClassifierOnly
from capro.train.setup import training_set
from tests import squares, tiny

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("words")]

PLUS = "method=plus"


def made(folder: Path, *overrides: str, multi: bool = False, **data) -> Run:
    source = squares.write_data(folder / "data", multi=multi, **data)
    return Run.create(folder / "run", squares.settings(source, PLUS, *overrides, multi=multi))


@pytest.fixture(scope="module")
def single(tmp_path_factory) -> Run:
    run = made(tmp_path_factory.mktemp("single"))
    run_all(run)
    return run


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> Run:
    run = made(tmp_path_factory.mktemp("several"), multi=True)
    run_all(run)
    return run


def kept(run: Run, artefact: Artefact, name: str, states: int) -> np.ndarray:
    return KeptScores(run.read(artefact), name, states)[:]


def truth_of(run: Run) -> Path:
    return Path(str(run.settings.data.source)) / "train_truth.csv"


def test_wrong_labels_are_found_and_mended(single):
    found = on_truth(single, truth_of(single))
    assert found["web_label_accuracy"] == 0.75
    assert found["cleaned_label_accuracy"] > 0.95
    assert found["error_average_precision"] > 0.95
    assert single.result("evaluate")["capro"]["top1"] == 1.0


@pytest.mark.parametrize("multi", [False, True])
def test_a_fit_to_a_part_judges_the_others_too(single, several, tmp_path, monkeypatch, multi):
    whole = several if multi else single
    n = len(whole.read(CLEANED_LABELS))
    monkeypatch.setattr("capro.stages.posterior.rows_at_once", lambda *_: n - 8)
    run = tiny.copied(whole, tmp_path / "run")
    PLAN.do(run, "posterior", "clean", force=True)
    assert (run.result("posterior")["fitted_to"], whole.result("posterior")["fitted_to"]) == (n - 8, n)
    found = on_truth(run, truth_of(whole))
    assert found["cleaned_label_accuracy"] > found["web_label_accuracy"] + 0.05


def test_the_memory_of_the_fit_bounds_its_rows():
    def evidence(n: int) -> Evidence:
        pictures, texts, labels = np.empty((n, 7), np.float32), np.empty((n, 5), np.float32), np.empty(n)
        return Evidence(pictures, [texts], [labels], ClassMeanings(torch.zeros(3, 5)))

    most = rows_at_once(evidence(5), 3)
    assert rows_at_once(evidence(5), 0.001) < most / 3000
    assert memory_of_all(evidence(most)) <= 3
    assert memory_of_all(evidence(most + 1)) > 3


def test_a_fit_to_very_few_samples_is_told(single, tmp_path, monkeypatch):
    monkeypatch.setattr("capro.stages.posterior.rows_at_once", lambda *_: 12)
    run = tiny.copied(single, tmp_path / "run")
    PLAN.do(run, "posterior", force=True)
    assert any(
        "fitted to 12 samples, fewer than 5 per class, so all classes share their weights: plus.memory_gb=0.1"
        in line
        for line in check(run)
    )


def test_blocks_of_very_many_classes_are_small():
    assert [rows.stop - rows.start for rows in row_blocks(20_000, 33)] == [8192, 8192, 3616]
    assert max(rows.stop - rows.start for rows in row_blocks(20_000, 10_001)) == 838


def test_blocks_change_nothing(single, tmp_path, monkeypatch):
    run = tiny.copied(single, tmp_path / "run")
    monkeypatch.setattr("capro.stages.posterior.BLOCK", 7)
    PLAN.do(run, "posterior", "clean", force=True)
    assert np.array_equal(run.read(POSTERIOR), single.read(POSTERIOR))
    assert run.issues().equals(single.issues())


def test_of_many_classes_the_highest_scores_are_kept(single, tmp_path, monkeypatch):
    for name in ("DENSE", "MOST"):
        monkeypatch.setattr(f"capro.core.kept_scores.{name}", 2)
    run = tiny.copied(single, tmp_path / "run")
    PLAN.do(run, "posterior", "clean", "finetune", "evaluate", force=True)
    assert run.read(POSTERIOR).shape[1] == 2  # none of these and the web label
    assert run.read(FUSED_SCORES).shape[1] == 2
    assert run.result("evaluate")["capro"]["top1"] > 0.5


def test_several_labels_keep_every_score(several, tmp_path, monkeypatch):
    """Step 3 learns what the words say of every class: one that was left out would be a certain negative."""
    for name in ("DENSE", "MOST"):
        monkeypatch.setattr(f"capro.core.kept_scores.{name}", 2)
    run = tiny.copied(several, tmp_path / "run")
    PLAN.do(run, "posterior", "clean", force=True)
    for artefact in (POSTERIOR, SOFT_LABELS):
        assert np.array_equal(run.read(artefact), several.read(artefact))


def test_with_a_frozen_encoder_step_two_has_nothing_to_learn(single):
    names = [stage.name for stage in PLAN.of(single.settings)]
    assert "posterior" in names
    assert "train" not in names
    assert single.finished("train") is None
    full = single.settings.model_copy(update={"net": single.settings.net.model_copy(update={"mode": "full"})})
    assert "train" in [stage.name for stage in PLAN.of(full)]


def test_the_posterior_is_a_distribution_and_decides(single):
    q = kept(single, POSTERIOR, "posterior", 4)
    np.testing.assert_allclose(q.sum(axis=1), 1, atol=1e-4)
    best, labels = q.argmax(axis=1), np.array(single.read(CLEANED_LABELS))
    sure = q.max(axis=1) >= single.settings.plus.ask_below
    assert (labels[sure] == np.where(best < 3, best, -1)[sure]).all()
    for view in ("words", "picture"):
        np.testing.assert_allclose(np.exp(kept(single, POSTERIOR, view, 4)).sum(axis=1), 1, atol=1e-4)


def test_verdicts_show_the_posterior_and_what_it_is_made_of(single):
    frame, q = single.issues(), kept(single, POSTERIOR, "posterior", 4)
    names = ["crimson", "azure", "lime"]
    given = np.array([names.index(name) for name in frame["given_label"]])
    np.testing.assert_allclose(frame["label_score"], q[np.arange(len(q)), given], atol=1e-6)
    np.testing.assert_allclose(frame["none_score"], q[:, 3], atol=1e-6)
    assert frame["needs_review"].dtype == bool
    moved = frame[frame["decision"] == "relabel"].iloc[0]
    assert f"Relabelled from '{moved['given_label']}' to '{moved['corrected_label']}'" in moved["evidence"]
    has_text = (
        manifest_of(single).samples["title"].iloc[manifest_of(single).split("train")] != ""
    ).to_numpy()
    assert 0 < has_text.sum() < len(has_text)
    assert (frame["evidence"].str.contains("(label and texts ", regex=False) == has_text).all()
    assert (frame["evidence"].str.contains("(label 0", regex=False) == ~has_text).all()
    assert frame["evidence"].str.contains("picture").all()


def test_a_doubtful_sample_is_a_question(single, tmp_path):
    shutil.copytree(single.path, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    settings = run.settings.model_copy(
        update={"plus": run.settings.plus.model_copy(update={"ask_below": 1.0})}
    )
    run = run.with_settings(settings)
    PLAN.do(run, "clean")
    frame = run.issues()
    assert frame["needs_review"].all()
    assert frame["evidence"].str.contains("a person should decide").all()
    assert (frame["decision"] != "drop").all()  # the best class stands until somebody has looked


def test_step_two_asks_as_the_offline_pass_does(single):
    settings = single.settings.model_copy(
        update={"plus": single.settings.plus.model_copy(update={"ask_below": 1.0})}
    )
    training = training_set(single)
    q, labels = torch.tensor([[0.1, 0.1, 0.2, 0.6]]), torch.tensor([0])
    other = torch.tensor([[0.1, 0.1, 0.7, 0.1]])
    for run, expected in (
        (single, 2),
        (single.with_settings(settings), 0),
    ):  # a relabel that is asked is not done
        judge = judge_of(run, training, training.task(run.settings.net.tau))
        assert judge.decide(q[:, :3], labels, torch.tensor([False]))[0].tolist() == [-1]  # none of these
        assert judge.decide(other[:, :3], labels, torch.tensor([False]))[0].tolist() == [expected]


def test_several_labels_are_mended_pair_by_pair(several):
    found = on_truth(several, truth_of(several))
    assert found["web_label_accuracy"] < 0.9
    assert found["cleaned_label_accuracy"] > found["web_label_accuracy"] + 0.05
    q = kept(several, POSTERIOR, "posterior", 3)
    assert q.shape == (len(manifest_of(several).split("train")), 3)
    assert "needs_review" in several.issues()


def test_no_text_at_all(tmp_path):
    run = made(tmp_path, "data.without_texts=true")
    for part in ("train", "test"):
        table = tmp_path / "data" / part / "metadata.csv"
        lines = table.read_text().splitlines()
        table.write_text(
            "\n".join([lines[0], *(",".join([*x.split(",")[:2], ""]) for x in lines[1:])]) + "\n"
        )
    run_all(run)
    assert run.result("embed")["fields"] == []
    assert run.result("posterior")["field_weights"] == {}
    issues = run.issues()
    assert set(issues["decision"]) <= {"anchor", "keep", "relabel", "drop"}
    assert not issues["evidence"].str.contains("text").any()
    assert issues[["text_probability", "text_distance"]].isna().all(axis=None)


def test_the_paper_is_untouched_by_the_other_method(tmp_path):
    run = made(tmp_path, "method=paper")
    names = [stage.name for stage in PLAN.of(run.settings)]
    assert "posterior" not in names
    PLAN.do(run, "scan", "embed")
    assert "fields" not in run.result("embed")


def test_a_class_with_something_wrong_is_named():
    finding = {"kind": "one class", "classes": ["bat", "club"], "share": 0.4, "samples": []}
    assert finding_text(finding) == "'bat' and 'club' can hardly be separated: they may be one class"


class Warned(Watch):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


def test_findings_are_warnings_of_the_stage(single, monkeypatch):
    finding = {"kind": "sense", "classes": ["lime"], "share": 0.1, "samples": []}
    real = Run.result
    monkeypatch.setattr(
        Run,
        "result",
        lambda run, name: real(run, name) | ({"findings": [finding]} if name == "posterior" else {}),
    )
    watch = Warned()
    PLAN.do(single, "posterior", watch=watch)
    assert any("'lime'" in text for text in watch.texts)


def test_step_two_follows_the_posterior_and_a_kill_changes_nothing(tmp_path):
    run = made(
        tmp_path, "net.mode=full", "train.frozen_epochs=1", "train.epochs=3", "log.checkpoint_minutes=1e-9"
    )
    PLAN.do(run, "scan", "pretrain", "embed", "match", "posterior")
    whole, killed = (tiny.copied(run, tmp_path / name) for name in ("whole", "killed"))
    steps = ("train", "clean", "finetune")
    PLAN.do(whole, *steps)
    assert on_truth(whole, truth_of(run))["cleaned_label_accuracy"] > 0.9
    child = tiny.processes().Process(
        target=tiny.work, args=(str(killed.path), steps, "capro.train.loop.learning_rate", 5)
    )
    child.start()
    child.join(90)
    assert child.exitcode == -signal.SIGKILL
    PLAN.do(killed, *steps)
    assert tiny.results(killed) == tiny.results(whole)


def test_step_three_of_several_labels_learns_from_the_words_after_step_two(tmp_path, monkeypatch):
    run = made(tmp_path, "net.mode=full", "train.epochs=2", multi=True)
    PLAN.do(run, "scan", "pretrain", "embed", "match", "posterior", "train", "clean")
    seen = []
    real = ClassifierOnly.by
    monkeypatch.setattr(
        ClassifierOnly, "by", lambda *given, **named: seen.append(given[3]) or real(*given, **named)
    )
    PLAN.do(run, "finetune")
    after = kept(run, FUSED_SCORES, "fused", 3)
    assert np.abs(after - kept(run, POSTERIOR, "posterior", 3)).max() > 1e-3
    np.testing.assert_array_equal(seen[0].numpy(), run.read(SOFT_LABELS))
    first = 1 / (1 + np.exp(-kept(run, POSTERIOR, "words", 3)))
    assert np.abs(run.read(SOFT_LABELS) - first).max() > 1e-3


def test_pictures_texts_and_class_names_are_enough(tmp_path):
    run = made(tmp_path, "data.unlabelled=true", train=24, noise=0)
    run_all(run)
    assert all(
        labels == () for labels in manifest_of(run).samples["labels"].iloc[manifest_of(run).split("train")]
    )
    frame = run.issues()
    assert set(frame["decision"]) <= {"relabel", "drop"}
    shown = [identity.split("/")[1].split("-")[0] for identity in frame["id"]]
    right = [one == other for one, other in zip(shown, frame["corrected_label"], strict=True)]
    assert np.mean(right) > 0.9
    assert run.result("evaluate")["capro"]["top1"] > 0.9
    assert "no label" in frame["evidence"].iloc[0]


def test_without_labels_the_classes_must_be_listed_and_the_method_be_plus(tmp_path):
    run = made(tmp_path, "data.unlabelled=true", "data.classes=null")
    with pytest.raises(ConfigError, match="without labels the classes are not known"):
        PLAN.do(run, "scan", "classes")
    paper = made(tmp_path / "paper", "data.unlabelled=true", "method=paper")
    with pytest.raises(ConfigError, match="needs labels"):
        PLAN.do(paper, "scan", "classes")


@pytest.mark.parametrize("kind", ["single", "several"])
def test_the_last_classifier_is_scaled_by_its_calibration(kind, request, tmp_path, monkeypatch):
    run = request.getfixturevalue(kind)
    found = calibration_of(run)
    assert found.scale > 0
    assert (found.shift == 0) == (kind == "single")
    plain = tiny.copied(run, tmp_path / "plain")
    monkeypatch.setattr("capro.stages.training.calibrate", lambda *_, **__: NO_CALIBRATION)
    PLAN.do(plain, "finetune", force=True)
    before, after = plain.read(STEP3), run.read(STEP3)
    name = "heads.classifier"
    torch.testing.assert_close(after[f"{name}.weight"], found.scale * before[f"{name}.weight"])
    torch.testing.assert_close(after[f"{name}.bias"], found(before[f"{name}.bias"]))


def test_plus_caches_the_plain_view_alone_unless_more_are_asked_for(single, tmp_path):
    source = squares.write_data(tmp_path / "data")
    settings = squares.settings(source, PLUS, "net.frozen_views=null")
    run = Run.create(tmp_path / "run", settings)
    PLAN.do(run, "scan", "features")
    assert run.read(QUERY_FEATURES).shape[0] == 1
    np.testing.assert_array_equal(
        run.read(QUERY_FEATURES)[0], run.read(PLAIN_FEATURES)[manifest_of(run).split("train")]
    )
    assert run.read(KEY_FEATURES).shape[0] == 0
    assert single.read(QUERY_FEATURES).shape[0] == 3  # frozen_views=2 there


def test_what_is_kept_of_a_block_does_not_hold_its_posterior():
    """A column that is a view keeps the block's samples x classes: four gigabytes of a million samples."""
    n, classes = 6, 70
    q = np.random.default_rng(0).dirichlet(np.ones(classes + 1), n).astype(np.float32)
    block = keep({"posterior": q, "words": np.log(q), "picture": np.log(q)})
    part = block, np.arange(n), np.zeros(n, dtype=bool)
    for array in vars(clean._decide(part, classes=classes, sure=0.5, drop_above=0.5)).values():
        assert array.flags.c_contiguous
        assert len(array) == n
