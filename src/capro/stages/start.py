"""How a run begins: with its own settings where it exists, else with a preset, named or chosen by the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from capro.config import Settings
from capro.data.manifest import manifest_of
from capro.models.folders import check_models, has_text_tower
from capro.pipeline.progress import Watch
from capro.pipeline.ranks import check_tracker, process_count, ranks_of
from capro.pipeline.run import Run, settings_in
from capro.wording import many

SMALL, PHOTO = "small", "photo"  # pretrained networks that stay as they are
MANY = 100_000  # pictures for which two cores take a quarter of an hour at the size of PHOTO
ABOUT_DATA = {"seed", "data", "scan"}  # what another preset leaves as it is
LEARNS_FAST = ("small", "tiny")  # the backbones that a CPU can train

Choose = Callable[[Run, Watch], Run]  # chooses the settings of a run whose scan has finished
Resolve = Callable[[Mapping[str, Any], str | None], Settings]  # from values below the preset, and the preset


def start(path: Path, resolve: Resolve, preset: str | None) -> tuple[Run, Choose | None]:
    """A run, new or existing, that is written when its first stage is done.

    An existing run keeps what the command does not change; a preset that is named replaces all but the
    data's settings. A new run without a preset has that of one label until the data are known.

    Args:
        path: Run directory.
        resolve: Resolves values that preset, file and overrides are laid upon.
        preset: As it was named, if it was.

    Returns:
        The run and, where it is new and no preset was named, what chooses one after the scan.
    """
    stored = settings_in(path)
    if stored is None:
        settings = resolve({}, preset or PHOTO)
    else:
        settings = resolve(stored.model_dump(include=ABOUT_DATA if preset else None), preset)
    run = Run(path, settings)
    if process_count() > 1:  # all ranks have seen whether the run is new before the main one writes it
        ranks_of(settings).exchange()

    def choose(run: Run, watch: Watch) -> Run:
        name, reason = chosen_preset(run)
        watch.say(
            f"no preset was named: {name} is used, for {reason} and a pretrained network that is not trained "
            "further, so that no GPU is needed (`--preset paper` trains a ResNet-50)"
        )
        chosen = run.with_settings(resolve({}, name))
        chosen.save_settings()
        return chosen

    return run, choose if stored is None and preset is None else None


def chosen_preset(run: Run) -> tuple[str, str]:
    """The preset that fits the data of a scan, and why: by the labels, the number of the pictures, and a GPU.

    Their size does not matter: pictures of 32 px gain as much from a larger input as photographs (docs/results.md).
    """
    manifest = manifest_of(run)
    labels = "several labels" if manifest.task == "multi" else "one label"
    count, name = len(manifest.samples), PHOTO
    reason = f"{many(count, 'image')} with {labels}"
    if count > MANY and not _has_gpu():
        name, reason = SMALL, f"{reason} without a GPU (`--preset photo` is slower and more accurate)"
    return f"{name}-multi" if manifest.task == "multi" else name, reason


def prepare(run: Run, names: Sequence[str], watch: Watch) -> None:
    """Refuse, before hours of work, what a later stage could not use; warn of a training without a GPU."""
    if set(names) <= {"scan", "classes"}:
        return
    settings = run.settings
    check_tracker(settings)
    check_models(settings, begun=run.finished("pretrain") is not None)
    if settings.by_posterior:
        has_text_tower(settings.net.backbone)  # asks the hub once: whether there is a stage `joint`
    if "pretrain" in names and (text := slow(settings)):
        watch.warn(text)


def slow(settings: Settings) -> str:
    """A warning where a network is to be trained and there is no GPU; empty otherwise."""
    if settings.net.mode == "frozen" or settings.net.backbone in LEARNS_FAST:
        return ""
    epochs = settings.pretrain.epochs + settings.train.epochs
    if _has_gpu() or not epochs:
        return ""
    return (
        f"no GPU was found, and {settings.net.backbone} is to be trained for {epochs} epochs: on a CPU this "
        "takes days or weeks; --preset small (or small-multi) uses a pretrained network without training it"
    )


def _has_gpu() -> bool:
    import torch

    return torch.accelerator.is_available()
