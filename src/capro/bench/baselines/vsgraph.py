"""VSGraph: labels corrected on a visual-semantic graph (Yang et al., "Webly Supervised Image Classification
with Metadata: Automatic Noisy Label Correction via Visual-Semantic Graph", ACM MM 2020).

Of the paper only the abstract, a figure's caption and what the CAPro paper says of it could be found here. They
name the parts; layers, constants and the rule that joins both labels are ours.

- Visual-semantic graph: the k nearest others of each sample by step 1's features, joined where either lists
  the other; texts are smoothed over it.
- Anchors: the K samples of each class whose smoothed text is nearest to the class's text, by cosine.
- Graph network: two graph convolutions on the visual features, D^-1/2 (A + I) D^-1/2 X W, trained on the
  anchors alone. It carries their labels to all other samples: the GNN labels.
- Label refinement: the final label is the best class of the mean of GNN and CNN beliefs, those of the graph
  network and of step 1's classifier. Several labels: the classes whose mean is above one half.
- Step 1's networks go on with the final labels, by step 1's schedule.

A sample that carries a class without an anchor (no text is near to it) keeps its web label.
Left out: nothing that is known of it. Different: k and K are those of `match`; the texts are encoded by the
run's encoder.
Cost: O(N k d_v) a step of the graph network, which works on all samples at once; memory O(N d_v).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.nn import functional

from capro.bench.baselines.small_nets import minimise
from capro.bench.baselines.work import Made, Work
from capro.config import Settings
from capro.graph.neighbors import unit_rows
from capro.graph.smooth import enhance, smoothing_operator
from capro.method.anchors import match
from capro.nets.siamese import Siamese
from capro.run.artefacts import CLASS_TEXTS, TEXTS, VISUAL
from capro.run.fingerprints import seed_for
from capro.train.web_labels import WebLabels

HIDDEN, DROPOUT = 256, 0.5
STEPS, RATE, DECAY = 200, 0.01, 5e-4  # as Kipf and Welling train such networks


class GraphNetwork(nn.Module):
    """Two graph convolutions, (n, d_v) -> (n, C) logits.

    Args:
        operator: D^-1/2 (A + I) D^-1/2, (n, n), sparse.
        width: d_v.
        classes: C.
    """

    def __init__(self, operator: Tensor, width: int, classes: int) -> None:
        super().__init__()
        self._operator = operator
        self.first, self.second = nn.Linear(width, HIDDEN), nn.Linear(HIDDEN, classes)

    def forward(self, spread: Tensor) -> Tensor:
        """Logits from features that were spread over the graph once, operator X: that never changes."""
        h = functional.dropout(self.first(spread).relu(), DROPOUT, self.training)
        logits: Tensor = torch.sparse.mm(self._operator, self.second(h))
        return logits


def sparse_tensor(matrix: csr_array, device: torch.device) -> Tensor:
    """A sparse matrix for torch."""
    found = matrix.tocoo()
    places = torch.from_numpy(np.stack([found.row, found.col]).astype(np.int64))
    values = torch.from_numpy(found.data.astype(np.float32))
    shape = found.shape
    return torch.sparse_coo_tensor(places, values, shape, device=device, check_invariants=True).coalesce()


def graph_beliefs(
    features: NDArray[np.float32], adjacency: csr_array, labels: Tensor, anchored: Tensor, classes: int,
    *, work: Work,
) -> Tensor:  # fmt: skip
    """Beliefs of a graph network that has learnt from the anchors, (n, C).

    Args:
        features: Visual, (n, d_v).
        adjacency: A, (n, n).
        labels: Web labels, (n,) or (n, C).
        anchored: Who is an anchor (of which class), same shape.
        classes: C.
        work: For the task, the seed and the progress.
    """
    device = labels.device
    operator = sparse_tensor(smoothing_operator(adjacency), device)
    spread = torch.sparse.mm(operator, torch.from_numpy(unit_rows(features)).to(device))
    torch.manual_seed(seed_for(work.run.settings.seed, "vsgraph"))
    net = GraphNetwork(operator, spread.shape[1], classes).to(device)
    targets = taught_labels(labels, anchored)

    def loss(_: int) -> Tensor:
        logits = net(spread)
        if targets.ndim == 1:
            return functional.cross_entropy(logits, targets, ignore_index=-1)
        known = targets >= 0
        return functional.binary_cross_entropy_with_logits(logits[known], targets[known].to(logits))

    minimise(net, loss, name="VSGraph: graph network", steps=STEPS, lr=RATE, decay=DECAY, bar=work.bar)
    with torch.no_grad():
        return work.task.probabilities(net(spread))


def taught_labels(labels: Tensor, anchored: Tensor) -> Tensor:
    """What the graph network is taught, in the shape of the labels; -1 where it is taught nothing.

    One label: the anchors' own. Several: an anchor's classes of which it is an anchor, and those it
    does not carry; a class that it carries without being its anchor may be wrong.

    >>> taught_labels(torch.tensor([2, 0]), torch.tensor([True, False])).tolist()
    [2, -1]
    >>> taught_labels(torch.tensor([[1, 1, 0]]), torch.tensor([[True, False, False]])).tolist()
    [[1, -1, 0]]
    """
    if labels.ndim == 1:
        return torch.where(anchored, labels, -1)
    member = anchored.any(dim=1, keepdim=True)
    return torch.where(member & (anchored | (labels == 0)), labels, -1)


def final_labels(labels: Tensor, anchored: Tensor, gnn: Tensor, cnn: Tensor) -> Tensor:
    """Labels by the mean of both beliefs; a class without an anchor is neither given nor taken.

    Args:
        labels: Web labels, (n,) or (n, C).
        anchored: Who is an anchor (of which class), same shape.
        gnn: Beliefs of the graph network, (n, C).
        cnn: Beliefs of step 1's classifier, (n, C).
    """
    mean = (gnn + cnn) / 2
    if labels.ndim == 2:
        return torch.where(anchored.any(dim=0), (mean > 0.5).to(labels), labels)
    seen = torch.zeros(mean.shape[1], dtype=torch.bool, device=labels.device)
    seen[labels[anchored]] = True
    best = mean.masked_fill(~seen, -1).argmax(dim=1)
    return torch.where(seen[labels], best, labels)


def own_settings(settings: Settings) -> dict[str, Any]:
    """The settings of the graph and of the anchors."""
    return {"match": settings.match.model_dump(include={"k", "top_k", "exact_below"})}


def corrected(work: Work, net: Siamese) -> tuple[Tensor, Tensor]:
    """Final labels of the training rows, and who is an anchor (of which class)."""
    training, chosen, run = work.training, work.run.settings.match, work.run
    visual, labels = np.array(run.read(VISUAL)), training.labels
    graph = enhance(
        visual, run.read(TEXTS), enhancer="knn", k=chosen.k, exact_below=chosen.exact_below,
        seed=run.settings.seed,
    )  # fmt: skip
    near = match(
        graph.texts, run.read(CLASS_TEXTS), labels.cpu().numpy(), k=chosen.k, top_k=chosen.top_k,
        ids=training.row_ids, rerank=False,
    )  # fmt: skip
    rows, of = (torch.from_numpy(part[near.by == "text"]).long() for part in (near.sample, near.label))
    anchored = torch.zeros_like(labels, dtype=torch.bool)
    anchored[(rows, of) if training.multi_label else (rows,)] = True
    if not len(rows) or graph.adjacency is None:
        return labels, anchored  # no text is near to any class
    gnn = graph_beliefs(visual, graph.adjacency, labels, anchored, len(training.classes), work=work)
    v = torch.from_numpy(work.features(training.positions, net)).to(work.device)
    with torch.no_grad():
        cnn = work.task.probabilities(net.heads.classifier(v))
    return final_labels(labels, anchored, gnn, cnn), anchored


def learn(work: Work) -> Made:
    """Correct the labels, then go on from step 1 with them."""
    net = work.step1()
    labels, anchored = corrected(work, net)
    work.fit(WebLabels(net, work.task, labels, work.ranks, lambda_prj=0.0), "VSGraph")
    changed = (labels != work.training.labels).reshape(len(labels), -1).any(dim=1)
    return net, {"anchors": int(anchored.sum()), "changed": float(changed.float().mean())}
