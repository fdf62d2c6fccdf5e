"""The stages of training on a tiny dataset: resumed after real kills, guarded, told."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from capro import config
from capro.core.kept_scores import keep
from capro.data.manifest import manifest_of
from capro.errors import ConfigError, DataError
from capro.pipeline import progress
from capro.pipeline.artefacts import CLEANED_LABELS, read_array, read_json
from capro.pipeline.ranks import ranks_of
from capro.pipeline.run import Run
from capro.pipeline.stage import Job
from capro.results import verdicts
from capro.stages import PLAN, clean, run_all
from capro.stages.evaluate import evaluate
from capro.train import loop, setup
from capro.train.judgement import Judged
from tests import squares, tiny
from tests.fakes import rewrite

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("words")]

ON_ANCHORS = "train.start=anchors"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_data(tmp_path_factory.mktemp("data"))


def prepared(tmp_path_factory, data, name, *overrides) -> tuple[Run, list[str]]:
    said: list[str] = []
    run = Run.create(tmp_path_factory.mktemp(name) / "run", tiny.settings(data, *overrides))
    tiny.prepare(run, watch=progress.Lines(said.append, stages=False, warnings=False))
    return run, said


@pytest.fixture(scope="module")
def frozen(tmp_path_factory, data):
    return prepared(tmp_path_factory, data, "frozen", "net.mode=frozen")


@pytest.fixture(scope="module")
def full(tmp_path_factory, data):
    return prepared(tmp_path_factory, data, "full")


@pytest.fixture(scope="module")
def multi(tmp_path_factory):
    data = tiny.write_data(tmp_path_factory.mktemp("multi-data"), multi=True)
    return prepared(tmp_path_factory, data, "multi", "net.mode=frozen")


def finish(run: Run) -> dict[str, bytes]:
    PLAN.do(run, "train", "clean", "finetune")
    return tiny.results(run)


# --- killed processes -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def processes():
    return tiny.processes()


def killed(processes, run: Run, stages, die: str, at: int) -> None:
    child = processes.Process(target=tiny.work, args=(str(run.path), stages, die, at))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL


STEPS = ("train", "clean", "finetune")
RATE, SAVE, RENAME = ("capro.train.loop.learning_rate", "capro.train.checkpoints.write_weights", "os.replace")


@pytest.mark.parametrize(
    ("mode", "overrides", "kills"),
    [
        ("frozen", [ON_ANCHORS], [(RATE, 3), (f"{SAVE} after", 2), (RATE, 6)]),
        ("frozen", ["train.update_every=0", "train.reference=mixup"], [(RENAME, 9), (RATE, 5)]),
        ("full", [ON_ANCHORS, "train.reference=cb+mixup"], [(RATE, 8), (SAVE, 2)]),
        (
            "multi",
            ["train.policy=mopro", "finetune.centred=true"],
            [(RATE, 4), (f"{RENAME} after", 7), (RATE, 7)],
        ),
        ("multi", [ON_ANCHORS, "train.reference=ncr"], [(RATE, 3), (RATE, 4)]),
    ],
)
def test_killed_processes_end_bit_identical(request, tmp_path, processes, mode, overrides, kills):
    base, _ = request.getfixturevalue(mode)
    whole = finish(tiny.copied(base, tmp_path / "whole", *overrides))
    assert {"train/model.safetensors", "train/history.json", "clean/labels.npy"} <= set(whole)
    run = tiny.copied(base, tmp_path / "killed", *overrides, "log.checkpoint_minutes=1e-9")
    for die, at in kills:
        killed(processes, run, STEPS, die, at)
    assert finish(run) == whole
    left = [path for stage in STEPS for path in run.folder(stage).iterdir() if path.is_dir()]
    assert left == []  # no checkpoint, no temporary folder
    assert not list(run.path.rglob("*.tmp*"))


def test_verdicts_keep_to_the_memory_budget_and_stay_the_same(frozen, tmp_path, monkeypatch):
    base, _ = frozen
    asked: list[Any] = []
    search = clean.nearest

    def spied(*args: Any, **options: Any) -> Any:
        asked.append(options["budget"])
        return search(*args, **options)

    monkeypatch.setattr(clean, "nearest", spied)
    whole = finish(tiny.copied(base, tmp_path / "whole"))
    run = tiny.copied(base, tmp_path / "run", "match.memory_gb=0.25")
    PLAN.do(run, "match")
    assert finish(run) == whole
    assert [budget.bytes for budget in asked] == [4 << 30, 1 << 28]
    assert not (run.folder("clean") / "scratch").exists()


def test_step_one_killed_ends_bit_identical(full, tmp_path, processes):
    base, _ = full
    run = tiny.copied(base, tmp_path / "run", "log.checkpoint_minutes=1e-9")
    shutil.rmtree(run.folder("pretrain"))
    killed(processes, run, ["pretrain"], RATE, 3)
    assert len(list((run.folder("pretrain") / "checkpoints").iterdir())) == 2
    killed(processes, run, ["pretrain"], SAVE, 1)
    PLAN.do(run, "pretrain")
    name = "pretrain/model.safetensors"
    assert (run.path / name).read_bytes() == (base.path / name).read_bytes()


def test_the_command_killed_from_outside_goes_on(frozen, tmp_path):
    base, _ = frozen
    more = ["train.epochs=60"]  # a second of work after the first checkpoint
    run = tiny.copied(base, tmp_path / "run", *more)
    whole = tiny.copied(base, tmp_path / "whole", *more)
    command = [sys.executable, "-m", "capro", "train", "--run", str(run.path)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    checkpoints = run.folder("train") / "checkpoints"
    while process.poll() is None and not list(checkpoints.glob("[0-9]*")):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (run.folder("train") / "stage.json").exists()
    PLAN.do(run, "train")
    PLAN.do(whole, "train")
    assert tiny.results(run) == tiny.results(whole)
    events = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events if event.get("stage") == "train"] == [
        "started", "started", "finished",
    ]  # fmt: skip


def test_a_resumed_run_does_not_repeat_the_heads_on_anchors(frozen, tmp_path, processes, monkeypatch):
    base, _ = frozen
    run = tiny.copied(base, tmp_path / "run", ON_ANCHORS, "train.anchor_epochs=5")
    # 5 epochs of 2 batches on 12 anchors, then an epoch of step 2
    killed(processes, run, ["train"], RATE, 10 + 3 + 1)
    rates = []
    real = loop.Training.fit

    def fit(self):
        history = real(self)
        rates.append((self.name, len(history)))
        return history

    steps = []
    real_rate = loop.learning_rate
    monkeypatch.setattr(loop, "learning_rate", lambda *a, **k: steps.append(a) or real_rate(*a, **k))
    monkeypatch.setattr(loop.Training, "fit", fit)
    PLAN.do(run, "train")
    assert rates == [("heads on anchors", 5), ("step 2: prototypes", 3)]
    assert len(steps) == 6  # two epochs of step 2 were left


# --- what the stages do ---------------------------------------------------------------------------


def test_frozen_mode_has_the_same_stages_and_losses(frozen, tmp_path):
    run = tiny.copied(frozen[0], tmp_path / "run")
    finish(run)
    history = read_json(run.folder("train") / "history.json")
    assert set(history[0]) == {
        "epoch", "lr", "loss", "cls", "prj", "pro", "ins", "bts", "anchor", "keep", "relabel",
        "drop",
    }  # fmt: skip
    assert [row["epoch"] for row in history] == [0, 1, 2]
    model = load_file(run.folder("train") / "model.safetensors")
    assert torch.allclose(model["prototypes"].norm(dim=1), torch.ones(3), atol=1e-5)
    before, after = model, load_file(run.folder("finetune") / "model.safetensors")
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"heads.classifier.weight", "heads.classifier.bias"}


def test_step_two_starts_where_it_is_told(frozen, tmp_path, monkeypatch):
    """web: heads of step 1; anchors: others, trained on anchors. The key branch follows both."""
    begun, real = {}, loop.Training.fit
    for start in ("web", "anchors"):
        run = tiny.copied(frozen[0], tmp_path / start, f"train.start={start}", "train.epochs=0")

        def fit(self, start=start):
            if self.name.startswith("step 2"):
                begun[start] = {k: v.clone() for k, v in self.objective.net.state_dict().items()}
            return real(self)

        with monkeypatch.context() as patch:
            patch.setattr(loop.Training, "fit", fit)
            PLAN.do(run, "train")
    step1 = load_file(frozen[0].folder("pretrain") / "model.safetensors")
    for start, state in begun.items():
        same = all(torch.equal(state[name], value) for name, value in step1.items())
        assert same == (start == "web")
        for name, value in state.items():
            if name.startswith("key_projector"):
                assert torch.equal(value, state[name.replace("key_projector", "heads.projector")])


def test_no_epochs_at_all_still_give_every_artefact(frozen, tmp_path):
    none = ["pretrain.epochs=0", "train.epochs=0", "finetune.epochs=0"]
    run = tiny.copied(frozen[0], tmp_path / "run", *none)
    found = run_all(run)
    assert set(found) == {"vanilla", "capro"}
    assert read_json(run.folder("train") / "history.json") == []


def test_everyone_dropped_leaves_step_three_nothing(frozen, tmp_path, monkeypatch):
    run = tiny.copied(frozen[0], tmp_path / "run")
    PLAN.do(run, "train")
    PLAN.do(run, "clean")
    rewrite(run, CLEANED_LABELS, np.full_like(run.read(CLEANED_LABELS), -1))
    PLAN.do(run, "finetune")
    assert run.finished("finetune")["result"] == {"epochs": 0, "samples": 0}


def test_verdicts_carry_their_evidence(frozen, tmp_path):
    run = tiny.copied(frozen[0], tmp_path / "run")
    finish(run)
    frame = pd.read_parquet(run.folder("clean") / "verdicts.parquet")
    assert len(frame) == 27
    assert frame["id"].is_unique
    anchors = set(pd.read_parquet(run.folder("match") / "anchors.parquet")["id"])
    assert set(frame.loc[frame["decision"] == "anchor", "id"]) == anchors
    out = frame["corrected_label"].isna()
    assert (out == (frame["decision"] == "drop")).all()
    kept = frame["decision"].isin(["anchor", "keep"])
    assert (frame.loc[kept, "corrected_label"] == frame.loc[kept, "given_label"]).all()
    counts = run.finished("clean")["result"]
    assert sum(counts.values()) == 27


def test_multi_label_runs_to_the_end(multi, tmp_path):
    run = tiny.copied(multi[0], tmp_path / "run", "train.gamma=0.7")
    found = run_all(run)
    assert set(found) == {"vanilla", "capro"}
    assert all(math.isfinite(value) for row in found.values() for value in row.values())
    labels = read_array(run.folder("clean") / "labels.npy")
    assert labels.shape == (27, 3)
    frame = pd.read_parquet(run.folder("clean") / "verdicts.parquet")
    kept = frame[frame["decision"] == "keep"]
    assert kept["given"].all()
    assert not frame.loc[frame["decision"] == "remove", "corrected"].any()
    assert not frame.loc[frame["decision"] == "add", "given"].any()


def test_a_low_threshold_for_several_labels_is_warned_of(multi, tmp_path):
    for gamma, warned in (("0.6", True), ("0.9", False)):
        run = tiny.copied(multi[0], tmp_path / gamma, f"train.gamma={gamma}")
        told: list[str] = []
        PLAN.do(run, "classes", watch=progress.Lines(told.append))
        assert any(f"train.gamma {gamma}" in line for line in told) == warned


@pytest.mark.parametrize("reference", ["none", "bootstrap", "smoothing", "scc", "cb+mixup"])
def test_every_reference_trains_several_labels(multi, tmp_path, reference):
    run = tiny.copied(multi[0], tmp_path / "run", f"train.reference={reference}", "train.epochs=1")
    PLAN.do(run, "train")
    (row,) = read_json(run.folder("train") / "history.json")
    assert all(math.isfinite(value) for value in row.values())


# --- guard rails ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("names", "per_class"), [(["red"], 1), (["red", "green"], 2)])
def test_few_samples_and_few_classes(tmp_path, names, per_class):
    """Fewer than K of a class, one, none; a dictionary larger than the set; a batch as well."""
    data = tiny.write_data(tmp_path / "data", per_class=per_class, names=names)
    with (data / "classes.yaml").open("a") as file:
        file.write("- {name: nobody, definition: a class without any sample}\n")
    big = ["train.queue=8192", "train.batch_size=256", "pretrain.batch_size=256", "match.top_k=50"]
    run = Run.create(tmp_path / "run", tiny.settings(data, *big, ON_ANCHORS))
    warned: list[str] = []
    found = run_all(run, watch=progress.Lines(warned.append))
    assert all(math.isfinite(value) for row in found.values() for value in row.values())
    assert any("nobody" in line for line in warned)
    result = run.finished("match")["result"]
    assert result["classes_without_anchor"] == ["nobody"]
    assert result["classes_below_k"] == names
    prototypes = load_file(run.folder("train") / "model.safetensors")["prototypes"]
    assert (prototypes[-1] == 0).all()  # absent, so that nobody is relabelled to it by r


def test_labels_outside_the_class_list_are_refused(data, tmp_path):
    (tmp_path / "few.yaml").write_text("- {name: red, definition: a colour}\n")
    run = Run.create(tmp_path / "run", tiny.settings(data, f"data.classes={tmp_path / 'few.yaml'}"))
    PLAN.do(run, "scan")
    with pytest.raises(DataError, match="2 labels are not among the classes, for example 'blue'"):
        PLAN.do(run, "classes")


def test_step_three_obeys_its_settings(frozen, multi, tmp_path):
    for name, base in (("one", frozen[0]), ("several", multi[0])):
        values = "balance=null", "balance=0", "balance=1", "centred=true"
        cleaned = tiny.copied(base, tmp_path / name / "cleaned")
        PLAN.do(cleaned, "train")
        PLAN.do(cleaned, "clean")
        labels = np.array(cleaned.read(CLEANED_LABELS))
        labels[::2] = labels[0]  # classes of different size, so that there is something to balance
        rewrite(cleaned, CLEANED_LABELS, labels)
        runs = [tiny.copied(cleaned, tmp_path / name / value, f"finetune.{value}") for value in values]
        for run in runs:
            PLAN.do(run, "finetune")
        unset, *found = [(run.folder("finetune") / "model.safetensors").read_bytes() for run in runs]
        assert len(set(found)) == 3
        assert (unset == found[0]) == (name == "one")  # several labels have pos_weight in all steps
        assert {run.stamp("train") for run in runs} == {cleaned.stamp("train")}  # steps before it stay


def test_unlabelled_samples_have_no_score_of_a_label(frozen, tmp_path):
    run = tiny.copied(frozen[0], tmp_path / "run")
    PLAN.do(run, "train")
    training_set = setup.training_set(run)
    training_set.labels[3] = -1
    scores = np.random.default_rng(0).random((27, 3), dtype=np.float32)

    kept = keep(dict.fromkeys(("fused", "classifier", "similarity", "text"), scores))
    judged = Judged(np.full(27, 1), np.full(27, 2), kept)
    anchored = setup.anchored_of(run, training_set)
    job = Job(run, PLAN["clean"], "key", run.folder("clean"))
    rows_of = clean._verdict_rows(job, training_set, anchored, judged, None)
    frame = verdicts.single_label(rows_of(slice(0, 27)))
    assert frame["given_label"].isna().tolist() == [i == 3 for i in range(27)]
    assert frame["label_score"][3] == 0
    for column in ("prototype_similarity", "classifier_probability", "text_probability"):
        assert frame[column].isna().tolist() == [i == 3 for i in range(27)]


# --- what a run tells -----------------------------------------------------------------------------


def test_costs_of_encoders_are_told_and_kept(frozen, full):
    for (run, said), place in ((frozen, "features"), (full, "pretrain")):
        encoder = run.finished(place)["result"]["encoder"]
        assert encoder["name"] == "small"
        assert encoder["parameters"] == pytest.approx(1.2e6, rel=0.05)
        assert encoder["gflops"] > 0
        assert said[0] == f"encoder small: 1.2 M parameters, {encoder['gflops']:.2f} GFLOPs at 16 px"
        text = run.finished("embed")["result"]["text_encoder"]
        assert text == {"name": "words", "parameters": 1000, "gflops": 0.256, "at": "256 tokens"}
        assert said[-1].startswith("text encoder words: ")


def test_cost_of_a_backbone_for_the_graph_alone(frozen, tmp_path):
    run = tiny.copied(frozen[0], tmp_path / "run", "embed.visual=resnet18")
    said: list[str] = []
    PLAN.do(run, "embed", watch=progress.Lines(said.append, stages=False))
    assert run.finished("embed")["result"]["encoder"]["name"] == "resnet18"
    assert said[-1].startswith("encoder resnet18: 11.2 M parameters")


def test_fp16_without_a_gpu_is_refused(data):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match="fp16 needs a GPU"):
        ranks_of(tiny.settings(data, "net.precision=fp16"))


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_writes_into_the_run(frozen, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tiny.copied(frozen[0], tmp_path / "run", "log.tracker=tensorboard")
    run_all(run)
    for stage in ("train", "finetune"):  # step 1 was fresh
        folder = run.folder("log") / stage
        events = EventAccumulator(str(folder)).Reload()
        assert f"{stage}/loss" in events.Tags()["scalars"]
        history = read_json(run.folder(stage) / "history.json")
        told = [event.value for event in events.Scalars(f"{stage}/loss")]
        assert told == pytest.approx([row["loss"] for row in history])
    assert not (run.folder("log") / "pretrain").exists()


@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_a_missing_tracker_is_an_error_before_any_work(data, tmp_path, tracker, monkeypatch):
    import accelerate.tracking

    monkeypatch.setattr(accelerate.tracking, "get_available_trackers", list)
    run = Run.create(tmp_path / "run", tiny.settings(data, f"log.tracker={tracker}"))
    with pytest.raises(ConfigError, match=f"'{tracker}' is not installed") as caught:
        run_all(run)
    assert f"pip install '{tracker}'" in caught.value.hint
    assert run.finished("scan") is None
    with pytest.raises(ConfigError, match="should be 'none'"):
        config.update(run.settings, ["log.tracker=paper"])


def test_launch_is_read_from_the_environment(monkeypatch, tmp_path, data):
    from capro.pipeline.ranks import is_main_process, process_count, process_rank

    assert (process_count(), process_rank(), is_main_process()) == (1, 0, True)
    monkeypatch.setenv("RANK", "1")  # a cluster's own variable, no launcher's
    assert is_main_process()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert (process_count(), process_rank(), is_main_process()) == (2, 1, False)
    run = Run.create(tmp_path / "run", tiny.settings(data))
    run.with_settings(config.update(run.settings, ["seed=5"]))
    run.event("hello")
    assert not (tmp_path / "run").exists()
    assert os.environ["RANK"] == "1"


def test_several_labels_with_one_each_relate_to_one_label(tmp_path):
    """docs/concepts.md, Single-label data as multi-label: the same anchors and answers, a more careful rule."""
    data = squares.write_data(tmp_path / "data")
    truth = data / "train_truth.csv"
    longer = ["pretrain.epochs=12", "train.epochs=6", "finetune.epochs=4"]
    runs = []
    for multi in (False, True):
        run = Run.create(tmp_path / str(multi), squares.settings(data, *longer, multi=multi))
        run_all(run)
        runs.append(run)
    assert [manifest_of(run).task for run in runs] == ["single", "multi"]
    anchors = [
        pd.read_parquet(run.folder("match") / "anchors.parquet")[["row", "class_index"]] for run in runs
    ]
    pd.testing.assert_frame_equal(*anchors)  # step 1's labels do not change frozen features
    scores = [np.load(run.folder("evaluate") / "capro.npy") for run in runs]
    np.testing.assert_allclose(scores[0].sum(axis=1), 1, atol=1e-5)  # one answer
    assert np.ptp(scores[1].sum(axis=1)) > 1e-3  # three answers, each of its own
    assert (scores[0].argmax(axis=1) == scores[1].argmax(axis=1)).mean() > 0.9
    before, after = [np.load(run.folder("clean") / "labels.npy") for run in runs]
    found = [evaluate(run, truth=truth)["truth"] for run in runs]
    for told in found:
        assert told["web_label_accuracy"] < told["cleaned_label_accuracy"]
        assert told["noise_detection"]["precision"] > 0.9
    # where one label is replaced, several add the right one, and remove the wrong one only if sure
    replaced = np.flatnonzero(before != setup.training_set(runs[0]).labels)
    assert len(replaced)
    assert after[replaced, before[replaced]].mean() > 0.9
    assert (after > 0).sum(axis=1).max() > 1
