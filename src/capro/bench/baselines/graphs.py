"""Systems that join samples in a graph of pictures and texts: SINet and VSGraph."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from scipy.special import softmax
from torch import Tensor, nn
from torch.nn import functional

from capro.bench.baselines.objectives import WeightedLabels, balanced_weights
from capro.bench.baselines.work import Learned, Work, minimise
from capro.core.anchors import match
from capro.data.labels import kind_of
from capro.graph.neighbors import nearest, unit_rows
from capro.graph.smooth import adjacency, smooth
from capro.models.siamese import Siamese
from capro.pipeline.artefacts import CLASS_TEXTS, TEXTS, VISUAL
from capro.pipeline.checksums import seed_for

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

LARGEST = 4096  # samples of a class in its graphs
ITERATIONS = 50  # of the power iteration


def relations(features: Floats) -> Floats:
    """Graph of a class: cosines of unit or zero rows, clipped at 0, without loops, (n, d) -> (n, n)."""
    graph = np.maximum(features @ features.T, 0)
    np.fill_diagonal(graph, 0)
    return np.asarray(graph, dtype=np.float32)


def agreement(graph: Floats) -> Floats:
    """Principal eigenvector of a graph without negative edges, (n, n) -> (n,), sum 1; even where it has no edge.

    >>> agreement(np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]], np.float32)).round(2).tolist()
    [0.5, 0.5, 0.0]
    """
    vector = np.full(len(graph), 1 / len(graph), dtype=np.float64)
    for _ in range(ITERATIONS):
        # the shift keeps two halves of a bipartite graph from swapping for ever
        step = graph @ vector + vector * graph.max(initial=0)
        if not step.any():
            break
        vector = step / step.sum()
    if graph.any():  # only the shift holds samples without any edge
        vector[~graph.any(axis=1)] = 0
        vector /= vector.sum()
    return np.asarray(vector, dtype=np.float32)


def prototypes(v: Floats, s: Floats, labels: Ints, n_classes: int) -> Floats:
    """Mean feature of each class, weighted by agreement in both graphs, (C, d_v), unit or zero rows.

    Args:
        v: Centred unit features, (n, d_v).
        s: Unit texts, (n, d_t); zero rows are missing.
        labels: Web labels, (n,).
        n_classes: C.
    """
    centres = np.zeros((n_classes, v.shape[1]), dtype=np.float32)
    for c in np.unique(labels):
        rows = np.flatnonzero(labels == c)
        rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), LARGEST)).astype(np.int64)]
        graph = relations(v[rows]) + relations(s[rows])  # twice A: the eigenvector is the same
        centres[c] = agreement(graph) @ v[rows]
    return unit_rows(centres)


def sample_weights(v: Floats, prototypes: Floats, labels: Ints, *, tau: float) -> Floats:
    """Belief in each web label by the prototypes, over the mean of all, (n,)."""
    belief = softmax(v @ prototypes.T / tau, axis=1)[np.arange(len(v)), labels]
    return np.asarray(belief / belief.mean(), dtype=np.float32)


def sinet(work: Work) -> Learned:
    """SINet: side information network (Cheng et al., "Weakly Supervised Learning with Side Information for Noisy
    Labeled Images", ECCV 2020).

    Of the paper only the abstract could be found here: a visual prototype for each class, made with the help of
    side information (captions, tags), and a noise weighting module that estimates the correctness of each
    picture's label and weighs it in training. The CAPro paper adds that it "builds visual and textual relation
    graphs to choose prototypes by graph-matching", and that its prototypes "are fixed during training". The
    formulas between are ours:

    - Within a class two relation graphs: cosines of step 1's features less their mean, and cosines of the
      texts, both clipped at 0. A = (A_visual + A_textual) / 2; a sample without a text has visual edges alone.
    - Graph matching: how well a sample agrees with the others is its entry in the principal eigenvector of A
      (spectral matching), by power iteration. The class's prototype is the mean of its features with these
      weights.
    - Noise weighting: w_i = softmax(cos(v_i, prototypes) / tau) at the web label, divided by the mean of all.
      Training is the cross-entropy on web labels with these weights.

    Left out: the hierarchy of classes. Whether weights are renewed while the encoder learns is not said; here
    they are computed once, of step 1's features. In classes above 4,096 samples the prototype is of 4,096 of
    them. One label only. O(sum n_c^2 d).
    """
    training, net = work.training, work.net()
    labels = training.labels.cpu().numpy()
    v = work.features(training.positions)
    v = unit_rows(v - v.mean(axis=0))
    s = unit_rows(np.asarray(work.run.read(TEXTS)))
    centres = prototypes(v, s, labels, len(training.classes))
    weights = sample_weights(v, centres, labels, tau=work.run.settings.net.tau)
    objective = WeightedLabels(work, net, weights=torch.from_numpy(weights).to(work.device))
    work.fit(objective, "SINet")
    return net, {"weights below 0.1": float((weights < 0.1).mean())}


SEEDS = 10  # of a class
GRAPH_STEPS, GRAPH_RATE, GRAPH_DECAY = 5000, 0.01, 1e-6
SURE = 0.7


def mean_operator(graph: csr_array) -> csr_array:
    """Means over neighbours, D^-1 A; zero for a sample without any.

    >>> mean_operator(csr_array([[0.0, 0.2, 0.6], [0.2, 0.0, 0.0], [0.0, 0.0, 0.0]])).toarray().tolist()
    [[0.0, 0.25, 0.75], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    degree = graph.sum(axis=1)
    means: csr_array = (diags_array(1 / np.where(degree > 0, degree, 1)) @ graph).tocsr()
    return means


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
    seeds = torch.zeros_like(training.labels, dtype=torch.bool)
    seeds[(rows, of) if training.multi_label else (rows,)] = True
    return seeds


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

    name = "VSGraph: graph network"
    minimise(net, loss, name=name, steps=GRAPH_STEPS, lr=GRAPH_RATE, decay=GRAPH_DECAY, bar=work.job.bar)
    with torch.no_grad():
        beliefs: Tensor = net(inputs).sigmoid()
    return beliefs


def taught_labels(labels: Tensor, seeds: Tensor, classes: int) -> Tensor:
    """What the graph network is taught, (n, C) in {0, 1}; -1 where it is taught nothing.

    One label: the seeds' own. Several: a seed's classes of which it is a seed, and those it
    does not carry; a class that it carries without being its seed may be wrong.

    >>> taught_labels(torch.tensor([2, 0]), torch.tensor([True, False]), 3).tolist()
    [[0, 0, 1], [-1, -1, -1]]
    >>> taught_labels(torch.tensor([[1, 1, 0]]), torch.tensor([[True, False, False]]), 3).tolist()
    [[1, -1, 0]]
    """
    if not kind_of(labels).multi_label:
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
    if kind_of(labels).multi_label:
        return torch.where(seeds.any(dim=0), merged, labels.to(merged))
    known = torch.zeros(merged.shape[1], dtype=torch.bool, device=labels.device)
    known[labels[seeds]] = True
    web = functional.one_hot(labels, merged.shape[1]).to(merged)
    merged = merged * known
    merged = merged / merged.sum(dim=1, keepdim=True).clamp(min=torch.finfo(merged.dtype).tiny)
    return torch.where(known[labels][:, None], merged, web)


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


def vsgraph(work: Work) -> Learned:
    """VSGraph: labels corrected on a visual-semantic graph (Yang et al., "Webly Supervised Image Classification
    with Metadata: Automatic Noisy Label Correction via Visual-Semantic Graph", ACM MM 2020).

    Of the paper only the abstract, a figure's caption and what the CAPro paper says of it could be found here.
    This follows the label corrector and the scripts that its authors released with SCC, which name this paper.

    - Visual-semantic graph: the k nearest others of each sample by step 1's features, joined where either lists
      the other. A text becomes the mean of its neighbours' texts, all alike and without its own.
    - Seeds: the 10 samples of each class whose text is then nearest to the class's text, by cosine.
    - Graph network: a linear layer on [x; mean of the neighbours' x, weighed by cosine], trained on the seeds
      alone by binary cross-entropy, in which every class counts alike. It carries their labels to all other
      samples: the GNN labels.
    - Label refinement: the mean of GNN and CNN beliefs, those of the graph network and of step 1's classifier;
      the GNN's alone where it is sure (above 0.7 for some class).
    - Step 1's networks learn on with the refined beliefs as soft labels, for step 1's epochs at half of its
      rate, with weights by which every class counts alike.

    So it learns for twice as long as vanilla. A sample that carries a class without a seed (no text is near to
    it) keeps its web label, and nobody else gets that class. Left out: repeating all of it with the new
    networks, which the scripts show but do not do. Different: k is `match.k` (5 in the scripts, the sample
    itself included); the texts are encoded by the run's encoder; cross-entropy of softmax scores, to which soft
    labels are made to sum to one, as everywhere in the table (theirs: sigmoids). Several labels: all soft
    labels are probabilities, and there are no weights. Cost: O(N k d) for the means; a step of the graph
    network sees the seeds alone.
    """
    net, training = work.step1(), work.training
    targets, seeds = corrected(work, net)
    if training.multi_label:
        labels = (targets > 0.5).to(training.labels)
        changed = (labels != training.labels).any(dim=1)
    else:
        labels = targets.argmax(dim=1)
        changed = labels != training.labels
    weights = balanced_weights(labels, len(training.classes))
    work.fit(WeightedLabels(work, net, targets, weights=weights), "VSGraph", schedule=work.second_schedule())
    return net, {"seeds": int(seeds.sum()), "changed": float(changed.float().mean())}
