"""Which models have a text tower (CLIP, SigLIP, Chinese-CLIP), by their config.json: no weight is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

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
            f"backbone '{name}' is not a folder, and could not be loaded from the hub: {first_line(error)}",
            hint="without a network give the folder of a downloaded model: docs/encoders.md",
        ) from error
