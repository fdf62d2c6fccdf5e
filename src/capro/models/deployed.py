"""The network that leaves the run directory (an encoder and its classifier), and which configurations it may have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capro.errors import ConfigError, first_line
from capro.models.backbones import BUILT_IN, Backbone, _Pooled, _triple, load_backbone
from capro.models.folders import quiet


class Deployed(nn.Module):
    """Encoder and classifier of a finished run.

    >>> from capro.models.backbones import load_backbone
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
        """Softmax over classes, or a sigmoid per class for multi-label data."""
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
        found["config"] = kept(backbone.body.model.config)
        found["pooler"] = backbone.body.pooler
    return found


def rebuild(description: dict[str, Any]) -> Backbone:
    """A backbone from its description, with whatever weights: the state dict follows.

    Nothing but the description and installed packages is read.
    """
    name, size = str(description["name"]), int(description["size"])
    if description.get("config") is None:
        if name not in BUILT_IN:
            raise ConfigError(
                f"backbone {name!r:.80} is not built in, and the model folder does not describe it",
                hint=f"export the model again; {', '.join(BUILT_IN)} need no description",
            )
        return load_backbone(name, image_size=size)
    kind, values = accepted(description["config"], name)
    model = _from_config(kind, values, name)
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


def _from_config(kind: str, values: dict[str, Any], name: str) -> Any:
    from transformers import AutoConfig, AutoModel

    try:
        with quiet(offline=True):
            return AutoModel.from_config(AutoConfig.for_model(kind, **values), trust_remote_code=False)
    except Exception as error:  # each kind of encoder has its own for values that do not fit together
        raise ConfigError(
            f"backbone {name!r:.80} cannot be rebuilt: {first_line(error)}",
            hint="install the version of transformers that the model card names",
        ) from None


def load_deployed(
    description: dict[str, Any], weights: Path, *, classes: int, multi_label: bool = False
) -> Deployed:
    """The network of a model folder.

    It is built once without memory and compared with the names and shapes in the file: a description that asks for
    more than the file holds is refused before any of it is made.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file

    with safe_open(weights, framework="pt") as file:
        held = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
    if held.get("classifier.weight") != (classes, int(description["dim"])):
        raise _misfit("classifier.weight", held, (classes, int(description["dim"])))
    if description.get("config") is not None:
        with torch.device("meta"):
            outline = Deployed(rebuild(description), classes)
        needed = {name: tuple(tensor.shape) for name, tensor in outline.state_dict().items()}
        for name in sorted(needed.keys() | held.keys()):
            if needed.get(name) != held.get(name):
                raise _misfit(name, held, needed.get(name))
    net = Deployed(rebuild(description), classes, multi_label=multi_label)
    net.load_state_dict(load_file(weights))
    return net


def _misfit(name: str, held: dict[str, tuple[int, ...]], needed: tuple[int, ...] | None) -> ConfigError:
    has = f"has the shape {held[name]}" if name in held else "is missing"
    wanted = "config.json knows no such weight" if needed is None else f"config.json asks for {needed}"
    return ConfigError(f"weights that do not fit: {name:.80} {has}, {wanted}", hint="export the model again")


KINDS = frozenset(
    "beit bit clip_vision_model convnext convnextv2 cvt data2vec-vision deit dinat dinov2 dinov2_with_registers "
    "dinov3_convnext dinov3_vit donut-swin efficientnet focalnet hgnet_v2 hiera ijepa levit metaclip_2_vision_model "
    "mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 poolformer pvt pvt_v2 regnet resnet segformer "
    "siglip2_vision_model siglip_vision_model swiftformer swin swinv2 textnet timm_wrapper vit vit_mae vit_msn".split()
)
NEVER = frozenset({"auto_map", "quantization_config", "model_args", "backbone", "backbone_config"})
WORD = re.compile(r"[A-Za-z0-9_.+-]{0,64}")  # no slash, no colon: neither a path nor a name on the hub
MOST_LAYERS = 1_000  # each is built in Python
MOST = 2**20  # of any other number
LISTED = 1_000


def kept(config: Any) -> dict[str, Any]:
    """What of a transformers configuration goes into a model folder: what ``accepted`` takes and the network needs."""
    known = _known(config.model_type)
    values = {key: value for key, value in config.to_dict().items() if key in known and key not in NEVER}
    return {**values, "model_type": config.model_type}


def accepted(values: Mapping[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    """The kind of an encoder and the values for it; refused where a key or value is not of those allowed.

    Args:
        values: From a model folder.
        name: Of the backbone, for the message.
    """
    rest = dict(values)
    kind = rest.pop("model_type", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise _refused(name, f"model_type {kind!r:.80}")
    known = _known(kind)
    found = {}
    for key, value in rest.items():
        if key in known and key not in NEVER:
            if not _is_plain(key, value):
                raise _refused(name, f"{key!r:.80} of {value!r:.80}")
            found[key] = value
        elif value and key not in _common():  # what every configuration has decides nothing here
            raise _refused(name, f"the key {key!r:.80}")
    return kind, found


def _refused(name: str, what: str) -> ConfigError:
    return ConfigError(
        f"backbone {name!r:.80}: its configuration has {what}, which is not accepted from a model folder",
        hint="export the model again with this version of capro and transformers",
    )


def _known(kind: str) -> set[str]:
    """The keys of a kind of encoder that others do not have."""
    from transformers import CONFIG_MAPPING

    try:
        return set(CONFIG_MAPPING[kind]().to_dict()) - _common()
    except KeyError:
        return set()


def _common() -> set[str]:
    from transformers import PretrainedConfig

    return set(PretrainedConfig().to_dict()) | {"model_type", "torch_dtype", "_attn_implementation_autoset"}


def _is_plain(key: str, value: Any) -> bool:
    """A number, word, or list of them, none of which asks for endless work."""
    if isinstance(value, list):
        return len(value) <= LISTED and all(_is_plain(key, one) for one in value)
    if isinstance(value, str):
        return WORD.fullmatch(value) is not None
    if isinstance(value, bool) or value is None:
        return True
    counts = any(word in key for word in ("layer", "depth", "block", "stage")) and isinstance(value, int)
    return isinstance(value, int | float) and abs(value) <= (MOST_LAYERS if counts else MOST)
