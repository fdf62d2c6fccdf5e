"""What every training starts from, built from a run directory: rows, labels, inputs, networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capro.config import Settings
from capro.core.anchors import anchor_choice
from capro.core.kept_scores import numbers_only
from capro.core.losses import positive_weights
from capro.data.labels import LabelKind, kind_of, labels_of
from capro.data.manifest import manifest_of
from capro.data.pixels import pixels_of
from capro.errors import DataError
from capro.models.backbones import Backbone, EncoderCost, FeatureBackbone, cost, load_backbone
from capro.models.classes import classes_of
from capro.models.heads import Heads
from capro.models.siamese import Siamese
from capro.pipeline.artefacts import ANCHORS, KEY_FEATURES, PLAIN_FEATURES, QUERY_FEATURES, Artefact
from capro.pipeline.checksums import seed_for
from capro.pipeline.ranks import ranks_of
from capro.pipeline.run import Run
from capro.train.batches import FeatureInputs, ImageInputs, Inputs, plain_batches
from capro.train.tasks import MultiLabelTask, SingleLabelTask, Task

Weights = Artefact[dict[str, Tensor]]


@dataclass(frozen=True)
class TrainingSet:
    """The training rows: their manifest positions and labels."""

    positions: NDArray[np.int64]  # (n,)
    ids: list[str]  # of all samples, by manifest position
    classes: list[str]
    labels: Tensor  # (n,) or (n, C), see data/labels.py

    @property
    def kind(self) -> LabelKind:
        """Single-label or multi-label."""
        return kind_of(self.labels)

    @property
    def multi_label(self) -> bool:
        """Whether a sample may carry any number of labels."""
        return self.kind.multi_label

    @property
    def row_ids(self) -> list[str]:
        """Sample ids by training row, (n,)."""
        return [self.ids[position] for position in self.positions]

    def id_of(self, row: int) -> str:
        """Sample id of a training row."""
        return self.ids[int(self.positions[row])]

    def task(self, tau: float) -> Task:
        """Losses and rule that fit the labels."""
        if not self.multi_label:
            return SingleLabelTask(len(self.classes), tau)
        counts = (self.labels > 0).sum(dim=0)
        return MultiLabelTask(len(self.classes), tau, positive_weights(counts, len(self.labels)))


def training_set(run: Run, device: torch.device | str = "cpu") -> TrainingSet:
    """The rows of the train split with their web labels."""
    manifest = manifest_of(run)
    names = [spec.name for spec in classes_of(run)]
    positions = manifest.split("train")
    if not len(positions):
        raise DataError(
            "no training sample in the manifest", hint="check --split-column, or add training data"
        )
    labels = torch.from_numpy(labels_of(manifest, positions, names))
    return TrainingSet(positions, manifest.samples["id"].tolist(), names, labels.to(device))


def anchored_of(run: Run, training: TrainingSet, *, by_text: bool = False) -> Tensor:
    """Who is an anchor (of which class), in the shape of the labels.

    ``by_text`` leaves out anchors that were not chosen by their text: these say nothing about the class's meaning.
    """
    frame = run.read(ANCHORS)
    if by_text:
        frame = frame[anchor_choice(frame) == "text"]
    anchored = torch.zeros_like(training.labels, dtype=torch.bool)
    rows, columns = (
        torch.from_numpy(frame[name].to_numpy(dtype=np.int64)).to(anchored.device)
        for name in ("row", "class_index")
    )
    anchored[(rows, columns) if training.multi_label else (rows,)] = True
    return anchored


# --- inputs ---------------------------------------------------------------------------------------


def pretrained(settings: Settings, name: str = "step1") -> Backbone:
    """The backbone, with local weights where they are given; where it is random, another name is another start."""
    # a frozen encoder is data: its cached features serve trainings of any seed
    seed = settings.seed if settings.net.mode == "full" else 0
    torch.manual_seed(seed_for(seed, "backbone", *([] if name == "step1" else [name])))
    return load_backbone(
        settings.net.backbone, image_size=settings.views.size, weights=settings.net.weights or None
    )


def image_inputs(run: Run, backbone: Backbone, *, seed: int) -> ImageInputs:
    """Images of a run as network input, at the size of the settings or the backbone's own."""
    settings = run.settings
    pixels = pixels_of(run, settings.views.size or backbone.size)
    return ImageInputs(pixels, backbone, settings.views, seed=seed)


