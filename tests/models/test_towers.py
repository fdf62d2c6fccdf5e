"""Text towers of image-text models, against the models' own functions."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from capro.errors import ConfigError
from capro.models.backbones import load_backbone
from capro.models.folders import has_text_tower
from capro.models.text_encoders import load_text_encoder
from tests import towers

TEXTS = ["a photo of deep red fruit", "sky", "Blue CLEAR sky", "", "nothing that it knows", "a " * 40]


@pytest.fixture(scope="module", params=[*towers.SAVERS])
def saved(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, towers.SAVERS[request.param](folder)


def own_features(family, folder, model, text):
    """As the model's card does it, one text at a time."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    padding = "max_length" if family == "siglip" else False
    inputs = tokenizer(
        text, padding=padding, truncation=True, max_length=towers.POSITIONS, return_tensors="pt"
    )
    mask = {} if family == "siglip" else {"attention_mask": inputs["attention_mask"]}
    with torch.no_grad():
        found = model.get_text_features(input_ids=inputs["input_ids"], **mask)
    return torch.nn.functional.normalize(getattr(found, "pooler_output", found), dim=1)[0].numpy()


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_text_is_read_as_the_model_reads_it(saved, batch_size):
    family, folder, model = saved
    encoder = load_text_encoder(str(folder))
    found = encoder.encode(TEXTS, batch_size=batch_size)
    assert encoder.max_tokens == towers.POSITIONS
    assert found.shape == (len(TEXTS), {"clip": 8, "siglip": 16}[family])
    for row, text in zip(found, TEXTS, strict=True):
        expected = own_features(family, folder, model, text) if text else np.zeros(len(row))
        np.testing.assert_allclose(row, expected, atol=1e-5)


def test_only_the_text_half_is_counted(saved):
    _, folder, model = saved
    encoder = load_text_encoder(str(folder))
    half = [p.numel() for name, p in model.named_parameters() if not name.startswith(("vis", "logit"))]
    assert encoder.parameters - sum(half) in (0, 1, 2)  # the loss's own scale and bias
    assert encoder.gflops() > 0


def test_projected_features_are_the_models_own(saved):
    _, folder, model = saved
    x = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        v = load_backbone(str(folder)).eval()(x)
        expected = model.get_image_features(x)
    expected = torch.nn.functional.normalize(getattr(expected, "pooler_output", expected), dim=1)
    found = load_text_encoder(str(folder)).project(v.numpy())
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def test_a_language_model_projects_no_picture():
    with pytest.raises(ConfigError, match="not an image-text model"):
        load_text_encoder("minilm").project(np.zeros((1, 4), np.float32))


def test_fingerprint_follows_the_weights_of_the_text_half(saved, tmp_path):
    family, folder, _ = saved
    first = load_text_encoder(str(folder)).fingerprint
    model = towers.SAVERS[family](tmp_path)
    with torch.no_grad():
        model.text_model.embeddings.token_embedding.weight += 0.1
    model.save_pretrained(tmp_path)
    other = load_text_encoder(str(tmp_path))
    other.name = str(folder)
    assert other.fingerprint != first


def test_who_has_a_text_tower(saved, tmp_path):
    assert has_text_tower(str(saved[1]))
    assert not has_text_tower("lite0")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip"}))
    assert not has_text_tower(str(tmp_path))  # no tokenizer
    (tmp_path / "tokenizer.json").write_text("{}")
    assert has_text_tower(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "dinov2"}))
    assert not has_text_tower(str(tmp_path))
    (tmp_path / "config.json").write_text("no json")
    assert not has_text_tower(str(tmp_path))


def test_the_hub_is_asked_only_where_it_may_be(monkeypatch, tmp_path):
    import huggingface_hub

    asked = []

    def download(name, file):
        asked.append(name)
        (tmp_path / file).write_text(json.dumps({"model_type": "siglip"}))
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert not has_text_tower("some/model", ask=False)
    assert asked == []
    assert has_text_tower("some/model")
    assert asked == ["some/model"]

    def offline(*_):
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(
        ConfigError, match=r"'some/model' is not a folder, and could not be loaded.*no network"
    ) as caught:
        has_text_tower("some/model")
    assert "docs/encoders.md" in caught.value.hint


def test_a_folder_that_is_gone_has_no_tower_for_who_only_looks():
    assert not has_text_tower("./absent", ask=False)
    with pytest.raises(ConfigError, match="no such folder"):
        has_text_tower("./absent")
