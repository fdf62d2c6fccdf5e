"""The model card."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from datasets import load_dataset
from huggingface_hub import DatasetCard, DatasetCardData, ModelCard, ModelCardData

from capro import config as settings
from capro.errors import ConfigError
from capro.export.card import _plain, data_card, model_card, size_category
from capro.export.dataset import export_data
from capro.pipeline.run import Run


def test_card_has_data_settings_and_results(run: Run, model: Path) -> None:
    card = (model / "README.md").read_text()
    assert card.startswith("---\n")
    for text in ("## Data", "verdict: relabel", "## Measured", "| vanilla |", "| capro |", "top1"):
        assert text in card
    assert "gamma: 0.6" in card
    assert run.identity("scan") in card
    top1 = run.result("evaluate")["capro"]["top1"]
    assert f"{100 * top1:.1f}" in card
    assert _plain("<script>[x](javascript:1)`\n") == "script x javascript:1"


def test_the_card_holds_no_absolute_path_and_no_hidden_character(run: Run, model: Path) -> None:
    for name in ("README.md", "config.json"):
        text = (model / name).read_text("utf-8")
        assert str(run.path.parent) not in text, name
        assert not re.search(r"(?<![\w.])/(?:tmp|home|root|Users)/", text), name
    assert "source: data\n" in (model / "README.md").read_text("utf-8")
    hidden = "".join(map(chr, [0, 7, 27, 0x7F, 0x85, 0x9B, 0x61C, *range(0x200E, 0x2010), *range(0x2028, 0x202F),
                               *range(0x2066, 0x206A), 0xFEFF, 0xFFF9, 0xE0041]))  # fmt: skip
    assert _plain(f"a{hidden}b") in {"ab", "a b"}
    assert (
        _plain("نیم\u200cفاصله 👩\u200d💻") == "نیم\u200cفاصله 👩\u200d💻"
    )  # joiners are part of words and pictures


def test_class_names_of_the_web_stay_inert_in_the_card(run: Run, model: Path) -> None:
    names = ["\u202egnp.exe", "a\u2066b", "x\x1b[2Jy", "line\u2028break", "```\n# no heading", "<img src=x>"]
    config = json.loads((model / "config.json").read_text())
    made = model_card(run, config | {"id2label": dict(enumerate(names))})
    line = next(line for line in made.splitlines() if "6 classes" in line)
    assert "gnp.exe, ab, x 2Jy, line break, # no heading, img src=x" in line
    assert not set(made) & set("\u202e\u2066\u2028\x1b")


# --- the metadata of model hubs ---------------------------------------------------------------------


def test_the_hub_reads_the_metadata_of_a_model(run: Run, model: Path) -> None:
    data = ModelCard.load(model / "README.md").data
    assert isinstance(data, ModelCardData)
    assert (data.library_name, data.pipeline_tag) == ("capro", "image-classification")
    assert "noisy-labels" in (data.tags or [])
    assert data.license is None  # nobody gave one
    assert data.datasets is None
    assert data.metrics == ["accuracy"]
    figures = run.result("evaluate")["capro"]
    assert data.eval_results is not None
    assert {each.metric_name: each.metric_value for each in data.eval_results} == pytest.approx(
        figures, abs=1e-6
    )
    first = data.eval_results[0]
    assert (first.task_type, first.dataset_name, first.dataset_split) == (
        "image-classification",
        "data",
        "test",
    )
    ModelCard((model / "README.md").read_text("utf-8"), ignore_metadata_errors=False)


def test_a_card_names_the_licence_that_was_given_and_data_of_the_hub(run: Run, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    on_hub = run.with_settings(settings.update(run.settings, ["data.source=hub:ann/crawl@small"]))
    data = ModelCard(model_card(on_hub, config, license="cc-by-4.0")).data
    assert (data.license, data.datasets) == ("cc-by-4.0", ["ann/crawl"])
    assert data.eval_results[0].dataset_type == "ann/crawl"


@pytest.mark.parametrize(
    ("chosen", "base"),
    [
        (["net.backbone=facebook/dinov2-small"], "facebook/dinov2-small"),
        (["net.backbone=resnet50", "net.weights=timm/resnet50.a1_in1k"], "timm/resnet50.a1_in1k"),
        (["net.backbone=facebook/dinov2-small", "net.weights=mine/own.safetensors"], None),  # a file
        (["net.backbone=models/dino"], None),  # a folder of this machine
        (["net.backbone=models/gone"], None),  # one that was there
        (["net.backbone=small"], None),
    ],
)
def test_a_card_names_the_model_of_the_hub_that_training_began_with(
    chosen: list[str],
    base: str | None,
    run: Run,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "models" / "dino").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    data = ModelCard(model_card(run.with_settings(settings.update(run.settings, chosen)), config)).data
    assert data.base_model == base


def test_without_a_test_set_a_card_has_no_figures(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((model / "config.json").read_text())
    monkeypatch.setattr(Run, "result", lambda *_: {})
    data = ModelCard(model_card(run, config)).data
    assert data.eval_results is None
    assert data.metrics is None


@pytest.mark.parametrize("name", ["", "MIT", "a b", "x: y", "x\ny", "l" * 50])
def test_a_licence_that_is_no_name_is_refused(name: str, run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--license") as caught:
        export_data(run, tmp_path / "d", to="hf", license=name)
    assert "cc-by-4.0" in caught.value.hint
    assert not (tmp_path / "d").exists()


def test_a_format_without_a_card_takes_no_licence(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--to csv has no card"):
        export_data(run, tmp_path / "d", to="csv", license="mit")


def test_the_hub_reads_the_metadata_of_a_data_set(run: Run, tmp_path: Path) -> None:
    note = export_data(run, tmp_path / "d", to="hf", license="cc-by-4.0")
    card = DatasetCard.load(tmp_path / "d" / "README.md")
    data = card.data
    assert isinstance(data, DatasetCardData)
    assert data.license == "cc-by-4.0"
    assert data.task_categories == ["image-classification"]
    assert data.size_categories == ["n<1K"]
    assert f"| {next(iter(note['decisions']))} |" in card.text
    read = load_dataset(str(tmp_path / "d"), cache_dir=str(tmp_path / "cache"))  # by its configs
    assert {name: len(rows) for name, rows in read.items()} == {"train": note["samples"]}


def test_names_of_the_web_stay_inert_in_the_card_of_a_data_set() -> None:
    names = ["---\nlicense: mit\n---", "# no heading", "<img src=x>", "\u202egnp.exe", "a: [b"]
    note = {
        "samples": 5_000,
        "task": "multi",
        "classes": names,
        "decisions": {"keep": 5_000},
        "capro": "1",
        "data": "f",
    }
    made = data_card(note)
    data = DatasetCard(made).data
    assert (data.license, data.size_categories) == (None, ["1K<n<10K"])
    assert made.count("\n---\n") == 1
    assert not re.search(r"^# no", made, re.MULTILINE)
    assert "\u202e" not in made
    assert "`labels` is the corrected" in made


def test_large_data_sets_have_a_size_too() -> None:
    assert [size_category(10**power) for power in (7, 8, 9, 10, 11, 12)] == [
        "10M<n<100M",
        "100M<n<1B",
        "1B<n<10B",
        "10B<n<100B",
        "100B<n<1T",
        "n>1T",
    ]
