"""Pretrained models by folder or hub name: what is known of them without loading torch or any weight."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capro.config import Settings
from capro.errors import ConfigError, did_you_mean, first_line


def looks_foreign(name: str) -> bool:
    """Whether a name is that of a folder or of the hub's org/model, not of something built in.

    >>> looks_foreign("lite0"), looks_foreign("facebook/dinov2-small"), looks_foreign("~")
    (False, True, True)
    """
    return "/" in name or "\\" in name or name.startswith((".", "~")) or Path(name).is_dir()


def model_folder(name: str, kind: str) -> Path | None:
    """The folder of a model; None where the name is one of the hub's.

    What looks like a path and is no folder is refused at once, instead of asking the hub for it: a name that begins
    like a path, has more than one separator, or begins with a folder that exists.

    Args:
        name: as the user gave it.
        kind: what it is for, in the error: "backbone" or "text encoder".

    >>> model_folder("openai/clip-vit-base-patch32", "backbone") is None
    True
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    pathlike = name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1
    if not pathlike and not ("/" in name and path.parent.is_dir()):
        return None
    parent = path.parent
    folders = (
        [str(parent / each.name) for each in parent.iterdir() if each.is_dir()] if parent.is_dir() else []
    )
    near = did_you_mean(str(path), folders)
    raise ConfigError(
        f"{kind} '{name}': no such folder",
        hint=near
        if "mean" in near
        else "check the path: it must be a folder with config.json and model.safetensors",
    )


def on_hub(name: str) -> bool:
    """Whether a model's name is one of the hub's: org/model, and neither a path nor the beginning of one.

    >>> on_hub("facebook/dinov2-small"), on_hub("lite0"), on_hub("models/step1.safetensors"), on_hub("/data/dino")
    (True, False, False, False)
    """
    path = Path(name).expanduser()
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name, re.ASCII) or name.startswith("."):
        return False
    return path.suffix != ".safetensors" and not path.exists() and not path.parent.is_dir()


def weights_file(name: str) -> Path:
    """The safetensors file that ``net.weights`` names: itself, or that of a folder or of the hub's org/model.

    >>> weights_file("runs/a/step1.safetensors").as_posix()
    'runs/a/step1.safetensors'
    """
    path = Path(name).expanduser()
    if path.is_file() or path.suffix == ".safetensors" or "/" not in name:
        return path  # one that is not there is refused by its reader
    folder = model_folder(name, "weights")
    if folder is not None:
        return folder / "model.safetensors"
    from huggingface_hub import hf_hub_download

    try:
        with quiet():
            return Path(hf_hub_download(name, "model.safetensors"))
    except Exception as error:  # the hub's own, and those of whatever lies between
        raise ConfigError(
            f"weights '{name}': no model.safetensors from the Hugging Face hub: {first_line(error)}",
            hint="download it where there is a network and name the file, --set net.weights=FILE.safetensors; "
            "--set net.weights=null starts from random weights",
        ) from error


def check_models(settings: Settings, *, begun: bool = False) -> None:
    """Refuse a mistyped folder of an encoder before any work is done, and weights that cannot be had.

    Args:
        settings: Of the run.
        begun: Step 1 has finished: its weights are not needed any more.
    """
    if settings.net.weights and not begun and not (path := weights_file(settings.net.weights)).is_file():
        raise ConfigError(f"net.weights: {path}: no such file", hint="check the path")
    net, embed = settings.net, settings.embed
    named = {net.backbone: "backbone", embed.visual: "backbone", embed.text_encoder: "text encoder"}
    for name, kind in named.items():
        if looks_foreign(name):
            model_folder(name, kind)


@contextmanager
def quiet_logger(name: str) -> Iterator[None]:
    """Nothing below an error from the logger of a library that is loaded, such as the hub's line for each retry."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def quiet(*, offline: bool = False) -> Iterator[None]:
    """No bars and reports of transformers and the hub's client while they load: ours is the one progress display.

    Args:
        offline: Nor does it ask the hub, whatever a folder names; some names reach other libraries than transformers.
    """
    from huggingface_hub import constants
    from transformers.utils import logging as theirs

    before, level, bars = constants.HF_HUB_OFFLINE, theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    constants.HF_HUB_OFFLINE = before or offline
    theirs.set_verbosity_error()
    theirs.disable_progress_bar()
    try:
        with quiet_logger("huggingface_hub"):
            yield
    finally:
        constants.HF_HUB_OFFLINE = before
        theirs.set_verbosity(level)
        if bars:
            theirs.enable_progress_bar()


BUILT_IN_SIZES = {
    "resnet50": 224,
    "resnet18": 224,
    "small": 64,
    "tiny": 64,
    **{f"lite{number}": 224 for number in range(3)},
}


def input_size(name: str) -> int:
    """Side of a backbone's own input in pixels; of a folder or a name on the hub no weight is read.

    >>> input_size("lite0")
    224
    """
    if name in BUILT_IN_SIZES:
        return BUILT_IN_SIZES[name]
    from capro.models.backbones import foreign_input_size

    return foreign_input_size(name)


# Image-text models by model_type, and whether their texts are padded to all positions, padding being read as well.
FULL_LENGTH = {"clip": False, "siglip": True, "chinese_clip": False}
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
        return json.loads(file.read_text("utf-8")).get("model_type") in FULL_LENGTH
    except (ValueError, AttributeError, TypeError, RecursionError):
        return False  # not a model: loading it gives the error


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
