"""SCC: self-contained confidence (Yang et al., "Webly Supervised Image Classification with Self-Contained
Confidence", ECCV 2020).

Of the paper only the abstract could be found here; this follows the authors' released scripts for offline SCC.

- Step 1 is their baseline. Its beliefs s about the unaugmented training pictures are computed once: the
  self-labels.
- The confidence of a sample is c = s_y^2, the squared belief in the web label. Its target is c y + (1 - c) s: a
  label that step 1 believes counts as it is, one that it doubts gives way to the self-label.
- Step 1's networks learn on with these targets at half of step 1's rate, without warm-up, with mix-up by Beta(0.2,
  0.2) of inputs and targets, and with weights by which every class counts alike.

Different: cross-entropy of softmax scores, as everywhere in the table (theirs: sigmoids, summed over classes); one
share of mix-up for a batch (theirs: one for each sample). Several labels, which the paper does not treat: the
confidence of each class by itself, and no weights.
The reference provider of the same name (`train.reference=scc`) has c = s_y and self-labels of the auxiliary classifier.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from capro.bench.baselines.objectives import SoftLabels, balanced_weights
from capro.bench.baselines.work import Made, Work

POWER, ALPHA = 2, 0.2


def soft_targets(beliefs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Targets c y + (1 - c) s, (n, C), and confidences c, (n, 1) or with several labels (n, C).

    >>> import torch
    >>> targets, confidence = soft_targets(torch.tensor([[0.5, 0.5], [0.1, 0.9]]), torch.tensor([0, 0]))
    >>> [[round(share, 3) for share in row] for row in targets.tolist()]
    [[0.625, 0.375], [0.109, 0.891]]
    """
    if labels.ndim == 1:
        y = functional.one_hot(labels, beliefs.shape[1]).to(beliefs)
        c = beliefs.gather(1, labels[:, None]) ** POWER
    else:
        y = labels.to(beliefs)
        c = (y * beliefs + (1 - y) * (1 - beliefs)) ** POWER
    return c * y + (1 - c) * beliefs, c


def learn(work: Work) -> Made:
    """Go on from step 1 with labels and self-labels, weighed by confidence."""
    training, net = work.training, work.step1()
    targets, confidence = soft_targets(work.believed(net, training.positions), training.labels)
    weights = balanced_weights(training.labels, len(training.classes))
    seed = work.run.settings.seed
    objective = SoftLabels(net, work.task, targets, weights, work.ranks, seed=seed, alpha=ALPHA)
    work.fit(objective, "SCC", schedule=work.second_schedule())
    return net, {"confidence": float(confidence.mean())}
