"""A model folder may come from anywhere: what its config.json may say."""

from __future__ import annotations

import copy
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from capro.errors import CaproError
from capro.export.model_config import parse_model_config
from capro.export.predictor import Item, Predictor
from capro.models.backbones import load_backbone
from capro.models.deployed import Deployed, describe
from tests.data.corpus import png
from tests.export.test_predictor import config


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    asked: list[object] = []

    def refuse(*args: object, **_: object) -> None:
        asked.append(args)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert not asked


@pytest.fixture(scope="session")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    from transformers import ViTConfig, ViTModel

    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = ViTModel(ViTConfig(**shape, intermediate_size=16, image_size=32, patch_size=16))
    folder = tmp_path_factory.mktemp("vit")
    made.save_pretrained(folder)
    return Deployed(load_backbone(str(folder)), classes=3).eval()


def write(folder: Path, net: Deployed, values: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(net.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def described(net: Deployed) -> dict[str, Any]:
    values = copy.deepcopy(config())
    return json.loads(json.dumps(values | {"backbone": describe(net.backbone)}))  # type: ignore[no-any-return]


def test_a_model_config_without_limits_takes_the_defaults() -> None:
    values = config()
    del values["preprocessing"]["limits"]  # type: ignore[attr-defined]
    net = Deployed(load_backbone("small", image_size=16), 3)
    assert next(Predictor(net, values).rows([Item("x", png(1))]))["error"] is None


def test_a_described_encoder_gives_the_same_from_its_folder(vit: Deployed, tmp_path: Path) -> None:
    values = described(vit)
    values["preprocessing"]["size"] = 32
    loaded = Predictor.load(write(tmp_path / "m", vit, values))
    image = loaded.open_image(png(1))
    np.testing.assert_array_equal(
        loaded.probabilities([image]), Predictor(vit, values).probabilities([image])
    )
    assert "_name_or_path" not in values["backbone"]["config"]  # where the encoder was on another machine


HOSTILE: dict[str, dict[str, Any]] = {
    "a hub name as backbone": {"backbone": {"name": "evil/model", "config": None}},
    "a folder as backbone": {"backbone": {"name": "/tmp", "config": None}},
    "code of its own": {"config": {"auto_map": {"AutoModel": "evil/model--modeling.Evil"}}},
    "a foreign kind": {"config": {"model_type": "detr"}},
    "no kind": {"config": {"model_type": None}},
    "a kind that is a list": {"config": {"model_type": ["vit"]}},
    "attention from the hub": {"config": {"_attn_implementation": "evil/kernels"}},
    "a backbone within": {"config": {"backbone": "evil/model", "use_pretrained_backbone": True}},
    "an unknown key of the encoder": {"config": {"loader": "x"}},
    "a path as word": {"config": {"hidden_act": "../../evil"}},
    "a nested value": {"config": {"hidden_act": {"x": "gelu"}}},
    "endless layers": {"config": {"num_hidden_layers": 10**9}},
    "many layers that the file lacks": {"config": {"num_hidden_layers": 900}},
    "a petabyte of weights": {"config": {"intermediate_size": 2**20, "hidden_size": 2**20}},
    "numbers that do not fit": {"config": {"num_attention_heads": 7}},
    "heads of zero": {"config": {"num_attention_heads": 0}},
    "a patch of zero": {"config": {"patch_size": 0}},
    "words for numbers": {"config": {"hidden_size": "wide"}},
    "an unknown key": {"top": {"loader": "x"}},
    "an unknown key of the backbone": {"backbone": {"trust_remote_code": True}},
    "billions of classes": {"top": {"num_labels": 10**10}},
    "more classes than names": {"top": {"num_labels": 4}},
    "classes without names": {"top": {"id2label": {"0": "a", "1": "b", "x": "c"}}},
    "names that are numbers": {"top": {"id2label": {"0": 1, "1": 2, "2": 3}}},
    "no names": {"top": {"id2label": None}},
    "names as a list": {"top": {"id2label": ["a", "b", "c"]}},
    "a threshold that is text": {"top": {"open_set": {"threshold": "high"}}},
    "a threshold that is no number": {"top": {"open_set": {"threshold": float("nan")}}},
    "an input that the network cannot take": {"preprocessing": {"size": 1}},
    "a huge input": {"preprocessing": {"size": 10**9}},
    "an input of zero": {"preprocessing": {"size": 0}},
    "limits that are none": {"preprocessing": {"limits": {"max_pixels": -1}}},
    "unknown limits": {"preprocessing": {"limits": {"max_files": 1}}},
    "deviation of zero": {"backbone": {"std": [0, 0, 0]}},
    "a mean of two": {"backbone": {"mean": [0.5, 0.5]}},
    "width of zero": {"backbone": {"dim": 0}},
    "another kind of problem": {"top": {"problem_type": "regression"}},
    "no format": {"top": {"capro_format": None}},
    "no backbone": {"top": {"backbone": None}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_model_folder_may_not_say(name: str, vit: Deployed, tmp_path: Path) -> None:
    values = described(vit)
    change = HOSTILE[name]
    values |= change.get("top", {})
    if values["backbone"]:
        values["backbone"] |= change.get("backbone", {})
        if values["backbone"].get("config"):
            values["backbone"]["config"] |= change.get("config", {})
    values["preprocessing"] |= change.get("preprocessing", {})
    with pytest.raises(CaproError) as caught:
        Predictor.load(write(tmp_path / "m", vit, values))
    assert str(tmp_path / "m") in str(caught.value)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "5", '{"a": ' + "9" * 5000 + "}", "\udcff"])
def test_a_config_that_is_no_mapping(text: str, vit: Deployed, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", vit, described(vit))
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CaproError, match=r"config\.json"):
        Predictor.load(folder)


def test_weights_that_are_no_numbers(vit: Deployed, tmp_path: Path) -> None:
    broken = copy.deepcopy(vit)
    broken.classifier.weight.data[0, 0] = float("nan")
    with pytest.raises(CaproError, match="gives no probabilities"):
        Predictor.load(write(tmp_path / "m", broken, described(vit) | {"preprocessing": {"size": 32}}))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_link_out_of_the_model_folder_is_refused(name: str, vit: Deployed, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", vit, described(vit))
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(CaproError, match="leaves the model folder"):
        Predictor.load(folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(CaproError, match="not a file"):
        Predictor.load(folder)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.data())
def test_any_value_in_place_of_another_is_taken_or_refused(data: st.DataObject) -> None:
    values: Any = copy.deepcopy(config())
    at = values
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted(at)))
        if not (isinstance(at[key], dict) and at[key] and data.draw(st.booleans())):
            break
        at = at[key]
    at[key if key in at else next(iter(at))] = data.draw(JSON)
    try:
        parse_model_config(values, "here")
    except CaproError as error:
        assert error.hint  # noqa: PT017 - either outcome is right
