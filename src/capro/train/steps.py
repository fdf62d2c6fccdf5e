"""The objectives of the three steps: from a batch to loss terms, and what follows the step.

Step 1 `WebLabels`, step 2 `Prototypes`, step 3 `ClassifierOnly`; the loop runs any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from capro.config import FinetuneSettings, TrainSettings
from capro.labels import fused_score, with_text
from capro.losses import instance_loss
from capro.nets.dictionary import Dictionary
from capro.nets.siamese import Siamese
from capro.prototypes import unit
from capro.references import Mixture, Outputs, provider
from capro.runs import seed_for
from capro.train.batches import Batch, Inputs, plain_batches, slices
from capro.train.ranks import Ranks
from capro.train.tasks import Task
from capro.witness import TextWitness

EVAL_BATCH = 256
FRAMED_ON = 4096  # samples of which `Frame` takes the mean


class Objective(Protocol):
    """What the loop trains."""

    net: Siamese
    keys: bool  # whether batches need key views
    weights: Mapping[str, float]  # lambda of each loss term

    def parameters(self) -> list[nn.Parameter]:
        """What the optimiser may change."""
        ...

    def begin_epoch(self, epoch: int, *, resumed: bool) -> None:
        """Called before an epoch, or where a run resumes within one."""
        ...

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Loss terms of a batch."""
        ...

    def after(self, batch: Batch) -> None:
        """Called after the optimiser's step."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Everything beside weights that a resumed run needs; the tensors themselves, to be filled."""
        ...

    def restored(self) -> None:
        """Called after ``state`` was filled from a checkpoint."""
        ...

    def statistics(self) -> dict[str, float]:
        """Numbers of the epoch that has ended."""
        ...


class WebLabels:
    """Step 1: L_cls + L_prj on the labels as they are (Eq. 1). Also trains heads on anchors."""

    keys = False

    def __init__(
        self, net: Siamese, task: Task, labels: Tensor, ranks: Ranks, *,
        lambda_prj: float, freeze: bool = False,
    ) -> None:  # fmt: skip
        self.net, self._task, self._labels, self._ranks = net, task, labels, ranks
        self._freeze = freeze
        self.weights: Mapping[str, float] = {"prj": lambda_prj}

    def parameters(self) -> list[nn.Parameter]:
        return [*self.net.encoder.parameters(), *self.net.heads.parameters()]

    def begin_epoch(self, epoch: int, *, resumed: bool) -> None:
        del epoch, resumed
        self.net.freeze_encoder(self._freeze)
        self.net.train()

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        y = _rows(self._labels, batch.samples)
        out = self.net(batch.query).query
        share = len(batch.everyone) / self._ranks.count
        clean = _clean(self._task, _rows(self._labels, batch.everyone), self._ranks)
        return {
            "cls": self._task.cls(out.p, y, clean),
            "prj": self._task.prj(out, y, clean, share),
        }

    def after(self, batch: Batch) -> None:
        del batch

    def state(self) -> dict[str, Tensor]:
        return {}

    def restored(self) -> None:
        pass

    def statistics(self) -> dict[str, float]:
        return {}