def inputs_of(run: Run, backbone: Backbone) -> Inputs:
    """Where network input comes from: cached features in frozen mode, else images."""
    settings = run.settings
    if settings.net.mode == "full":
        return image_inputs(run, backbone, seed=settings.seed)
    plain = run.read(PLAIN_FEATURES)
    rows = np.full(len(plain), -1, dtype=np.int64)
    train = manifest_of(run).split("train")
    rows[train] = np.arange(len(train))
    query, key = run.read(QUERY_FEATURES), run.read(KEY_FEATURES)
    return FeatureInputs(plain, query, key, rows, seed=settings.seed)


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


def _cached_encoder(run: Run, training: TrainingSet) -> FeatureBackbone:
    """Stands for the frozen encoder; its centre is the mean feature of the training pictures."""
    plain = run.read(PLAIN_FEATURES)
    if not run.settings.net.centred:
        return FeatureBackbone(plain.shape[1])
    total = np.zeros(plain.shape[1])
    for begin in range(0, len(training.positions), 8192):
        total += plain[training.positions[begin : begin + 8192]].sum(axis=0, dtype=np.float64)
    center = torch.from_numpy(total / len(training.positions)).float()
    return FeatureBackbone(plain.shape[1], center)


def new_net(run: Run, training: TrainingSet, name: str = "step1") -> Siamese:
    """The networks as step 1 begins with them; another name is another start of all that is random."""
    settings = run.settings
    frozen = settings.net.mode == "frozen"
    backbone = _cached_encoder(run, training) if frozen else pretrained(settings, name)
    return Siamese(backbone, new_heads(settings, backbone.dim, training, name=name))


def net_state(net: Siamese, extra: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Encoder and heads of the query branch, and extra tensors, by name: what a model file holds."""
    return _kept_parts(net).state_dict() | (extra or {})


def load_net(run: Run, model: Weights, net: Siamese) -> dict[str, Tensor]:
    """Fill encoder and heads from a stage's model; the key branch follows. Returns the extra tensors."""
    tensors = run.read(model)
    own = [name for name in tensors if name.startswith(("encoder.", "heads."))]
    _kept_parts(net).load_state_dict({name: tensors.pop(name) for name in own})
    net.reset_key()
    return tensors


def _kept_parts(net: Siamese) -> nn.Module:
    return nn.ModuleDict({"encoder": net.encoder, "heads": net.heads})


# --- cost -----------------------------------------------------------------------------------------


def encoder_cost(backbone: Backbone, size: int) -> dict[str, Any]:
    """Name, parameters and multiply-adds of an image encoder, as stage.json keeps them."""
    # two images: BatchNorm refuses one where only a pixel is left
    figures = cost(backbone, torch.zeros(2, 3, size, size))
    return {"name": backbone.name, **figures._asdict(), "at": f"{size} px"}


def size_line(backbone: Backbone, size: int) -> str | None:
    """A line for the reader where pictures are smaller than those that a model of the hub or a folder was made for.

    >>> from capro.models.backbones import FeatureBackbone
    >>> size_line(FeatureBackbone(8), 128) is None
    True
    """
    if not backbone.own_size or size >= backbone.own_size:
        return None
    return (
        f"pictures have {size} px, the encoder's own size is {backbone.own_size} px: "
        "--set views.size=null uses that, which is slower and more accurate"
    )


def cost_line(kind: str, encoder: dict[str, Any]) -> str:
    """A line for the reader.

    >>> cost_line("encoder", {"name": "a", "parameters": 25_600_000, "gflops": 3.8, "at": "224 px"})
    'encoder a: 25.6 M parameters, 3.80 GFLOPs at 224 px'
    """
    figures = EncoderCost(encoder["parameters"], encoder["gflops"])
    return f"{kind} {encoder['name']}: {figures} at {encoder['at']}"


@torch.no_grad()
def scores_of(
    run: Run,
    training: TrainingSet,
    model: Weights,
    positions: NDArray[np.int64],
    inputs: Inputs | None = None,
) -> NDArray[np.float32]:
    """Classifier probabilities of samples, (n, C), unaugmented.

    Args:
        run: Whose networks.
        training: Classes and task.
        model: Weights.
        positions: Which samples.
        inputs: Where their input comes from; the run's own if unset.
    """
    device = ranks_of(run.settings).accelerator.device
    net = new_net(run, training).to(device)
    load_net(run, model, net)
    net.eval()
    task = training.task(run.settings.net.tau)
    source = inputs or inputs_of(run, net.encoder)
    parts = [
        task.probabilities(net(x).query.p).cpu().numpy()
        for _, x in plain_batches(source, positions, device=device)
    ]
    scores = np.concatenate(parts) if parts else np.zeros((0, len(training.classes)), np.float32)
    name = "number {}".format if inputs else (lambda row: training.ids[positions[row]])
    return numbers_only(scores, place=f"{run.path}: {model.stage}/{model.file}", name=name)
