"""Which settings a command leaves behind, what is done again and said, and what is refused: as a user sees it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from capro.pipeline.locks import alone_in
from capro.pipeline.run import Run
from capro.review.answers import Decision
from capro.review.log import Log
from capro.stages import run_all
from tests import squares
from tests.commands import capro

__all__ = ["capro"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("kept")
    data = squares.write_data(base / "data", train=8, test=3, noise=2)
    made = Run.create(base / "run", squares.settings(data, "method=plus"))
    run_all(made)
    return made.path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run of its own."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def kept(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((run / "run.yaml").read_text("utf-8"))["settings"]
    return found


def done_again(run: Path) -> list[str]:
    """Stages that were worked on since the last call."""
    events = run / "events.jsonl"
    rows = [json.loads(line) for line in events.read_text().splitlines()]
    events.write_text("")
    return [row["stage"] for row in rows if row["event"] == "finished"]


def test_a_scan_that_fails_leaves_settings_and_results(run: Path, capro: Any, tmp_path: Path) -> None:
    before = (run / "run.yaml").read_bytes()
    code, _, err = capro("run", "--run", run, "--set", f"data.test={tmp_path / 'nowhere'}")
    assert (code, "no such file or folder" in err) == (2, True)
    (tmp_path / "bad" / "cat").mkdir(parents=True)
    (tmp_path / "bad" / "cat" / "a.png").write_bytes(b"no image")
    code, _, err = capro("scan", tmp_path / "bad", "--run", run)
    assert code == 2, err
    assert "can be used" in err
    assert (run / "run.yaml").read_bytes() == before
    done_again(run)
    assert capro("evaluate", run)[0] == 0
    assert capro("run", "--run", run)[0] == 0
    assert done_again(run) == []  # everything is as it was


def test_evaluate_and_doctor_change_no_setting(run: Path, capro: Any) -> None:
    before = (run / "run.yaml").read_bytes()
    code, _, err = capro("evaluate", run, "--set", "data.text_column=title")
    assert code == 2
    assert "--set data.text_column: `capro evaluate` changes no setting of a run" in err
    assert f"hint: `capro run --run {run} --set data.text_column=title`" in err
    assert capro("doctor", run, "--set", "train.gamma=0.1")[0] == 0
    assert (run / "run.yaml").read_bytes() == before


def test_evaluate_reads_other_data_by_settings_of_their_own(run: Path, capro: Any, tmp_path: Path) -> None:
    before = (run / "run.yaml").read_bytes()
    shutil.copytree(Path(kept(run)["data"]["source"]) / "test", tmp_path / "other")
    table = tmp_path / "other" / "metadata.csv"
    table.write_text(table.read_text().replace("label", "what", 1))
    words = ["evaluate", run, "--on", tmp_path / "other", "--json"]
    assert capro(*words)[0] == 2
    code, out, err = capro(*words, "--set", "data.label_column=what")
    assert code == 0, err
    assert json.loads(out)["samples"] == 9
    assert (run / "run.yaml").read_bytes() == before


def test_verdicts_that_are_replaced_are_announced_and_kept(run: Path, capro: Any) -> None:
    old = (run / "clean" / "verdicts.parquet").read_bytes()
    code, out, _ = capro("run", "--run", run, "--set", "plus.ask_below=0.2", "--dry-run", "--json")
    assert code == 0
    found = {row["stage"]: (row["state"], row["why"]) for row in json.loads(out)}
    assert found["match"] == ("fresh", "")
    assert found["clean"] == ("stale", "plus.ask_below was 0.5, is 0.2")
    assert found["finetune"] == ("stale", "it reads clean")
    assert (run / "clean" / "verdicts.parquet").read_bytes() == old
    assert kept(run)["plus"]["ask_below"] == 0.5
    done_again(run)
    code, _, err = capro("run", "--run", run, "--set", "plus.ask_below=0.2")
    assert code == 0, err
    assert (
        f"clean is done again: plus.ask_below was 0.5, is 0.2; the old result is kept in {run / 'clean.1'}"
        in err
    )
    assert (run / "clean.1" / "verdicts.parquet").read_bytes() == old
    assert kept(run)["plus"]["ask_below"] == 0.2
    assert done_again(run) == ["clean", "finetune", "evaluate"]
    code, out, _ = capro("run", "--run", run, "--dry-run")
    assert "nothing is left to do" in out


def test_a_stage_does_not_use_what_other_settings_have_made(run: Path, capro: Any) -> None:
    before, model = (run / "run.yaml").read_bytes(), (run / "finetune" / "model.safetensors").read_bytes()
    code, _, err = capro("finetune", "--run", run, "--set", "pretrain.lr=0.04")
    assert code == 2
    assert "the pretrain stage is out of date: pretrain.lr was 0.1, is 0.04" in err
    assert f"hint: `capro run --run {run} --set pretrain.lr=0.04` does it again" in err
    assert (run / "run.yaml").read_bytes() == before
    assert (run / "finetune" / "model.safetensors").read_bytes() == model
    code, _, err = capro("match", "--run", run, "--set", "finetune.lr=0.04")
    assert code == 2
    assert "finetune.lr=0.04: a setting of the finetune stage, which this command does not do" in err
    assert (run / "run.yaml").read_bytes() == before


def test_what_a_setting_has_not_reached_is_not_taken_out(run: Path, capro: Any, tmp_path: Path) -> None:
    code, _, err = capro("match", "--run", run, "--set", "match.top_k=3")
    assert code == 0, err
    assert kept(run)["match"]["top_k"] == 3
    for words in (["export", run, "--out", tmp_path / "a"], ["export-model", run, "--out", tmp_path / "b"]):
        code, _, err = capro(*words)
        assert code == 2
        assert "stage is out of date: match was done again since" in err
        assert f"hint: `capro run --run {run}` does it again" in err
    assert capro("report", run)[0] == 2
    assert capro("evaluate", run)[0] == 2
    assert capro("run", "--run", run)[0] == 0
    assert capro("export", run, "--out", tmp_path / "a")[0] == 0
    assert capro("export-model", run, "--out", tmp_path / "b")[0] == 0
    assert "top_k: 3" in (tmp_path / "b" / "README.md").read_text("utf-8")


def test_what_a_person_has_decided_since_is_not_left_out_in_silence(
    run: Path, capro: Any, tmp_path: Path
) -> None:
    samples = Run.open(run).issues()
    sample = str(samples.loc[samples["corrected_label"].notna(), "id"].iloc[0])
    log = Log(run / "review" / "decisions.sqlite")
    log.decide([Decision(sample, "out")], person="me")
    log.close()
    refused = [
        ["export", run, "--out", tmp_path / "a"],
        ["export-model", run, "--out", tmp_path / "b"],
        ["report", run],
        ["clean", "--run", run],
        ["finetune", "--run", run],
    ]
    for words in refused:
        code, _, err = capro(*words)
        assert code == 2, words
        assert "the match stage is out of date: a person has decided since" in err
        assert f"hint: `capro run --run {run}` does it again" in err
    code, _, err = capro("evaluate", run)  # it measures what there is
    assert code == 0, err
    assert "warning: a person has decided since: these figures are of the results before" in err
    assert "a person has decided since" in capro("run", "--run", run, "--dry-run")[1]
    done_again(run)
    assert capro("run", "--run", run)[0] == 0
    assert done_again(run) == ["match", "posterior", "clean", "finetune", "evaluate"]
    assert "decided since" not in capro("evaluate", run)[2]
    assert capro("export", run, "--out", tmp_path / "a")[0] == 0
    assert sample in (tmp_path / "a" / "dropped.csv").read_text("utf-8")


def test_a_stage_that_fails_keeps_the_settings_of_those_before_it(
    run: Path, capro: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from capro.errors import DataError
    from capro.stages import training

    def broken(_job: object) -> None:
        raise DataError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(training, "finetune", broken)
        words = ["--set", "plus.ask_below=0.2", "--set", "finetune.lr=0.04"]
        code, _, err = capro("run", "--run", run, *words)
    assert (code, "the disk is full" in err) == (2, True)
    assert kept(run)["plus"]["ask_below"] == 0.2
    assert kept(run)["finetune"]["lr"] == 0.05
    assert Run.open(run).finished("finetune")  # the old one


def test_who_is_refused_by_the_lock_writes_nothing(run: Path, capro: Any, tmp_path: Path) -> None:
    import subprocess

    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    hold = (
        "import sys, time; from pathlib import Path; from capro.pipeline.locks import alone_in\n"
        "with alone_in(Path(sys.argv[1]), 'test'): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", hold, str(run)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        before[run / ".lock"] = (run / ".lock").stat().st_mtime_ns
        code, _, err = capro("run", "--run", run, "--set", "match.k=2")
        holder.kill()
    assert (code, "another capro is working in this run" in err) == (2, True)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != ".lock"} == {
        path: time for path, time in before.items() if path.name != ".lock"
    }
    with alone_in(run, "test"):  # free again
        pass


def test_scan_takes_the_source_of_the_run(run: Path, capro: Any) -> None:
    code, out, err = capro("scan", "--run", run)
    assert code == 0, err
    assert "scan: fresh, nothing to do" in err
    assert "33 samples" in out
