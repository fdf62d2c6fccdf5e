"""Which configurations of transformers' encoders a model folder may bring.

A configuration decides which code builds the network, and some values make that code ask the hub or run a file.
So kinds, keys and values are allowed by name and form; the rest is refused before transformers sees it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from capro.errors import ConfigError

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
