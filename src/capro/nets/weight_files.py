"""Weights of a built-in backbone from a safetensors file, by our names or by those of torchvision and timm.

ImageNet weights of ResNet-50 are ``timm/resnet50.tv_in1k`` on the Hugging Face hub: torchvision's first ones, which the
released scripts of the paper load. ``net.weights`` is that name, or the file ``model.safetensors`` from there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from capro.errors import ConfigError
from capro.model_folders import weights_file

PLACES = (  # names of a ResNet in torchvision and timm, and where transformers has the same layer
    (r"conv1\.(\w+)", r"embedder.embedder.convolution.\1"),
    (r"bn1\.(\w+)", r"embedder.embedder.normalization.\1"),
    (r"layer(\d)\.(\d+)\.conv(\d)\.(\w+)", r"encoder.stages.\1.layers.\2.layer.\3.convolution.\4"),
    (r"layer(\d)\.(\d+)\.bn(\d)\.(\w+)", r"encoder.stages.\1.layers.\2.layer.\3.normalization.\4"),
    (r"layer(\d)\.(\d+)\.downsample\.0\.(\w+)", r"encoder.stages.\1.layers.\2.shortcut.convolution.\3"),
    (r"layer(\d)\.(\d+)\.downsample\.1\.(\w+)", r"encoder.stages.\1.layers.\2.shortcut.normalization.\3"),
)


def from_torchvision(name: str) -> str | None:
    """Our name of a ResNet's tensor by torchvision's; None where we have none, as of its classifier ``fc``.

    >>> from_torchvision("layer2.0.conv3.weight")
    'body.model.encoder.stages.1.layers.0.layer.2.convolution.weight'
    >>> from_torchvision("fc.bias") is None
    True
    """
    for pattern, place in PLACES:
        if found := re.fullmatch(pattern, name):
            # stages and convolutions count from 1 there, from 0 here; blocks from 0 in both
            one_less = re.sub(
                r"(stages|layer)\.(\d)", lambda part: f"{part[1]}.{int(part[2]) - 1}", found.expand(place)
            )
            return f"body.model.{one_less}"
    return None


def load_weights(backbone: nn.Module, source: str | Path) -> None:
    """Fill a backbone, in place.

    Args:
        backbone: A `capro.nets.backbones.Backbone`.
        source: A safetensors file (or a folder or a name on the hub with ``model.safetensors``) that holds the
            backbone's own state, a whole `Siamese`'s (``encoder.``), or that of a ResNet of torchvision or timm.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = weights_file(str(source))
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{path}: no weights can be read: {error}", hint="give a .safetensors file"
        ) from error
    needed = backbone.state_dict()
    state = _our_names(state, needed)
    wrong = [
        f"{key} is {tuple(state[key].shape)}, expected {tuple(value.shape)}"
        for key, value in needed.items()
        if key in state and state[key].shape != value.shape
    ]
    absent = [f"{key} is missing" for key in needed if key not in state]
    extra = [f"{key} is not known" for key in state if key not in needed]
    faults = wrong + absent + extra
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise ConfigError(
            f"{path}: not the weights of backbone '{backbone.name}': {faults[0]}{more}",
            hint="use the backbone that the file was saved from",
        )
    backbone.load_state_dict(state)


def _our_names(state: Mapping[str, Tensor], needed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file by our names."""
    if "layer1.0.conv1.weight" in state:
        found = {ours: value for name, value in state.items() if (ours := from_torchvision(name))}
        counters = {key: value for key, value in needed.items() if key.endswith("num_batches_tracked")}
        return {**counters, **found}  # files of before torch 0.4.1 count no batches; eval mode needs no count
    part = {k.removeprefix("encoder."): v for k, v in state.items() if k.startswith("encoder.")}
    return part or dict(state)
