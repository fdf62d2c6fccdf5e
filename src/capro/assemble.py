"""What stages build from a run directory: ranks, training rows, labels, inputs, networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from capro import launched
from capro.config import Settings
from capro.data.manifest import Manifest
from capro.data.pixels import Pixels
from capro.errors import ConfigError, DataError, RunError
from capro.losses import positive_weights
from capro.nets.backbones import Backbone, Cost, FeatureBackbone, cost, load_backbone
from capro.nets.heads import Heads
from capro.nets.siamese import Siamese
from capro.runs import Run, atomic_path, read_array, read_json, seed_for
from capro.text.classes import ClassSpec
from capro.train.batches import FeatureInputs, ImageInputs, Inputs
from capro.train.ranks import Ranks
from capro.train.tasks import MultiLabel, SingleLabel, Task


def ranks_of(settings: Settings, folder: Path | None = None) -> Ranks:
    """This process among those that ``accelerate launch`` or ``torchrun`` started."""
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs

    check_tracker(settings)
    tracker = settings.log.tracker
    wanted = settings.net.precision
    precision = _precision() if wanted == "auto" else wanted
    if precision == "fp16" and not _has_device():
        raise ConfigError("net.precision: fp16 needs a GPU", hint="--set net.precision=auto")
    # the main rank may work alone for hours (scan, match) while the others wait for it
    patience = InitProcessGroupKwargs(timeout=timedelta(days=7))
    accelerator = Accelerator(
        cpu=launched.count() > 1 and not _has_device(),  # else accelerate starts no group of CPUs
        mixed_precision="no" if precision == "fp32" else precision,
        log_with=None if tracker == "none" or folder is None else tracker,
        project_dir=None if folder is None else str(folder),
        kwargs_handlers=[patience],
    )
    if accelerator.num_processes != launched.count():
        raise RunError(
            f"{launched.count()} processes were launched, but each sees {accelerator.num_processes}",
            hint="launch with `torchrun --nproc_per_node N -m capro ...` or `accelerate launch`",
        )
    return Ranks(accelerator)


def _has_device() -> bool:
    """Whether ranks can have a device of their own: a Mac's one is no such."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return found is not None and found.type != "mps"


def _precision() -> str:
    """Half precision only where the hardware is fast at it: bf16 on a CPU is a hundred times slower."""
    if not torch.cuda.is_available():
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


@dataclass(frozen=True)
class TrainingSet:
    """The training rows: their manifest positions and labels."""

    positions: NDArray[np.int64]  # (n,)
    ids: list[str]  # of all samples, by manifest position
    classes: list[str]
    labels: Tensor  # (n,) or (n, C), see train/tasks.py

    @property
    def multi_label(self) -> bool:
        """Whether samples carry any number of labels."""
        return self.labels.ndim == 2

    def task(self, tau: float) -> Task:
        """Losses and rule that fit the labels."""
        if not self.multi_label:
            return SingleLabel(len(self.classes), tau)
        counts = (self.labels > 0).sum(dim=0)
        return MultiLabel(len(self.classes), tau, positive_weights(counts, len(self.labels)))


def manifest_of(run: Run) -> Manifest:
    """The manifest of a run that has been scanned."""
    run.need("scan")
    return Manifest.load(run.folder("scan") / "manifest.parquet")


def classes_of(run: Run) -> list[ClassSpec]:
    """The classes of a run, in the order of every class axis."""
    run.need("classes")
    return [ClassSpec(**value) for value in read_json(run.folder("classes") / "classes.json")]


def training_set(run: Run, manifest: Manifest, device: torch.device | str = "cpu") -> TrainingSet:
    """The rows of the train split with their web labels."""
    names = [spec.name for spec in classes_of(run)]
    positions = manifest.split("train")
    if not len(positions):
        raise DataError(
            "no training sample in the manifest", hint="check --split-column, or give train data"
        )
    labels = encode_labels(manifest, positions, names)
    return TrainingSet(positions, manifest.samples["id"].tolist(), names, labels.to(device))


def encode_labels(manifest: Manifest, positions: NDArray[np.int64], names: Sequence[str]) -> Tensor:
    """Labels as class numbers, (n,), or membership, (n, C); names outside the list are an error."""
    index = {name: number for number, name in enumerate(names)}
    rows = manifest.samples["labels"].iloc[positions].tolist()
    unknown = sorted({label for row in rows for label in row if label not in index})
    if unknown:
        raise DataError(
            f"{len(unknown)} labels are not in the class list, for example {unknown[0]!r}",
            hint="add them to classes.yaml, or leave data.classes unset to take them from the data",
        )
    if manifest.task == "single":
        return torch.tensor([index[row[0]] if row else -1 for row in rows], dtype=torch.int64)
    members = torch.zeros(len(rows), len(names), dtype=torch.int64)
    for number, row in enumerate(rows):
        members[number, [index[label] for label in row]] = 1
    return members


# --- inputs ---------------------------------------------------------------------------------------


def pretrained(settings: Settings) -> Backbone:
    """The backbone by name, with local weights where they are given; seeded where it is random."""
    # a frozen encoder is data: its cached features serve trainings of any seed
    seed = settings.seed if settings.net.mode == "full" else 0
    torch.manual_seed(seed_for(seed, "backbone"))
    weights = Path(settings.net.weights) if settings.net.weights else None
    return load_backbone(settings.net.backbone, image_size=settings.views.size, weights=weights)


