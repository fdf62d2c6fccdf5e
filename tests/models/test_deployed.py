"""A net without its files."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from capro.models.backbones import load_backbone
from capro.models.deployed import Deployed, describe, rebuild


def test_a_hub_backbone_is_rebuilt_without_its_files(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTModel

    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = ViTModel(ViTConfig(**shape, intermediate_size=16, image_size=32, patch_size=16))
    made.save_pretrained(tmp_path / "vit")
    first = Deployed(load_backbone(str(tmp_path / "vit")), classes=3).eval()
    description = json.loads(json.dumps(describe(first.backbone)))
    (tmp_path / "vit").rename(tmp_path / "gone")
    second = Deployed(rebuild(description), classes=3).eval()
    second.load_state_dict(first.state_dict())
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(first(x), second(x))
