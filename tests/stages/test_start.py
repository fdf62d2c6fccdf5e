"""How a run begins: the preset that was named, that fits the data, or the run's own settings."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from capro import config
from capro.api import CAPro
from capro.cli import main
from capro.pipeline.progress import Lines
from capro.pipeline.run import Run
from capro.stages import run_all
from capro.stages import start as beginning
from capro.stages.start import slow, start
from tests import squares
from tests.thread_ranks import ThreadRank, thread_ranks


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["capro", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


def test_ranks_agree_on_whether_a_run_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main rank writes run.yaml no earlier than all have looked for it."""
    ranks = thread_ranks(2)
    own: dict[int, ThreadRank] = {}
    monkeypatch.setattr("capro.stages.start.process_count", lambda: 2)
    monkeypatch.setattr("capro.stages.start.ranks_of", lambda _: own[threading.get_ident()])

    def begin(rank: ThreadRank) -> bool:
        own[threading.get_ident()] = rank
        if not rank.main:
            time.sleep(0.2)
        run, choose = start(tmp_path / "run", lambda _, preset: config.load(preset_name=preset), None)
        if rank.main:
            run.save_settings()
        return choose is not None

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(begin, ranks)] == [True, True]


@pytest.mark.parametrize(("multi", "name"), [(False, "photo"), (True, "photo-multi")])
def test_a_scan_without_a_preset_takes_the_one_for_its_labels(
    multi: bool, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    data = squares.write_data(tmp_path / "data", train=4, test=2, multi=multi)
    words = ["--label-separator", "|"] if multi else []
    assert call(monkeypatch, "scan", data, "--run", tmp_path / "run", "--set", "match.k=3", *words) == 0
    err = capsys.readouterr().err
    labels = "several labels" if multi else "one label"
    assert f"no preset was named: {name} is used, for 18 images with {labels} and" in err
    assert "--preset paper" in err
    found = Run.open(tmp_path / "run").settings
    wanted = config.load(preset_name=name, overrides=["match.k=3"])
    assert config.differences(found, wanted) == [
        "data.source", *(["data.label_separator"] if multi else [])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "gpu", "multi", "name"),
    [
        (10, False, False, "photo"),
        (10, False, True, "photo-multi"),
        (1001, False, False, "small"),
        (1001, False, True, "small-multi"),
        (1001, True, False, "photo"),
    ],
)
def test_the_pictures_choose_the_preset(
    count: int, gpu: bool, multi: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = SimpleNamespace(task="multi" if multi else "single", samples=range(count))
    monkeypatch.setattr(beginning, "manifest_of", lambda _: manifest)
    monkeypatch.setattr(beginning, "MANY", 1000)
    monkeypatch.setattr(beginning, "_has_gpu", lambda: gpu)
    found, reason = beginning.chosen_preset(Run(Path("none"), config.load()))
    assert found == name
    assert ("without a GPU" in reason) == name.startswith("small")
    assert f"{count:,} images with" in reason


def test_the_papers_settings_have_a_name_and_an_existing_run_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    data, run = squares.write_data(tmp_path / "data", train=4, test=2), tmp_path / "run"
    assert call(monkeypatch, "scan", data, "--run", run, "--preset", "paper") == 0
    settings = Run.open(run).settings
    assert (settings.method, settings.net.backbone, settings.pretrain.epochs) == ("paper", "resnet50", 120)
    assert call(monkeypatch, "scan", data, "--run", run) == 0
    assert Run.open(run).settings == settings
    assert "preset" not in capsys.readouterr().err
    assert call(monkeypatch, "run", "--data", data, "--run", run, "--dry-run") == 0
    assert "pretrain" in capsys.readouterr().out
    assert call(monkeypatch, "scan", data, "--run", run, "--preset", "small", "--set", "seed=3") == 0
    changed = Run.open(run).settings
    wanted = config.load(preset_name="small", overrides=[f"data.source={data}", "seed=3"])
    assert changed == wanted  # nothing of the other preset is left


def test_a_dry_run_of_a_new_run_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    data = squares.write_data(tmp_path / "data", train=4, test=2)
    assert call(monkeypatch, "run", "--data", data, "--run", tmp_path / "run", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "features" in out  # of the preset that will be chosen
    assert "to do" in out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "warned"), [([], True), (["net.mode=frozen"], False), (["net.backbone=small"], False)]
)
def test_training_a_network_on_a_cpu_is_warned_of(overrides: list[str], warned: bool, monkeypatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    text = slow(config.load(overrides=overrides))
    assert bool(text) == warned
    assert not warned or "resnet50 is to be trained for 180 epochs" in text
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert slow(config.load(overrides=overrides)) == ""


def test_the_preset_is_chosen_within_a_run_of_all_stages(tmp_path: Path) -> None:
    data = squares.write_data(tmp_path / "data", train=6, test=2, multi=True)
    fast = squares.settings(data, multi=True)

    def resolve(base: Any, preset: str | None) -> config.Settings:
        named.append(preset)
        gamma = config.load(preset_name=preset).train.gamma
        return config.update(fast, [f"train.gamma={gamma}"])

    named: list[str | None] = []
    said: list[str] = []
    run, choose = start(tmp_path / "run", resolve, None)
    run_all(run, watch=Lines(said.append), choose=choose)
    assert named == ["photo", "photo-multi"]
    assert Run.open(run.path).settings.train.gamma == 0.9
    assert sum(line.endswith("] scan") for line in said) == 1


def test_fit_takes_the_preset_for_its_labels_and_keeps_that_of_a_run(tmp_path: Path, monkeypatch) -> None:
    data = squares.write_data(tmp_path / "data", train=4, test=2, multi=True)
    model = CAPro(run=tmp_path / "run", data__label_separator="|", seed=7)

    def stop(run: Run, **options: Any) -> None:
        from capro.stages import PLAN

        PLAN.do(run, "scan")
        if options["choose"]:
            options["choose"](run, options["watch"])
        raise KeyboardInterrupt

    monkeypatch.setattr("capro.api.run_all", stop)
    with pytest.raises(KeyboardInterrupt):
        model.fit(data)
    settings = Run.open(tmp_path / "run").settings
    assert settings.finetune == config.load(preset_name="small-multi").finetune
    with pytest.raises(KeyboardInterrupt):
        CAPro(run=tmp_path / "run").fit(data)
    assert Run.open(tmp_path / "run").settings == settings  # seed and all