def pixels_of(run: Run, manifest: Manifest, size: int) -> Pixels:
    """Decoded images: from the cache if there is one."""
    folder = run.folder("pixels")
    cache = folder if run.finished("pixels") and (folder / "index.npy").exists() else None
    # twice the input side: a random crop of a quarter of the area still has every pixel
    return Pixels(manifest, run.settings.scan, min_side=2 * size, cache=cache)


def inputs_of(run: Run, manifest: Manifest, backbone: Backbone) -> Inputs:
    """Where network input comes from: cached features in frozen mode, else images."""
    settings = run.settings
    if settings.net.mode == "full":
        pixels = pixels_of(run, manifest, settings.views.size or backbone.size)
        return ImageInputs(pixels, backbone, settings.views, seed=settings.seed)
    folder = run.folder("features")
    run.need("features")
    rows = np.full(len(manifest.samples), -1, dtype=np.int64)
    train = manifest.split("train")
    rows[train] = np.arange(len(train))
    return FeatureInputs(
        read_array(folder / "plain.npy"),
        read_array(folder / "query.npy"),
        read_array(folder / "key.npy"),
        rows,
        seed=settings.seed,
    )


# --- networks -------------------------------------------------------------------------------------


def new_heads(settings: Settings, feature_dim: int, training: TrainingSet, *, name: str) -> Heads:
    """Fresh heads; the same for the same seed and name."""
    torch.manual_seed(seed_for(settings.seed, "heads", name) % 2**63)
    return Heads(
        feature_dim,
        settings.net.embedding_dim,
        len(training.classes),
        tau=settings.net.tau,
        multi_label=training.multi_label,
    )


def new_net(run: Run, training: TrainingSet) -> Siamese:
    """The networks as step 1 begins with them."""
    settings = run.settings
    backbone: Backbone
    if settings.net.mode == "frozen":
        backbone = FeatureBackbone(read_array(run.folder("features") / "plain.npy").shape[1])
    else:
        backbone = pretrained(settings)
    return Siamese(backbone, new_heads(settings, backbone.dim, training, name="step1"))


def save_net(path: Path, net: Siamese, extra: dict[str, Tensor] | None = None) -> None:
    """Encoder and heads of the query branch, and extra tensors, as safetensors."""
    tensors = {f"encoder.{name}": tensor for name, tensor in net.encoder.state_dict().items()}
    tensors |= {f"heads.{name}": tensor for name, tensor in net.heads.state_dict().items()}
    tensors |= extra or {}
    owned = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with atomic_path(path) as temporary:
        save_file(owned, temporary)


def load_net(path: Path, net: Siamese) -> dict[str, Tensor]:
    """Fill encoder and heads, make the key branch follow; returns the extra tensors."""
    if not path.exists():
        raise RunError(f"{path}: no such file", hint="run the stage that makes it again")
    tensors = load_file(path)
    for name, module in (("encoder", net.encoder), ("heads", net.heads)):
        part = {
            key.removeprefix(f"{name}."): tensor
            for key, tensor in tensors.items()
            if key.startswith(f"{name}.")
        }
        module.load_state_dict(part)
    net.reset_key()
    return {
        key: tensor for key, tensor in tensors.items() if not key.startswith(("encoder.", "heads."))
    }


# --- what a run tells -----------------------------------------------------------------------------

Log = Callable[[dict[str, float], int], None]


def check_tracker(settings: Settings) -> None:
    """Refuse a tracker whose package is missing: accelerate would leave it out silently."""
    wanted = settings.log.tracker
    if wanted == "none":
        return
    from accelerate.tracking import get_available_trackers

    if wanted not in {str(kind.value) for kind in get_available_trackers()}:
        package = "capro[trackers]" if wanted == "tensorboard" else wanted
        raise ConfigError(
            f"log.tracker: the package of '{wanted}' is not installed",
            hint=f"pip install '{package}', or --set log.tracker=none",
        )


@contextmanager
def tracked(ranks: Ranks, name: str, settings: Settings) -> Iterator[Log]:
    """A function that sends an epoch's figures to the tracker, if one was asked for.

    TensorBoard gets one folder per stage in the run's ``log``.
    """
    wanted, accelerator = settings.log.tracker, ranks.accelerator
    if wanted == "none":
        yield lambda _values, _step: None
        return
    accelerator.init_trackers(name if wanted == "tensorboard" else "capro")
    try:
        yield lambda values, step: accelerator.log(
            {f"{name}/{key}": value for key, value in values.items()}, step=step
        )
    finally:  # not accelerator.end_training(): it also ends the process group
        for tracker in accelerator.trackers:
            tracker.finish()


def encoder_cost(backbone: Backbone, size: int) -> dict[str, Any]:
    """Name, parameters and multiply-adds of an image encoder, as stage.json keeps them."""
    # two images: BatchNorm refuses one where only a pixel is left
    found = cost(backbone, torch.zeros(2, 3, size, size))
    return {"name": backbone.name, **found._asdict(), "at": f"{size} px"}


def cost_line(kind: str, found: dict[str, Any]) -> str:
    """A line for the reader.

    >>> cost_line("encoder", {"name": "a", "parameters": 25_600_000, "gflops": 3.8, "at": "224 px"})
    'encoder a: 25.6 M parameters, 3.80 GFLOPs at 224 px'
    """
    figures = Cost(found["parameters"], found["gflops"])
    return f"{kind} {found['name']}: {figures} at {found['at']}"
