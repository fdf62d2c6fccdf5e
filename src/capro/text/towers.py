"""Text towers of image-text models (CLIP, SigLIP, Chinese-CLIP): which models have one, and how it reads a text.

A picture tower and a text tower end in one space, where the cosine says how well a text fits a picture.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from capro.errors import ConfigError, first_line
from capro.model_folders import looks_foreign, model_folder


class Family(NamedTuple):
    """How the text towers of a family were trained."""

    full_length: bool = False  # every text is padded to all positions, and padding is read as well


FAMILIES = {"clip": Family(), "siglip": Family(full_length=True), "chinese_clip": Family()}  # by model_type
TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model")


def has_text_tower(name: str, *, ask: bool = True) -> bool:
    """Whether a model is an image-text model with a tokenizer, by its config.json; no weight is read.

    Args:
        name: a backbone: built in (none of these has one), a folder, or a name on the hub.
        ask: the hub, where the file is not in its cache; otherwise what is not there has no tower.

    >>> has_text_tower("lite0")
    False
    """
    if not looks_foreign(name):
        return False
    try:
        folder = model_folder(name, "backbone")
    except ConfigError:
        if ask:
            raise
        return False
    if folder and not any((folder / each).is_file() for each in TOKENIZERS):
        return False  # nothing to read a text with: a backbone alone
    file = folder / "config.json" if folder else _config_of(name, ask=ask)
    if file is None or not file.is_file():
        return False
    try:
        return json.loads(file.read_text("utf-8")).get("model_type") in FAMILIES
    except (ValueError, AttributeError, TypeError, RecursionError):
        return False  # no model: who loads it says so


def _config_of(name: str, *, ask: bool) -> Path | None:
    """The config.json of a name on the hub, from its cache if it is there."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json")
        if isinstance(found, str):
            return Path(found)
        return Path(hf_hub_download(name, "config.json")) if ask else None
    except Exception as error:  # no network, no such name, no permission, a full disk ...
        if not ask:
            return None
        raise ConfigError(
            f"backbone '{name}' is no folder, and could not be loaded from the hub: {first_line(error)}",
            hint="without a network give the folder of a downloaded model: docs/encoders.md",
        ) from error


class TextTower(nn.Module):
    """The text half of an image-text model: tokens to the joint space, (b, t) -> (b, d)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.family = FAMILIES[model.config.model_type]
        self.positions = int(model.config.text_config.max_position_embeddings)
        model.vision_model = model.visual_projection = None  # the other half
        self.model = model

    @property
    def counted(self) -> nn.Module:
        """Whose arithmetic is counted."""
        return self

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> Tensor:
        """`attention_mask`, (b, t), is 1 for a real token."""
        mask = None if self.family.full_length else attention_mask
        found = self.model.get_text_features(input_ids=input_ids, attention_mask=mask)
        return cast(Tensor, getattr(found, "pooler_output", found))  # transformers 5 or 4


def picture_projection(model: Any) -> nn.Module:
    """From the pooled features of the picture tower to the joint space, (b, d_v) -> (b, d)."""
    return getattr(model, "visual_projection", None) or nn.Identity()  # SigLIP's features are there already
