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

SMALL, PHOTO = "small", "photo"  # pretrained networks that stay as they are
NATURAL = 128  # px of the shorter side above which SMALL would throw detail away, for half of the pictures
MANY = 100_000  # pictures for which a CPU takes half an hour at the size of PHOTO
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
        settings = resolve({}, preset or SMALL)
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
    """The preset that fits the data of a scan, and why: by the labels, and by the number and size of the pictures."""
    manifest = manifest_of(run)
    multi_label, samples = manifest.task == "multi", manifest.samples
    labels = "several labels" if multi_label else "one label"
    side = int(samples[["width", "height"]].min(axis=1).median()) if len(samples) else 0
    name, size = SMALL, f"pictures of {side} px"
    if side > NATURAL:
        if len(samples) <= MANY or _has_gpu():
            name, size = PHOTO, f"photographs of {side} px"
        else:
            size = f"{len(samples):,} pictures without a GPU (`--preset photo` is slower and more accurate)"
    return f"{name}-multi" if multi_label else name, f"{size} with {labels}"


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