class Prototypes:
    """Step 2: all terms, label correction, prototypes polished and keys enqueued after each step.

    Args:
        net: Networks as the start of step 2 left them.
        task: One label or several.
        labels: Web labels of the training rows.
        anchored: Who is an anchor (of which class).
        inputs: For embedding anchors and filling the dictionary without augmentation.
        positions: Manifest position of each training row.
        settings: Of step 2.
        ranks: The ranks.
        tau: Temperature.
        seed: Of the run.
        witness: What the texts say, for a ``text_weight`` above 0; one label only.
    """

    keys = True

    def __init__(
        self, net: Siamese, task: Task, labels: Tensor, anchored: Tensor, inputs: Inputs,
        positions: NDArray[np.int64], settings: TrainSettings, ranks: Ranks, *,
        tau: float, seed: int, witness: TextWitness | None = None,
    ) -> None:  # fmt: skip
        self.net, self._task, self._ranks, self._settings = net, task, ranks, settings
        self._witness = witness
        self._labels, self._anchored = labels, anchored
        self._inputs, self._positions, self._tau = inputs, positions, tau
        self._device = labels.device
        self._seed = seed_for(seed, "mixup")
        self._reference = provider(
            settings.reference, tau=tau, alpha=settings.alpha, to_classifier=settings.bts_classifier
        )
        self.weights: Mapping[str, float] = {
            "bts": settings.lambda_bts,
            "prj": settings.lambda_prj,
            "pro": settings.lambda_pro,
            "ins": settings.lambda_ins,
        }
        self._pseudo = labels.clone()  # the label that each sample last had
        self._protect = settings.policy == "capro"
        self._decisions = task.unchanged(labels, anchored, protect=self._protect)
        self._pending: tuple[Tensor, Tensor, Tensor] | None = None
        net.eval()
        self._prototypes = self._from_anchors()
        size = min(settings.queue, len(labels))  # a set smaller than the dictionary fills it once
        self._dictionary = Dictionary(size, net.heads.embedding_dim).to(self._device)
        self._fill(seed)

    @property
    def prototypes(self) -> Tensor:
        """(C, d_p), or (C, 2, d_p) for several labels."""
        return self._prototypes

    def parameters(self) -> list[nn.Parameter]:
        return [*self.net.encoder.parameters(), *self.net.heads.parameters()]

    def begin_epoch(self, epoch: int, *, resumed: bool) -> None:
        if self._settings.update_every == 0 and not resumed:
            self.net.eval()  # renewed from the anchors' latest embeddings, and from nobody else
            self._prototypes.copy_(self._from_anchors())
        self.net.freeze_encoder(epoch < self._settings.frozen_epochs)
        self.net.train()

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        settings, task = self._settings, self._task
        y, anchored = _rows(self._labels, batch.samples), _rows(self._anchored, batch.samples)
        out, z_key = self.net(batch.query, batch.key)
        sizes = [part.stop - part.start for part in slices(len(batch.everyone), self._ranks.count)]
        shuffled = self._ranks.gather(z_key, sizes)  # row i is the key of key_order[i]
        keys = torch.empty_like(shuffled)
        keys[torch.from_numpy(batch.key_order).to(self._device)] = shuffled

        labels, decisions = y, task.unchanged(y, anchored, protect=self._protect)
        if batch.epoch >= settings.correct_after:
            with torch.no_grad():
                r = task.similarity(out.z, out.z_c, self._prototypes)
                o = fused_score(task.probabilities(out.p), r, alpha=settings.alpha)
                if self._witness is not None:
                    t = self._witness.of(batch.samples).to(o)
                    o = with_text(o, t, weight=settings.text_weight)
                labels, decisions = task.adjust(
                    o, y, anchored, gamma=settings.gamma, protect=self._protect
                )
        everyones = self._ranks.gather(labels, sizes)
        clean = _clean(task, everyones, self._ranks)
        share = len(batch.everyone) / self._ranks.count

        terms = {"cls": task.cls(out.p, labels, clean)}
        if settings.lambda_prj:  # a term without weight costs nothing and can break nothing
            terms["prj"] = task.prj(out, labels, clean, share)
        if settings.lambda_pro:
            terms["pro"] = task.pro(out, self._prototypes, labels, clean)
        if settings.lambda_ins:
            terms["ins"] = instance_loss(
                out.z, keys[batch.mine], self._dictionary.keys, tau=self._tau, count=share
            )
        if settings.lambda_bts and settings.reference != "none":
            terms["bts"] = self._reference_loss(batch, out, labels, clean)

        embeddings = task.embeddings(out.z, out.z_c).detach()
        rows = torch.from_numpy(batch.everyone).to(self._device)
        self._pseudo[rows] = everyones
        self._decisions[rows] = self._ranks.gather(decisions, sizes)
        self._pending = (keys, self._ranks.gather(embeddings, sizes), everyones)
        return terms

    def _reference_loss(self, batch: Batch, out: Any, labels: Tensor, clean: Tensor) -> Tensor:
        reference = self._reference
        extra: dict[str, Any] = {}
        if reference.uses_dictionary:
            with torch.no_grad():
                keys, heads = self._dictionary.keys, self.net.heads
                extra["keys"] = keys
                extra["q_keys"] = self._task.probabilities(heads.auxiliary(keys))
                extra["r_keys"] = self._task.key_similarity(keys, heads, self._prototypes)
        if reference.mixes:
            generator = torch.Generator(self._device)
            generator.manual_seed(seed_for(self._seed, batch.epoch, batch.step, self._ranks.index))
            mixture: Mixture | None = reference.mix(len(batch.query), generator)
            if mixture is not None:
                mixed = self.net.encoder(mixture.inputs(batch.query))
                extra |= {"mixture": mixture, "p_mixed_logits": self.net.heads.classifier(mixed)}
        outputs = Outputs(
            p_logits=out.p, q_logits=out.q, v=out.v, z=out.z, labels=labels,
            pos_weight=getattr(self._task, "pos_weight", None), **extra,
        )  # fmt: skip
        return reference.loss(outputs, count=clean).loss

    def after(self, batch: Batch) -> None:
        settings = self._settings
        if self._pending is None:
            return
        keys, embeddings, labels = self._pending
        self._pending = None
        self.net.update_key(settings.key_momentum)
        self._dictionary.enqueue(keys)
        every = settings.update_every
        if every and (batch.epoch + 1) % every == 0:  # in each u-th epoch, the last of u
            polished = self._task.polish(
                self._prototypes, embeddings, labels, settings.prototype_momentum
            )
            self._prototypes.copy_(polished)

    def state(self) -> dict[str, Tensor]:
        return {
            "prototypes": self._prototypes,
            "pseudo": self._pseudo,
            "decisions": self._decisions,
            "anchored": self._anchored,
            **{f"dictionary.{name}": t for name, t in self._dictionary.state_dict().items()},
        }

    def restored(self) -> None:
        """The dictionary's counters follow its tensors."""
        self._dictionary.load_state_dict(self._dictionary.state_dict())

    def statistics(self) -> dict[str, float]:
        """Share of labels by the rule's last decision on each."""
        return self._task.shares(self._decisions, self._labels, self._pseudo)

    @torch.no_grad()
    def _from_anchors(self) -> Tensor:
        """Prototypes from the anchors' key embeddings, unaugmented, eval mode."""
        member = self._anchored if self._anchored.ndim == 1 else self._anchored.any(dim=1)
        rows = torch.nonzero(member).flatten().cpu().numpy()
        sums: Tensor | None = None
        for block, x in self._plain(rows):
            z = self.net.embed_key(x)
            z_c = self.net.heads.subspaces(z) if self.net.heads.subspaces is not None else None
            at = rows[block]
            part = self._task.sums(z, z_c, _rows(self._labels, at), _rows(self._anchored, at))
            sums = part if sums is None else sums + part
        if sums is None:  # no anchor at all: every class is absent until samples polish it
            width = self.net.heads.embedding_dim
            shape = (
                (self._task.classes, width)
                if self._labels.ndim == 1
                else (self._task.classes, 2, width)
            )
            return torch.zeros(shape, device=self._device)
        return unit(sums)

    @torch.no_grad()
    def _fill(self, seed: int) -> None:
        """Fill the dictionary with keys of real samples: random vectors would only add noise."""
        rng = np.random.default_rng(seed_for(seed, "dictionary"))
        rows = rng.permutation(len(self._labels))[: self._dictionary.size]
        for _, x in self._plain(rows):
            self._dictionary.enqueue(self.net.embed_key(x))

    def _plain(self, rows: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        return plain_batches(
            self._inputs, self._positions[rows], size=EVAL_BATCH, device=self._device
        )


class Frame(NamedTuple):
    """Coordinates in which a linear classifier on v is quick to train: W (v - center) + scale b.

    Features after a ReLU have a large mean. A classifier on v itself learns its bias through that mean,
    which keeps the rate low, and weight decay then holds the bias back. The scale lets the bias learn as
    fast as the fastest direction of W, no faster, so the rate need not be lower for it.
    """

    center: Tensor  # (d_v,), mean of v
    scale: Tensor  # (), largest standard deviation of v in any direction, 1 at least

    @classmethod
    @torch.no_grad()
    def of(cls, net: Siamese, inputs: Inputs, positions: NDArray[np.int64], ranks: Ranks) -> Frame:
        """Of unaugmented features of samples that are spread evenly over the set."""
        net.eval()
        chosen = np.linspace(0, len(positions) - 1, min(len(positions), FRAMED_ON)).astype(np.int64)
        blocks = plain_batches(
            inputs, positions[chosen], size=EVAL_BATCH, device=ranks.accelerator.device
        )
        v = torch.cat([net.encoder(x).float() for _, x in blocks])
        center = v.mean(dim=0)
        away = v - center
        spread = torch.linalg.matrix_norm(away.T @ away / len(v), ord=2).sqrt()
        frame = cls(center, spread.clamp(min=1))
        ranks.align(frame)
        return frame


class ClassifierOnly:
    """Step 3: L_cls on the cleaned labels; the encoder in eval mode, so that statistics stay.

    Args:
        net: Networks as step 2 left them.
        task: One label or several.
        labels: Cleaned labels of the training rows.
        ranks: The ranks.
        frame: Trains in these coordinates; `finish` brings the classifier back to v's.
    """

    keys = False
    weights: Mapping[str, float] = {}

    def __init__(
        self, net: Siamese, task: Task, labels: Tensor, ranks: Ranks, frame: Frame | None = None
    ) -> None:
        self.net, self._task, self._labels, self._ranks = net, task, labels, ranks
        self._frame = frame
        if frame is not None:
            classifier = net.heads.classifier
            with torch.no_grad():
                classifier.bias.add_(classifier.weight @ frame.center).div_(frame.scale)

    @classmethod
    def by(
        cls, settings: FinetuneSettings, net: Siamese, task: Task, labels: Tensor, ranks: Ranks,
        inputs: Inputs, positions: NDArray[np.int64],
    ) -> ClassifierOnly:  # fmt: skip
        """As the settings of step 3 say; ``positions`` are those of the labels in the manifest."""
        centred = settings.centred and len(positions)
        frame = Frame.of(net, inputs, positions, ranks) if centred else None
        return cls(net, task.balanced(labels, settings.balance), labels, ranks, frame)

    @torch.no_grad()
    def finish(self) -> None:
        """After training: the classifier as a function of v again."""
        if self._frame is not None:
            classifier = self.net.heads.classifier
            classifier.bias.mul_(self._frame.scale).sub_(classifier.weight @ self._frame.center)
            self._frame = None

    def parameters(self) -> list[nn.Parameter]:
        return list(self.net.heads.classifier.parameters())

    def begin_epoch(self, epoch: int, *, resumed: bool) -> None:
        del epoch, resumed
        self.net.freeze_encoder(True)
        self.net.eval()

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            v = self.net.encoder(batch.query)
        y = _rows(self._labels, batch.samples)
        clean = _clean(self._task, _rows(self._labels, batch.everyone), self._ranks)
        return {"cls": self._task.cls(self._logits(v), y, clean)}

    def _logits(self, v: Tensor) -> Tensor:
        classifier = self.net.heads.classifier
        if self._frame is None:
            logits: Tensor = classifier(v)
            return logits
        center, scale = self._frame
        return functional.linear(v.float() - center, classifier.weight, scale * classifier.bias)

    def after(self, batch: Batch) -> None:
        del batch

    def state(self) -> dict[str, Tensor]:
        return {} if self._frame is None else self._frame._asdict()

    def restored(self) -> None:
        pass

    def statistics(self) -> dict[str, float]:
        return {}


def _clean(task: Task, everyones: Tensor, ranks: Ranks) -> Tensor:
    """Samples per rank that are not out, of the labels of the global batch: the terms' divisor."""
    return (~task.out(everyones)).sum() / ranks.count


def _rows(values: Tensor, rows: NDArray[np.int64]) -> Tensor:
    return values[torch.from_numpy(rows).to(values.device)]
