"""Commands like make, as a user sees them: settings they leave behind, what they do first, when they ask."""

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


def test_a_scan_that_fails_leaves_the_results(run: Path, capro: Any, tmp_path: Path) -> None:
    before = (run / "run.yaml").read_bytes()
    code, _, err = capro("run", "--run", run, "--set", f"data.test={tmp_path / 'nowhere'}")
    assert (code, "no such file or folder" in err) == (2, True)
    assert (run / "run.yaml").read_bytes() == before
    source = kept(run)["data"]["source"]
    (tmp_path / "bad" / "cat").mkdir(parents=True)
    (tmp_path / "bad" / "cat" / "a.png").write_bytes(b"no image")
    code, _, err = capro("scan", tmp_path / "bad", "--run", run)
    assert code == 2, err
    assert "can be used" in err
    assert kept(run)["data"]["source"] == str(tmp_path / "bad")
    done_again(run)
    assert capro("scan", source, "--run", run)[0] == 0
    assert capro("evaluate", run)[0] == 0
    assert capro("run", "--run", run)[0] == 0
    assert done_again(run) == []  # everything is as it was


def test_commands_that_only_read_change_no_setting(run: Path, capro: Any) -> None:
    before = (run / "run.yaml").read_bytes()
    code, _, err = capro("evaluate", run, "--set", "data.text_column=title")
    assert code == 2
    assert "--set data.text_column: `capro evaluate` changes no setting of a run" in err
    assert f"hint: `capro run --run {run} --set data.text_column=title`" in err
    code, _, err = capro("doctor", run, "--set", "train.gamma=0.1")
    assert (code, "this run has settings already, and doctor changes none" in err) == (2, True)
    assert capro("doctor", run)[0] == 0
    for command in ("report", "export", "export-model", "review"):
        assert capro(command, run, "--set", "train.gamma=0.1")[0] == 2
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
    why = "plus.ask_below changed 0.5 -> 0.2"
    code, out, _ = capro("run", "--run", run, "--set", "plus.ask_below=0.2", "--dry-run", "--json")
    assert code == 0
    found = {row["stage"]: (row["state"], row["why"]) for row in json.loads(out)}
    assert found["match"] == ("fresh", "")
    assert found["clean"] == ("stale", why)
    assert found["finetune"] == ("stale", "it reads clean")
    assert (run / "clean" / "verdicts.parquet").read_bytes() == old
    assert kept(run)["plus"]["ask_below"] == 0.5
    done_again(run)
    code, _, err = capro("run", "--run", run, "--set", "plus.ask_below=0.2")
    assert code == 0, err
    assert f"to do: clean ({why}; the old result is kept in {run / 'clean.1'})" in err
    assert (run / "clean.1" / "verdicts.parquet").read_bytes() == old
    assert kept(run)["plus"]["ask_below"] == 0.2
    assert done_again(run) == ["clean", "finetune", "evaluate"]
    code, out, _ = capro("run", "--run", run, "--dry-run")
    assert "nothing is left to do" in out


def test_what_is_missing_is_done_first_and_said_before(run: Path, capro: Any) -> None:
    for name in ("embed", "graph", "match"):
        (run / name / "stage.json").unlink()
    done_again(run)
    code, _, err = capro("match", "--run", run, "--set", "match.top_k=3")
    assert code == 0, err
    assert err.startswith("to do: embed, graph, match (missing)\n")
    assert done_again(run) == ["embed", "graph", "match"]
    assert kept(run)["match"]["top_k"] == 3


