"""The network that leaves the run directory: an encoder and its classifier, images to logits.

A ``description`` (plain JSON) and a state dict rebuild it with no hub, no run and no training code.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from capro.errors import ConfigError
from capro.nets.backbones import BUILT_IN, Backbone, _Pooled, _triple, load_backbone


class Deployed(nn.Module):
    """Encoder and classifier of a finished run.

    >>> from capro.nets.backbones import load_backbone
    >>> net = Deployed(load_backbone("small", image_size=32), classes=3).eval()
    >>> p = net.probabilities(torch.rand(2, 3, 32, 32)).detach()
    >>> tuple(p.shape), [round(float(x), 4) for x in p.sum(dim=1)]
    ((2, 3), [1.0, 1.0])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: Backbone, classes: int, *, multi_label: bool = False) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = nn.Linear(backbone.dim, classes)
        self.multi_label = multi_label
        # not in the state dict: the description has them
        self.register_buffer("mean", torch.tensor(backbone.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(backbone.std).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """RGB in [0, 1], (b, 3, size, size) -> logits, (b, C)."""
        logits: Tensor = self.classifier(self.backbone((images - self.mean) / self.std))
        return logits

    def probabilities(self, images: Tensor) -> Tensor:
        """Softmax over classes, or a sigmoid per class where samples carry several labels."""
        logits: Tensor = self(images)
        return logits.sigmoid() if self.multi_label else logits.softmax(dim=1)


def describe(backbone: Backbone) -> dict[str, Any]:
    """What ``rebuild`` needs beside the weights, as JSON."""
    found: dict[str, Any] = {
        "name": backbone.name,
        "size": backbone.size,
        "dim": backbone.dim,
        "mean": list(backbone.mean),
        "std": list(backbone.std),
    }
    if backbone.name not in BUILT_IN and isinstance(backbone.body, _Pooled):
        config = backbone.body.model.config
        found["config"] = {**config.to_dict(), "model_type": config.model_type}
        found["pooler"] = backbone.body.pooler
    return found


def rebuild(description: dict[str, Any]) -> Backbone:
    """A backbone from its description, with whatever weights: the state dict follows."""
    name, size = str(description["name"]), int(description["size"])
    if "config" not in description:
        return load_backbone(name, image_size=size)
    from transformers import AutoConfig, AutoModel

    values = dict(description["config"])
    try:
        model = AutoModel.from_config(AutoConfig.for_model(values.pop("model_type"), **values))
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"backbone '{name}' cannot be rebuilt: {error}",
            hint="install the version of transformers that the model card names",
        ) from error
    model = getattr(model, "vision_model", model)  # CLIP-like: the picture's half
    if not description["pooler"]:
        model.pooler = None
    return Backbone(
        _Pooled(model.float(), pooler=bool(description["pooler"])),
        name=name,
        dim=int(description["dim"]),
        size=size,
        mean=_triple(description["mean"]),
        std=_triple(description["std"]),
    )
