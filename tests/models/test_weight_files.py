"""Weights from files: ours, and a ResNet's by torchvision's names against a network written by hand."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from capro import config
from capro.errors import ConfigError
from capro.models.backbones import from_torchvision, load_backbone, load_weights
from capro.models.folders import check_models
from capro.models.heads import Heads
from capro.models.siamese import Siamese


def test_weights_of_a_backbone_and_of_a_siamese(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = load_backbone("small", image_size=32)
    save_file(source.state_dict(), tmp_path / "backbone.safetensors")
    pair = Siamese(source, Heads(256, 8, 3, tau=0.1))
    save_file(pair.state_dict(), tmp_path / "siamese.safetensors")
    for file in ("backbone", "siamese"):
        again = load_backbone("small", image_size=32, weights=tmp_path / f"{file}.safetensors")
        state = again.state_dict()
        assert all(torch.equal(value, state[key]) for key, value in source.state_dict().items())


def test_wrong_weights_are_named(tmp_path: Path) -> None:
    backbone = load_backbone("small", image_size=32)
    path = tmp_path / "w.safetensors"

    state = {**backbone.state_dict(), "body.stem.weight": torch.zeros(4, 3, 3, 3)}
    save_file(state, path)
    with pytest.raises(ConfigError, match=r"body\.stem\.weight is \(4, 3, 3, 3\), expected \(32, 3"):
        load_weights(backbone, path)

    state = backbone.state_dict()
    del state["body.stem.weight"]
    save_file({**state, "surplus": torch.zeros(1)}, path)
    with pytest.raises(ConfigError, match=r"body\.stem\.weight is missing \(and 1 more\)"):
        load_weights(backbone, path)

    path.write_bytes(b"not weights")
    with pytest.raises(ConfigError, match="no weights can be read"):
        load_weights(backbone, path)
    with pytest.raises(ConfigError, match="no weights can be read"):
        load_weights(backbone, tmp_path / "absent.safetensors")


# ---- torchvision's names -------------------------------------------------------------------------


def torchvision_resnet(name: str) -> dict[str, Tensor]:
    """Random weights of a ResNet by torchvision's names, with the classifier that we do not need."""
    torch.manual_seed(1)
    bottleneck = name == "resnet50"
    depths = (3, 4, 6, 3) if bottleneck else (2, 2, 2, 2)
    state: dict[str, Tensor] = {}

    def layer(conv: str, norm: str, out: int, inner: int, side: int) -> None:
        state[f"{conv}.weight"] = torch.randn(out, inner, side, side) / (inner * side * side) ** 0.5
        state[f"{norm}.weight"], state[f"{norm}.bias"] = torch.rand(out) + 0.5, torch.randn(out) / 10
        state[f"{norm}.running_mean"], state[f"{norm}.running_var"] = (
            torch.randn(out) / 10,
            torch.rand(out) + 0.5,
        )

    layer("conv1", "bn1", 64, 3, 7)
    width = 64
    for stage, (planes, depth) in enumerate(zip((64, 128, 256, 512), depths, strict=True), start=1):
        out = planes * (4 if bottleneck else 1)
        for block in range(depth):
            at = f"layer{stage}.{block}"
            widths = [width, planes, planes, out] if bottleneck else [width, planes, out]
            sides = (1, 3, 1) if bottleneck else (3, 3)
            for number, side in enumerate(sides, start=1):
                layer(f"{at}.conv{number}", f"{at}.bn{number}", widths[number], widths[number - 1], side)
            if block == 0 and (stage > 1 or bottleneck):
                layer(f"{at}.downsample.0", f"{at}.downsample.1", out, width, 1)
            width = out
    state["fc.weight"], state["fc.bias"] = torch.zeros(1000, width), torch.zeros(1000)
    return state


def by_hand(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """Features of a ResNet in eval mode, layer by layer; a stage's stride is in the first 3x3 convolution."""

    def step(x: Tensor, conv: str, norm: str, stride: int) -> Tensor:
        weight = state[f"{conv}.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        values = [state[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        return F.batch_norm(x, *values)

    x = F.max_pool2d(step(x, "conv1", "bn1", 2).relu(), 3, 2, 1)
    for stage in range(1, 5):
        block = 0
        while f"layer{stage}.{block}.conv1.weight" in state:
            at, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            bottleneck = f"{at}.conv3.weight" in state
            short = x
            if f"{at}.downsample.0.weight" in state:
                short = step(x, f"{at}.downsample.0", f"{at}.downsample.1", stride)
            strided = 2 if bottleneck else 1
            last = 3 if bottleneck else 2
            for number in range(1, last + 1):
                x = step(x, f"{at}.conv{number}", f"{at}.bn{number}", stride if number == strided else 1)
                x = x.relu() if number < last else x
            x, block = (x + short).relu(), block + 1
    return x.mean((2, 3))


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_a_resnet_of_torchvision_gives_the_features_that_it_gives_there(name: str, tmp_path: Path) -> None:
    state = torchvision_resnet(name)
    save_file(state, tmp_path / "model.safetensors")
    backbone = load_backbone(name, weights=tmp_path / "model.safetensors").eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(backbone(x), by_hand(state, x), rtol=1e-4, atol=1e-4)
    again = load_backbone(name, weights=tmp_path)  # a folder with that file
    assert torch.equal(next(again.parameters()), next(backbone.parameters()))


def test_another_resnets_weights_are_refused(tmp_path: Path) -> None:
    save_file(torchvision_resnet("resnet18"), tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match="not the weights of backbone 'resnet50'"):
        load_backbone("resnet50", weights=tmp_path / "w.safetensors")
    assert from_torchvision("layer1.0.relu") is None


# ---- the hub -------------------------------------------------------------------------------------


def test_a_name_of_the_hub_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = load_backbone("small", image_size=32).state_dict()
    save_file(state, tmp_path / "there.safetensors")
    asked = []

    def download(name: str, file: str) -> str:
        asked.append((name, file))
        return str(tmp_path / "there.safetensors")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    backbone = load_backbone("small", image_size=32, weights="timm/small.in1k")
    assert asked == [("timm/small.in1k", "model.safetensors")]
    assert all(torch.equal(value, state[key]) for key, value in backbone.state_dict().items())


def test_without_a_network_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: str) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(ConfigError, match=r"weights 'timm/resnet50.tv_in1k': .* no route to host") as caught:
        load_backbone("resnet50", weights="timm/resnet50.tv_in1k")
    assert "net.weights=FILE" in caught.value.hint
    with pytest.raises(ConfigError, match="no route to host"):  # before the scan
        check_models(config.load(preset_name="nuswide"))
    check_models(config.load(preset_name="nuswide"), begun=True)


def test_a_file_that_is_not_there_is_refused_before_any_work() -> None:
    with pytest.raises(ConfigError, match=r"net\.weights: gone\.safetensors: no such file"):
        check_models(config.load(overrides=["net.weights=gone.safetensors"]))
    check_models(config.load(overrides=["net.weights=gone.safetensors"]), begun=True)