def test_a_stage_is_done_after_those_that_its_settings_make_out_of_date(run: Path, capro: Any) -> None:
    done_again(run)
    code, _, err = capro("finetune", "--run", run, "--set", "pretrain.lr=0.04")
    assert code == 0, err
    assert "to do: pretrain (pretrain.lr changed 0.1 -> 0.04)" in err
    assert "to do: finetune (it reads pretrain)" in err
    assert done_again(run) == ["pretrain", "finetune"]
    assert kept(run)["pretrain"]["lr"] == 0.04
    code, _, err = capro("match", "--run", run, "--set", "finetune.lr=0.04")
    assert (code, done_again(run)) == (0, [])
    assert kept(run)["finetune"]["lr"] == 0.04
    assert "finetune (finetune.lr changed 0.05 -> 0.04)" in capro("finetune", "--run", run)[2]


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("match.topk=3", "unknown setting 'match.topk'"),
        ("match.top_k=many", "match.top_k"),
        ("data.classes=nowhere.yaml", "data.classes: nowhere.yaml: no such file"),
        ("data.source=nowhere", "nowhere: no such file or folder"),
        ("net.weights=nowhere.safetensors", "nowhere.safetensors: no such file"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_before_anything_is_written(
    run: Path, capro: Any, setting: str, problem: str
) -> None:
    before = (run / "run.yaml").read_bytes()
    done_again(run)
    (run / "pretrain" / "stage.json").unlink()
    code, _, err = capro("match", "--run", run, "--set", setting)
    assert (code, problem in err) == (2, True), err
    assert "hint: " in err
    assert (run / "run.yaml").read_bytes() == before
    assert done_again(run) == []


def test_what_only_reads_does_first_what_is_out_of_date(run: Path, capro: Any, tmp_path: Path) -> None:
    code, _, err = capro("match", "--run", run, "--set", "match.top_k=3")
    assert code == 0, err
    done_again(run)
    code, _, err = capro("export", run, "--out", tmp_path / "a")
    assert code == 0, err
    assert "to do: posterior (it reads match)" in err
    assert done_again(run) == ["posterior", "clean"]
    assert "to do" not in capro("export", run, "--out", tmp_path / "b")[2]
    code, _, err = capro("export-model", run, "--out", tmp_path / "c")
    assert code == 0, err
    assert "top_k: 3" in (tmp_path / "c" / "README.md").read_text("utf-8")
    assert done_again(run)[0] == "finetune"
    assert capro("report", run)[0] == 0
    assert done_again(run) == ["evaluate", "report"]


def test_decisions_of_a_person_are_taken_in_by_what_reads_the_results(
    run: Path, capro: Any, tmp_path: Path
) -> None:
    samples = Run.open(run).issues()
    sample = str(samples.loc[samples["corrected_label"].notna(), "id"].iloc[0])
    log = Log(run / "review" / "decisions.sqlite")
    log.decide([Decision(sample, "out")], person="me")
    log.close()
    done_again(run)
    assert "decisions of a person changed" in capro("run", "--run", run, "--dry-run")[1]
    code, _, err = capro("export", run, "--out", tmp_path / "a")
    assert code == 0, err
    assert "to do: match (decisions of a person changed)" in err
    assert done_again(run) == ["match", "posterior", "clean"]
    assert sample in (tmp_path / "a" / "dropped.csv").read_text("utf-8")
    assert capro("evaluate", run)[0] == 0
    assert done_again(run) == ["finetune", "evaluate"]


def test_long_work_and_decisions_are_replaced_only_if_somebody_agrees(
    run: Path, capro: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capro.pipeline.plan.LONG", 0)
    before = (run / "run.yaml").read_bytes()
    done_again(run)
    words = ["finetune", "--run", run, "--set", "finetune.lr=0.04"]
    code, _, err = capro(*words)
    assert code == 2
    assert "and is replaced (finetune.lr changed 0.05 -> 0.04)" in err
    assert "error: cannot ask whether to replace this: stdin is not a terminal" in err
    assert "hint: add --yes if that is what you want" in err
    assert (run / "run.yaml").read_bytes() == before
    with monkeypatch.context() as patch:
        patch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        patch.setattr("typer.confirm", lambda *_args, **_options: False)
        code, _, err = capro(*words)
        assert (code, "nothing was replaced" in err) == (1, True)
        assert done_again(run) == []
        patch.setattr("typer.confirm", lambda *_args, **_options: True)
        assert capro(*words)[0] == 0
    assert done_again(run) == ["finetune"]
    assert capro("finetune", "--run", run, "--set", "finetune.lr=0.03", "--yes")[0] == 0


def test_settings_are_written_though_a_later_stage_fails(
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
    assert (kept(run)["plus"]["ask_below"], kept(run)["finetune"]["lr"]) == (0.2, 0.04)
    assert Run.open(run).finished("finetune")  # the old one, which is out of date
    done_again(run)
    assert capro("run", "--run", run)[0] == 0
    assert done_again(run) == ["finetune", "evaluate"]


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
