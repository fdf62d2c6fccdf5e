from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from capro import config
from capro.config import Section, Settings
from capro.errors import ConfigError

# The paper's table of hyper-parameters: (setting, WebVision1k, Google500, NUS-WIDE).
PAPER = [
    ("pretrain.momentum", 0.9, 0.9, 0.9),
    ("pretrain.weight_decay", 1e-4, 1e-4, 1e-4),
    ("pretrain.batch_size", 256, 256, 256),
    ("pretrain.warmup_epochs", 5, 10, 10),
    ("pretrain.lr", 0.1, 0.1, 2e-3),
    ("pretrain.epochs", 120, 120, 100),
    ("train.warmup_epochs", 5, 10, 10),
    ("train.lr", 0.1, 0.1, 2e-3),
    ("train.frozen_epochs", 5, 10, 10),
    ("train.epochs", 60, 120, 100),
    ("finetune.warmup_epochs", 0, 0, 0),
    ("finetune.lr", 1e-4, 1e-4, 2e-5),
    ("finetune.epochs", 15, 20, 20),
    ("net.backbone", "resnet50", "resnet50", "resnet50"),
    ("embed.text_encoder", "minilm", "minilm", "minilm"),
    ("train.lambda_prj", 1, 1, 1),
    ("train.lambda_pro", 1, 1, 1),
    ("train.lambda_ins", 1, 1, 1),
    ("train.lambda_bts", 0.1, 0.1, 0.1),
    ("train.prototype_momentum", 0.999, 0.999, 0.999),
    ("net.embedding_dim", 128, 128, 128),
    ("net.tau", 0.1, 0.1, 0.1),
    ("train.alpha", 0.5, 0.5, 0.5),
    ("match.top_k", 50, 50, 50),
    ("train.queue", 8192, 8192, 2048),
    ("train.gamma", 0.6, 0.6, 0.9),
    ("match.k", 5, 5, 10),
]


@pytest.mark.parametrize("place", ["value", "name"])
def test_a_value_of_a_megabyte_is_not_quoted_whole(place: str) -> None:
    long = "x" * 1_000_000
    with pytest.raises(ConfigError) as error:
        config.load(overrides=[f"train.epochs={long}" if place == "value" else f"train.{long}=1"])
    assert len(str(error.value)) + len(error.value.hint) < 10_000
    assert "train." in str(error.value)


@pytest.mark.parametrize(("name", "webvision", "google", "nuswide"), PAPER)
def test_presets_are_the_papers_table(name: str, webvision: float, google: float, nuswide: float) -> None:
    stage, key = name.split(".")
    for preset, value in (("webvision1k", webvision), ("google500", google), ("nuswide", nuswide)):
        assert config.preset(preset)[stage][key] == value, preset
        assert getattr(getattr(config.load(preset_name=preset), stage), key) == value


PUBLISHED = ["webvision1k", "google500", "nuswide"]

# What the paper leaves out and the released scripts have.
SCRIPTS = [
    ("train.correct_after", 10, 20, 40),
    ("train.key_momentum", 0.999, 0.999, 0.999),
    ("net.weights", None, None, "timm/resnet50.tv_in1k"),
    ("views.grey", 0.2, 0.2, 0.2),
    ("views.crop_scale", 0.8, 0.8, 0.8),
    ("views.key_crop_scale", 0.2, 0.2, 0.8),
]


@pytest.mark.parametrize(("name", "webvision", "google", "nuswide"), SCRIPTS)
def test_what_the_paper_leaves_out_is_the_scripts(
    name: str, webvision: object, google: object, nuswide: object
) -> None:
    for preset, value in (("webvision1k", webvision), ("google500", google), ("nuswide", nuswide)):
        assert config.value_of(config.load(preset_name=preset), name) == value, preset


def preset_lines(name: str) -> list[str]:
    """The lines of a preset file that hold a value."""
    return [line for line in preset_text(name) if re.match(r" *\w+: *[^# ]", line) and "base:" not in line]


def preset_text(name: str) -> list[str]:
    """The lines of a preset file."""
    return (Path(config.__file__).parent / "presets" / f"{name}.yaml").read_text().splitlines()


def origins(name: str) -> dict[str, str]:
    """By setting, what a published preset says about where its value is from."""
    found, section = {}, ""
    for line in preset_text(name):
        if begin := re.match(r"(\w+): *(#|$)", line):
            section = begin[1] + "."
        elif value := re.match(r"( *)(\w+): .*? # (\w+):", line):
            found[section * bool(value[1]) + value[2]] = value[3]
    return found


@pytest.mark.parametrize(
    "name", [name for name in config.preset_names() if name not in (*PUBLISHED, "paper")]
)
def test_every_other_preset_says_whose_its_values_are(name: str) -> None:
    assert any(line.startswith("# Values are ours") for line in preset_text(name))


