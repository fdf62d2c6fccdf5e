"""VSGraph: labels corrected on a visual-semantic graph (Yang et al., "Webly Supervised Image Classification
with Metadata: Automatic Noisy Label Correction via Visual-Semantic Graph", ACM MM 2020).

Of the paper only the abstract, a figure's caption and what the CAPro paper says of it could be found here. This
follows the label corrector and the scripts that its authors released with SCC, which name this paper.

- Visual-semantic graph: the k nearest others of each sample by step 1's features, joined where either lists the
  other. A text becomes the mean of its neighbours' texts, all alike and without its own.
- Seeds: the 10 samples of each class whose text is then nearest to the class's text, by cosine.
- Graph network: a linear layer on [x; mean of the neighbours' x, weighed by cosine], trained on the seeds alone by
  binary cross-entropy, in which every class counts alike. It carries their labels to all other samples: the GNN
  labels.
- Label refinement: the mean of GNN and CNN beliefs, those of the graph network and of step 1's classifier; the
  GNN's alone where it is sure (above 0.7 for some class).
- Step 1's networks learn on with the refined beliefs as soft labels, for step 1's epochs at half of its rate, with
  weights by which every class counts alike.

So it learns for twice as long as vanilla. A sample that carries a class without a seed (no text is near to it)
keeps its web label, and nobody else gets that class.
Left out: repeating all of it with the new networks, which the scripts show but do not do.
Different: k is `match.k` (5 in the scripts, the sample itself included); the texts are encoded by the run's
encoder; cross-entropy of softmax scores, to which soft labels are made to sum to one, as everywhere in the table
(theirs: sigmoids). Several labels: all soft labels are probabilities, and there are no weights.
Cost: O(N k d) for the means; a step of the graph network sees the seeds alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from torch import Tensor, nn
from torch.nn import functional

from capro.bench.baselines.objectives import SoftLabels, balanced_weights
from capro.bench.baselines.small_nets import minimise
from capro.bench.baselines.work import Made, Work
from capro.config import Settings
from capro.core.anchors import match
from capro.graph.neighbors import nearest, unit_rows
from capro.graph.smooth import adjacency, smooth
from capro.models.siamese import Siamese
from capro.pipeline.artefacts import CLASS_TEXTS, TEXTS, VISUAL
from capro.pipeline.checksums import seed_for

SEEDS = 10  # of a class
STEPS, RATE, DECAY = 5000, 0.01, 1e-6
SURE = 0.7


def mean_operator(graph: csr_array) -> csr_array:
    """Means over neighbours, D^-1 A; zero for a sample without any.

    >>> mean_operator(csr_array([[0.0, 0.2, 0.6], [0.2, 0.0, 0.0], [0.0, 0.0, 0.0]])).toarray().tolist()
    [[0.0, 0.25, 0.75], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    degree = graph.sum(axis=1)
    found: csr_array = (diags_array(1 / np.where(degree > 0, degree, 1)) @ graph).tocsr()
    return found


def seeded(work: Work, graph: csr_array) -> Tensor:
    """Who is a seed (of which class), in the shape of the labels."""
    run, training = work.run, work.training
    alike = csr_array((np.ones_like(graph.data), graph.indices, graph.indptr), shape=graph.shape)
    texts = smooth(mean_operator(alike), unit_rows(np.array(run.read(TEXTS))))
    near = match(
        texts, run.read(CLASS_TEXTS), training.labels.cpu().numpy(), k=run.settings.match.k, top_k=SEEDS,
        ids=training.row_ids, rerank=False,
    )  # fmt: skip
    rows, of = (torch.from_numpy(part[near.by == "text"]).long() for part in (near.sample, near.label))
    found = torch.zeros_like(training.labels, dtype=torch.bool)
    found[(rows, of) if training.multi_label else (rows,)] = True
    return found


def graph_beliefs(
    visual: NDArray[np.float32], graph: csr_array, labels: Tensor, seeds: Tensor, classes: int, *, work: Work
) -> Tensor:
    """Beliefs of a graph network that has learnt from the seeds, (n, C).

    Args:
        visual: Features, (n, d_v).
        graph: A, (n, n).
        labels: Web labels, (n,) or (n, C).
        seeds: Who is a seed (of which class), same shape.
        classes: C.
        work: For the seed and the progress.
    """
    x = unit_rows(visual)
    inputs = torch.from_numpy(np.hstack([x, mean_operator(graph) @ x]).astype(np.float32)).to(labels.device)
    targets = taught_labels(labels, seeds, classes)
    rows = (targets >= 0).any(dim=1)
    seen, taught = inputs[rows], targets[rows]
    weights = balanced_weights(labels[rows], classes)
    torch.manual_seed(seed_for(work.run.settings.seed, "vsgraph"))
    net = nn.Linear(inputs.shape[1], classes, bias=False).to(labels.device)

    def loss(_: int) -> Tensor:
        losses = functional.binary_cross_entropy_with_logits(
            net(seen), taught.clamp(min=0).to(seen), reduction="none"
        )
        return ((losses * (taught >= 0)).sum(dim=1) * weights).mean()

    minimise(net, loss, name="VSGraph: graph network", steps=STEPS, lr=RATE, decay=DECAY, bar=work.bar)
    with torch.no_grad():
        found: Tensor = net(inputs).sigmoid()
    return found


def taught_labels(labels: Tensor, seeds: Tensor, classes: int) -> Tensor:
    """What the graph network is taught, (n, C) in {0, 1}; -1 where it is taught nothing.

    One label: the seeds' own. Several: a seed's classes of which it is a seed, and those it
    does not carry; a class that it carries without being its seed may be wrong.

    >>> taught_labels(torch.tensor([2, 0]), torch.tensor([True, False]), 3).tolist()
    [[0, 0, 1], [-1, -1, -1]]
    >>> taught_labels(torch.tensor([[1, 1, 0]]), torch.tensor([[True, False, False]]), 3).tolist()
    [[1, -1, 0]]
    """
    if labels.ndim == 1:
        return torch.where(seeds[:, None], functional.one_hot(labels, classes), -1)
    member = seeds.any(dim=1, keepdim=True)
    return torch.where(member & (seeds | (labels == 0)), labels, -1)


def refined(labels: Tensor, seeds: Tensor, gnn: Tensor, cnn: Tensor) -> Tensor:
    """Soft labels by both beliefs, (n, C); a class without a seed is neither given nor taken.

    Args:
        labels: Web labels, (n,) or (n, C).
        seeds: Who is a seed (of which class), same shape.
        gnn: Beliefs of the graph network, (n, C).
        cnn: Beliefs of step 1's classifier, (n, C).
    """
    sure = (gnn > SURE).any(dim=1, keepdim=True)
    merged = torch.where(sure, gnn, (gnn + cnn) / 2)
    if labels.ndim == 2:
        return torch.where(seeds.any(dim=0), merged, labels.to(merged))
    known = torch.zeros(merged.shape[1], dtype=torch.bool, device=labels.device)
    known[labels[seeds]] = True
    web = functional.one_hot(labels, merged.shape[1]).to(merged)
    merged = merged * known
    merged = merged / merged.sum(dim=1, keepdim=True).clamp(min=torch.finfo(merged.dtype).tiny)
    return torch.where(known[labels][:, None], merged, web)


def own_settings(settings: Settings) -> dict[str, Any]:
    """The settings of the graph."""
    return {"match": settings.match.model_dump(include={"k", "exact_below"})}


def corrected(work: Work, net: Siamese) -> tuple[Tensor, Tensor]:
    """Soft labels of the training rows, (n, C), and who is a seed (of which class)."""
    training, chosen, run = work.training, work.run.settings.match, work.run
    visual, labels = np.array(run.read(VISUAL)), training.labels
    near = nearest(visual, chosen.k, exact_below=chosen.exact_below, seed=run.settings.seed)
    graph = adjacency(near, mutual=False)
    seeds = seeded(work, graph)
    if not seeds.any():  # no text is near to any class
        same = labels if training.multi_label else functional.one_hot(labels, len(training.classes))
        return same.float(), seeds
    gnn = graph_beliefs(visual, graph, labels, seeds, len(training.classes), work=work)
    return refined(labels, seeds, gnn, work.believed(net, training.positions)), seeds


def learn(work: Work) -> Made:
    """Correct the labels, then go on from step 1 with them."""
    net, training = work.step1(), work.training
    targets, seeds = corrected(work, net)
    if training.multi_label:
        found = (targets > 0.5).to(training.labels)
        changed = (found != training.labels).any(dim=1)
    else:
        found = targets.argmax(dim=1)
        changed = found != training.labels
    weights = balanced_weights(found, len(training.classes))
    objective = SoftLabels(net, work.task, targets, weights, work.ranks, seed=work.run.settings.seed)
    work.fit(objective, "VSGraph", schedule=work.second_schedule())
    return net, {"seeds": int(seeds.sum()), "changed": float(changed.float().mean())}
