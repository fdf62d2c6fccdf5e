"""Step 2: prototypes, collective bootstrapping, label correction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.core.losses import instance_loss
from capro.core.prototypes import unit
from capro.core.references import Outputs, Provider
from capro.data.labels import kind_of
from capro.models.siamese import Dictionary, Siamese
from capro.pipeline.checksums import seed_for
from capro.pipeline.ranks import Ranks
from capro.train.batches import Batch, Inputs, forward_plain, plain_batches, slices
from capro.train.judgement import Judge
from capro.train.objectives import Objective, clean_share, mixture_of, rows_of


class PrototypeLearning(Objective):
    """All loss terms and the label rule; prototypes are polished and keys enqueued after each step.

    Args:
        net: Networks as the start of step 2 left them.
        judge: The label rule, with the task and the settings of step 2.
        reference: Provides what predictions are regularised towards.
        labels: Web labels of the training rows.
        anchored: Who is an anchor (of which class).
        inputs: For embedding anchors and filling the dictionary without augmentation.
        positions: Manifest position of each training row.
        ranks: The ranks.
        tau: Temperature.
        seed: Of the run.
    """

    keys = True

    def __init__(
        self, net: Siamese, judge: Judge, reference: Provider, labels: Tensor, anchored: Tensor,
        inputs: Inputs, positions: NDArray[np.int64], ranks: Ranks, *, tau: float, seed: int,
    ) -> None:  # fmt: skip
        self.net, self._judge, self._reference, self._ranks = net, judge, reference, ranks
        self._task, self._settings = judge.task, judge.settings
        self._labels, self._anchored = labels, anchored
        self._inputs, self._positions, self._tau = inputs, positions, tau
        self._device = labels.device
        self._seed = seed_for(seed, "mixup")
        settings = judge.settings
        self.weights = {name: getattr(settings, f"lambda_{name}") for name in ("prj", "pro", "ins")}
        self.weights |= reference.weights(settings.lambda_bts)
        self._pseudo = labels.clone()  # the label that each sample last had
        self._decisions = judge.unchanged(labels, anchored)
        net.eval()
        self.prototypes = self._from_anchors()  # (C, d_p), or multi-label (C, 2, d_p)
        size = min(settings.queue, len(labels))  # a set smaller than the dictionary fills it once
        self._dictionary = Dictionary(size, net.heads.embedding_dim).to(self._device)
        self._fill(seed)

    def begin_epoch(self, epoch: int, *, resumed: bool) -> None:
        if self._settings.update_every == 0 and not resumed:
            self.net.eval()  # renewed from the anchors' latest embeddings, and from nobody else
            self.prototypes.copy_(self._from_anchors())
        if not resumed and epoch >= self._settings.correct_after:
            self.net.eval()
            self._judge.refresh(self._features)
        self.net.freeze_encoder(epoch < self._settings.frozen_epochs)
        self.net.train()

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        settings, task = self._settings, self._task
        y, anchored = rows_of(self._labels, batch.samples), rows_of(self._anchored, batch.samples)
        out, z_key = self.net(batch.query, batch.key)
        sizes = [part.stop - part.start for part in slices(len(batch.everyone), self._ranks.count)]
        shuffled = self._ranks.gather(z_key, sizes)  # row i is the key of key_order[i]
        keys = torch.empty_like(shuffled)
        keys[torch.from_numpy(batch.key_order).to(self._device)] = shuffled

        labels, decisions = y, self._judge.unchanged(y, anchored)
        if batch.epoch >= settings.correct_after:
            scores = self._judge.scores(out, self.prototypes, batch.samples)
            labels, decisions = self._judge.decide(scores.fused, y, anchored)
        everyones = self._ranks.gather(labels, sizes)
        clean = clean_share(task, everyones, self._ranks)
        share = len(batch.everyone) / self._ranks.count

        terms = {"cls": task.cls(out.p, labels, clean)}
        if settings.lambda_prj:  # a term without weight costs nothing and can break nothing
            terms["prj"] = task.prj(out, labels, clean, share)
        if settings.lambda_pro:
            terms["pro"] = task.pro(out, self.prototypes, labels, clean)
        if settings.lambda_ins:
            terms["ins"] = instance_loss(
                out.z, keys[batch.mine], self._dictionary.keys, tau=self._tau, count=share
            )
        if settings.reference != "none":
            terms |= self._reference_losses(batch, out, labels, clean)

        rows = torch.from_numpy(batch.everyone).to(self._device)
        self._pseudo[rows] = everyones
        self._decisions[rows] = self._ranks.gather(decisions, sizes)
        self._step = (keys, self._ranks.gather(out.compared.detach(), sizes), everyones)  # for `after`
        return terms

    def _reference_losses(self, batch: Batch, out: Any, labels: Tensor, clean: Tensor) -> dict[str, Tensor]:
        """L_ref, and mix-up's loss where it stands beside it; those that have a weight."""
        reference = self._reference
        if not any(self.weights.get(name) for name in ("bts", "mix")):
            return {}
        extra: dict[str, Any] = {}
        if reference.uses_dictionary:
            with torch.no_grad():
                keys, heads = self._dictionary.keys, self.net.heads
                extra["keys"] = keys
                extra["q_keys"] = self._task.probabilities(heads.auxiliary(keys))
                extra["r_keys"] = self._task.similarity(heads.compared(keys), self.prototypes)
        if reference.mixes:
            mixture = mixture_of(reference, batch, self._ranks, self._seed)
            if mixture is not None:
                mixed = self.net.encoder(mixture.inputs(batch.query))
                extra |= {"mixture": mixture, "p_mixed_logits": self.net.heads.classifier(mixed)}
        outputs = Outputs(
            p_logits=out.p, q_logits=out.q, v=out.v, z=out.z, labels=labels,
            pos_weight=getattr(self._task, "pos_weight", None), **extra,
        )  # fmt: skip
        _, loss, mixed = reference.loss(outputs, count=clean)
        terms = {"bts": loss} | ({} if mixed is None else {"mix": mixed})
        return {name: term for name, term in terms.items() if self.weights[name]}

    def after(self, batch: Batch) -> None:
        settings = self._settings
        keys, embeddings, labels = self._step
        self.net.update_key(settings.key_momentum)
        self._dictionary.enqueue(keys)
        every = settings.update_every
        if every and (batch.epoch + 1) % every == 0:  # in each u-th epoch, the last of u
            polished = self._task.polish(self.prototypes, embeddings, labels, settings.prototype_momentum)
            self.prototypes.copy_(polished)

    def state(self) -> dict[str, Tensor]:
        return {
            "prototypes": self.prototypes,
            "pseudo": self._pseudo,
            "decisions": self._decisions,
            "anchored": self._anchored,
            **{f"dictionary.{name}": t for name, t in self._dictionary.state_dict().items()},
            **self._judge.state(),
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
        multi_label = kind_of(self._labels).multi_label
        member = self._anchored.any(dim=1) if multi_label else self._anchored
        rows = torch.nonzero(member).flatten().cpu().numpy()
        sides = (2,) if multi_label else ()  # negative and positive
        shape = (self._task.classes, *sides, self.net.heads.embedding_dim)
        sums = torch.zeros(shape, device=self._device)
        for block, x in self._plain(rows):
            e, at = self.net.heads.compared(self.net.embed_key(x)), rows[block]
            sums = sums + self._task.sums(e, rows_of(self._labels, at), rows_of(self._anchored, at))
        return unit(sums)  # zeros of a class without an anchor: it is absent until samples polish it

    @torch.no_grad()
    def _features(self) -> Tensor:
        """Features of all training rows, unaugmented, (n, d_v)."""
        encoder = self.net.encoder
        return forward_plain(encoder, self._inputs, self._positions, width=encoder.dim, device=self._device)

    @torch.no_grad()
    def _fill(self, seed: int) -> None:
        """Fill the dictionary with keys of real samples: random vectors would only add noise."""
        rng = np.random.default_rng(seed_for(seed, "dictionary"))
        rows = rng.permutation(len(self._labels))[: self._dictionary.size]
        for _, x in self._plain(rows):
            self._dictionary.enqueue(self.net.embed_key(x))

    def _plain(self, rows: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        return plain_batches(self._inputs, self._positions[rows], device=self._device)