@pytest.mark.parametrize("name", config.preset_names())
def test_every_preset_value_has_a_comment_and_loads(name: str) -> None:
    assert [line for line in preset_lines(name) if "#" not in line] == []
    assert isinstance(config.load(preset_name=name), Settings)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_value_of_a_published_preset_has_its_origin(name: str) -> None:
    lines = preset_lines(name)
    assert [line for line in lines if not re.search(r" # (paper|scripts|ours): [\w\"]", line)] == []
    values = config.preset(name)
    assert len(lines) == sum(len(part) if isinstance(part, dict) else 1 for part in values.values())
    # a value that the paper's table has is said to be the paper's, one of the scripts' the scripts'
    origin = origins(name)
    assert len(origin) == len(lines)
    assert {setting for setting, *_ in PAPER if origin[setting] != "paper"} == set()
    assert {key for key, word in origin.items() if word == "scripts"} == {setting for setting, *_ in SCRIPTS}


def test_a_published_preset_names_every_setting_of_the_method() -> None:
    given = config.preset("webvision1k")
    left_out = {
        stage: set(config.sections()[stage].model_fields) - set(given[stage])
        for stage in ("pretrain", "match", "train")
    }
    assert left_out == {  # how a search is done, and what only start: anchors needs
        "pretrain": set(),
        "match": {"exact_below", "memory_gb", "index", "recall"},
        "train": {"anchor_epochs"},
    }


def test_without_a_preset_every_setting_is_the_papers() -> None:
    assert config.differences(config.load(), config.load(preset_name="paper")) == []


@pytest.mark.parametrize("name", [None, *config.preset_names()])
def test_shown_settings_load_again(name: str | None, tmp_path: Path) -> None:
    settings = config.load(preset_name=name)
    (tmp_path / "shown.yaml").write_text(config.show(settings, preset_name=name))
    assert config.load(tmp_path / "shown.yaml") == settings


def test_later_wins(tmp_path: Path) -> None:
    file = tmp_path / "data.yaml"
    file.write_text("preset: nuswide\ntrain: {gamma: 0.8, lr: 1e-3}\n")
    settings = config.load(file, overrides=["train.lr=0.5", "seed=7"])
    assert (settings.train.gamma, settings.train.lr, settings.seed) == (0.8, 0.5, 7)
    assert settings.train.queue == 2048  # the preset's
    assert config.load(file, preset_name="webvision1k").train.queue == 8192


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("train.gama=0.4", "unknown setting 'train.gama'", "did you mean 'train.gamma'?"),
        ("trian.gamma=0.4", "unknown setting 'trian'", "did you mean 'train'?"),
        ("gamma=0.4", "unknown setting 'gamma'", "did you mean 'train.gamma'?"),
        ("train.gamma=2", "train.gamma: input should be less than or equal to 1, got 2", "capro config"),
        ("train.gamma=high", "train.gamma: input should be a valid number", "capro config"),
        ("train.lr=nan", "train.lr", "capro config"),
        ("match.enhancer=magic", "'none', 'knn' or 'reciprocal', got 'magic'", "capro config"),
        ("train=3", "train: input should be", "capro config"),
        ("train.gamma", "not of the form name=value", "--set train.gamma=0.4"),
        ("=3", "not of the form name=value", "--set"),
    ],
)
def test_bad_overrides_are_refused(text: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(overrides=[text])
    assert message in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\ntrain: [", "bad.yaml:2"),
        (b"- a\n- b\n", "holds a list, not settings"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"preset: nusvide\n", "no preset 'nusvide'"),
        (b"preset: [demo]\n", r"preset: \['demo'\] is not a name"),
        (b"preset: 5\n", "preset: 5 is not a name"),
        (b"preset: {a: b}\n", "preset: {'a': 'b'} is not a name"),
        (b"seed: 1\ntrain:\n  epochs: 2024-02-31\n", "bad.yaml:3: '2024-02-31' is not a valid timestamp"),
        (b"a: " + b"[" * 3000, "bad.yaml:1: nested more than 40 levels"),
        (b"a: &a [1]\nb: [*a, *a]\n", r"bad.yaml:2: the alias \*a is not accepted"),
        (b"seed: " + b"x" * 10_000, r"got 'x{119}\.\.\.$"),
        (b"seed: " + b"9" * 5000, "is not a valid int"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        config.load(tmp_path / "bad.yaml")
    if "is not a name" in message:
        with pytest.raises(ConfigError, match=message):
            config.named_preset(tmp_path / "bad.yaml", None)
    with pytest.raises(ConfigError, match="no such file"):
        config.load(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        config.load(tmp_path)
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match="is a named pipe, not a file"):
        config.load(tmp_path / "pipe.yaml")


@pytest.mark.parametrize("value", ["2024-13-45", "*name", "[" * 5000, "!!int x", "&a"])
def test_an_override_that_is_no_yaml_is_a_text(value: str) -> None:
    assert config.load(overrides=[f"data.source={value}"]).data.source == (None if value == "&a" else value)


def test_settings_are_frozen_and_described() -> None:
    settings = config.load()
    with pytest.raises(ValidationError):
        settings.train.gamma = 0.1  # type: ignore[misc]
    for name, field in Settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            for key, inner in kind.model_fields.items():
                assert inner.description, f"{name}.{key}"


def test_show_names_the_origin() -> None:
    text = config.show(config.load(preset_name="nuswide"), preset_name="nuswide")
    line = next(line for line in text.splitlines() if line.strip().startswith("gamma:"))
    assert "0.9" in line
    assert "[nuswide]" in line
    assert yaml.safe_load(text)["train"]["queue"] == 2048
