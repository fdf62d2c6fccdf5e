"""Multimodal: a classifier on pictures and on the text that they would have."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from capro.bench.baselines.work import Learned, Work, folds, minimise
from capro.errors import DataError
from capro.graph.neighbors import unit_rows
from capro.models.heads import unit_norm
from capro.models.siamese import Siamese
from capro.pipeline.artefacts import TEXTS
from capro.pipeline.checksums import seed_for
from capro.train.batches import Batch, BatchPlan
from capro.train.objectives import ClassifierOnly, rows_of

Floats = NDArray[np.float32]

PHRASES = 4096  # at most
DRAWN = 8  # texts that are looked at for each phrase: a million is not sorted for 4,096
BEST = 10  # phrases that make a context
WIDTH = 512  # of the generator's hidden layer
RATE, DECAY = 1e-3, 1e-4  # of the generator's training by Adam
FEWEST_STEPS = 200


def phrase_bank(texts: Floats, *, seed: int) -> Floats:
    """Different texts that are not empty, unit rows, (m, d_t), m <= 4,096."""
    rng = np.random.default_rng(seed_for(seed, "phrases"))
    rows = rng.permutation(np.flatnonzero(texts.any(axis=1)))[: DRAWN * PHRASES]
    different = np.unique(texts[rows], axis=0)
    if len(different) < 2:
        raise DataError(
            "the baseline multimodal learns from texts, and the training samples have fewer than two different ones",
            hint="leave its row out with --row",
        )
    chosen = np.sort(rng.permutation(len(different))[:PHRASES])
    return unit_rows(different[chosen])


class PhraseGenerator(nn.Module):
    """From features to a context in the space of texts.

    Args:
        v: Features of the training samples, (n, d_v): their mean and spread scale the input.
        phrases: Unit rows, (m, d_t).
        tau: Temperature of the phrases' scores.
    """

    def __init__(self, v: Tensor, phrases: Tensor, *, tau: float) -> None:
        super().__init__()
        self.tau = tau
        self.mean = nn.Buffer(v.mean(dim=0))
        self.spread = nn.Buffer(v.std().clamp(min=1e-6))
        self.phrases = nn.Buffer(phrases)
        self.layers = nn.Sequential(
            nn.Linear(v.shape[1], WIDTH), nn.ReLU(), nn.Linear(WIDTH, phrases.shape[1])
        )

    def scores(self, v: Tensor) -> Tensor:
        """Logits of the phrases, (b, d_v) -> (b, m)."""
        direction = unit_norm(self.layers((v - self.mean) / self.spread))
        return direction @ self.phrases.T / self.tau

    def forward(self, v: Tensor) -> Tensor:
        """The context, (b, d_v) -> (b, d_t), unit norm."""
        best, where = self.scores(v).topk(min(BEST, len(self.phrases)), dim=1)
        weights = best.softmax(dim=1)  # (b, 10)
        return unit_norm((weights[:, :, None] * self.phrases[where]).sum(dim=1))


class Joined(nn.Module):
    """A linear classifier on features and the context that they give.

    Args:
        generators: Two, fixed: of the samples of half 0 and of half 1.
        scale: Norm of the context beside v.
        width: d_v.
        classes: C.
    """

    def __init__(self, generators: list[PhraseGenerator], *, scale: float, width: int, classes: int) -> None:
        super().__init__()
        self.generators, self.scale = nn.ModuleList(generators), scale
        self.linear = nn.Linear(width + generators[0].phrases.shape[1], classes)

    def forward(self, v: Tensor, half: Tensor | None = None) -> Tensor:
        """Logits, (b, d_v) -> (b, C).

        Args:
            v: Features.
            half: In training, the half that each sample is in, (b,): the other half's generator is asked.
        """
        contexts = torch.stack([generator(v) for generator in self.generators])  # (2, b, d_t)
        if half is None:
            context = unit_norm(contexts.mean(dim=0))
        else:
            context = contexts[1 - half, torch.arange(len(v), device=v.device)]
        logits: Tensor = self.linear(torch.cat([v, self.scale * context], dim=1))
        return logits


class JoinedOnly(ClassifierOnly):
    """Web labels for the joined classifier; the encoder stays."""

    def __init__(self, work: Work, net: Siamese, joined: Joined, half: Tensor) -> None:
        super().__init__(net, work.task, work.training.labels, work.ranks)
        self._joined, self._half = joined, half

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            v = self.net.encoder(batch.query)
        logits = self._joined(v, rows_of(self._half, batch.samples))
        count = len(batch.everyone) / self._ranks.count
        return {"cls": self._task.cls(logits, rows_of(self._labels, batch.samples), count)}


def _trained_generator(work: Work, v: Tensor, texts: Floats, phrases: Tensor, half: int) -> PhraseGenerator:
    """A generator that has learnt the texts of half of the samples, (n, d_v) and (n, d_t)."""
    settings = work.run.settings
    torch.manual_seed(seed_for(settings.seed, "phrase generator", half) % 2**63)
    generator = PhraseGenerator(v, phrases, tau=settings.net.tau).to(work.device)
    rows = torch.from_numpy(np.flatnonzero(texts.any(axis=1))).to(work.device)
    if not len(rows):
        return generator
    s = torch.from_numpy(unit_rows(texts)).to(work.device)
    plan = BatchPlan(len(rows), settings.pretrain.batch_size, settings.seed)
    epochs = max(settings.pretrain.epochs, -(-FEWEST_STEPS // plan.steps))
    batches = [torch.from_numpy(batch) for epoch in range(epochs) for batch in plan.batches(epoch)]

    def loss(step: int) -> Tensor:
        chosen = rows[batches[step].to(work.device)]
        near = (s[chosen] @ phrases.T / generator.tau).softmax(dim=1)  # (b, m)
        return functional.cross_entropy(generator.scores(v[chosen]), near)

    name = f"phrase generator {half + 1} of 2"
    minimise(generator, loss, name=name, steps=len(batches), lr=RATE, decay=DECAY, bar=work.job.bar)
    return generator


def multimodal(work: Work) -> Learned:
    """Multimodal: context inferred from pixels (Shah et al., "Inferring Context from Pixels for Multimodal Image
    Classification", CIKM 2019).

    Of the paper only the abstract could be found here: a phrase generator maps pixels to a contextual phrase,
    trained on pictures with their queries and with a large output space; a multimodal model joins textual
    features of the phrase with visual features of the pixels. At test time there are pixels alone. The formulas
    are ours:

    - Phrases: up to 4,096 different texts of the training samples, as the run's text encoder has them.
    - Generator: two layers on step 1's features give a direction in the space of texts; phrases are scored by
      its cosine over tau. It learns, by cross-entropy, how near each phrase is to a sample's own text (a
      softmax of the same form). Its context is the mean of the ten best phrases, weighted by their scores'
      softmax, of unit norm.
    - A generator knows the texts of the pictures that it has learnt from better than those of new ones. So
      there are two, each taught by half of the samples: in training a sample's context is the other half's, at
      test time the mean of both.
    - Classifier: linear on [v; context], the context scaled to the mean norm of v; trained on web labels.

    Left out: training the image encoder together with the rest; it is step 1's and stays as it is, also where
    the encoder learns. Their phrase generator was trained on far more queries than a dataset has. One label
    (WebVision in the paper) and several (OpenImages).
    """
    settings, training, net = work.run.settings, work.training, work.step1()
    v = torch.from_numpy(work.features(training.positions, net)).to(work.device)
    texts = np.asarray(work.run.read(TEXTS), dtype=np.float32)
    phrases = torch.from_numpy(phrase_bank(texts, seed=settings.seed)).to(work.device)
    halves = folds(training.labels.cpu().numpy(), 2, seed=settings.seed)
    generators = [
        _trained_generator(work, v[torch.from_numpy(halves == half)], texts[halves == half], phrases, half)
        for half in range(2)
    ]
    torch.manual_seed(seed_for(settings.seed, "joined classifier") % 2**63)
    scale = float(v.norm(dim=1).mean())
    joined = Joined(generators, scale=scale, width=v.shape[1], classes=len(training.classes)).to(work.device)
    net.heads.classifier = joined  # type: ignore[assignment]
    half = torch.from_numpy(halves).to(work.device)
    work.fit(JoinedOnly(work, net, joined, half), "Multimodal")
    return net, {"phrases": len(phrases)}
