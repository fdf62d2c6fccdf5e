"""Folders and names of the hub are told apart without asking anybody."""

from __future__ import annotations

import socket

import pytest

from capro import config
from capro.errors import ConfigError
from capro.models.backbones import load_backbone
from capro.models.folders import check_models, model_folder, quiet
from capro.models.text_encoders import load_text_encoder


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "models" / "clip-base").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    def refuse(*_):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_a_folder_and_a_name_of_the_hub():
    assert model_folder("models/clip-base", "backbone").is_dir()
    assert model_folder("openai/clip-vit-base-patch32", "backbone") is None
    assert model_folder("minilm", "text encoder") is None


@pytest.mark.parametrize(
    "name", ["./clip", "/no/such/clip", "~/no-such-clip", "a/b/c", "C:\\clip", "models/other"]
)
def test_what_looks_like_a_path_fails_at_once(name):
    with pytest.raises(ConfigError, match="no such folder") as caught:
        load_backbone(name)
    assert repr(name)[1:-1].replace("\\\\", "\\") in str(caught.value)
    assert caught.value.hint
    with pytest.raises(ConfigError, match=r"text encoder .*no such folder"):
        load_text_encoder(name)


def test_a_mistyped_folder_is_suggested():
    with pytest.raises(ConfigError) as caught:
        load_backbone("models/clip-bsae")
    assert caught.value.hint == "did you mean 'models/clip-base'?"


@pytest.mark.parametrize("setting", ["net.backbone", "embed.visual", "embed.text_encoder"])
def test_every_encoder_of_the_settings_is_checked(setting):
    check_models(config.load(overrides=[f"{setting}=models/clip-base"]))
    check_models(config.load(overrides=[f"{setting}=some/model"]))
    with pytest.raises(ConfigError, match="'models/clip': no such folder"):
        check_models(config.load(overrides=[f"{setting}=models/clip"]))


def test_a_folder_makes_nobody_ask_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:

    from huggingface_hub import hf_hub_download

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("asked the network")

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    with quiet(offline=True), pytest.raises(OSError, match=r"offline|cache"):
        hf_hub_download("evil/kernels", "build.py")
