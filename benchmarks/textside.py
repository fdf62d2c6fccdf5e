"""The whole text side for a million samples within a memory budget.

    python benchmarks/textside.py [--nodes 1000000] [--memory 6] [--index auto]

k-NN by an index on disk, reciprocal neighbours, re-ranking, smoothing of 384-d texts, matching in
1,000 classes. Two bounds (exit code 1 if one is broken): the peak of the process's resident memory,
mapped files and imports included, stays within the budget; recall@10 of the search against exact
search on 1,000 samples is at least 0.95. The data are synthetic: clusters of about 100 vectors of 128 d
in files, texts that mean the class with noise, a fifth of them missing, a fifth of the labels wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from capro.core.anchors import match
from capro.graph.neighbors import Neighbors, nearest, unit_rows
from capro.graph.ondisk import Budget, RowReader, exact_search, release
from capro.graph.rerank import rerank
from capro.graph.smooth import adjacency, smooth, smoothing_operator
from graph import Clock, PeakMemory

WIDTH, TEXT_WIDTH, BLOCK = 128, 384, 1 << 14


def make(folder: Path, n: int, classes: int, seed: int) -> tuple[np.ndarray, ...]:
    """Mapped features and texts, web and true labels, prototypes; written by blocks."""
    rng = np.random.default_rng(seed)
    groups = max(classes, n // 100)
    centres = rng.standard_normal((groups, WIDTH), np.float32)
    meaning = rng.standard_normal((classes, TEXT_WIDTH), np.float32)
    shape = {"visual": WIDTH, "texts": TEXT_WIDTH}
    visual, texts = (
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, (n, width))
        for name, width in shape.items()
    )
    group = rng.integers(0, groups, n)
    truth = group % classes
    labels = np.where(rng.random(n) < 0.2, rng.integers(0, classes, n), truth)
    for start in range(0, n, BLOCK):
        part = slice(start, start + BLOCK)
        size = len(group[part])
        noise = rng.standard_normal((size, WIDTH), np.float32)
        visual[part] = centres[group[part]] + 0.8 * noise
        said = meaning[truth[part]] + 2 * rng.standard_normal((size, TEXT_WIDTH), np.float32)
        texts[part] = np.where(rng.random((size, 1)) < 0.2, 0, said)
        release(visual, texts)
    visual.flush()
    texts.flush()
    return visual, texts, labels, truth, meaning


def recall_at(pool: Neighbors, visual: np.ndarray, budget: Budget, seed: int, k: int = 10) -> float:
    """Share of the true k nearest that the pool begins with, on 1,000 rows."""
    n = len(visual)
    sample = np.sort(np.random.default_rng(seed + 1).choice(n, min(1000, n), replace=False))
    unit = unit_rows(visual, out=budget.array("recall", visual.shape))
    truth = exact_search(RowReader(unit, budget), budget)(np.array(unit[sample]), k + 1)[1]
    others = truth != sample[:, None]
    found = np.array(pool.index[sample, :k])
    hit = (truth[:, :, None] == found[:, None, :]).any(axis=2)
    return float((hit & others).sum() / np.minimum(others.sum(axis=1), k).sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--memory", type=float, default=6.0, help="GB")
    parser.add_argument("--index", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", help="folder for the files; a temporary one if unset")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=a.scratch) as temporary:
        root = Path(temporary)
        visual, texts, labels, truth, meaning = make(root, a.nodes, a.classes, a.seed)
        clock, memory = Clock(), PeakMemory()
        start = memory.start_bytes
        memory.start()
        budget = Budget(int(a.memory * 2**30) - start, root / "scratch")  # imports count as well
        with clock.part("k-NN"):
            pool = nearest(visual, 4 * a.k, exact_below=1, seed=a.seed, budget=budget, index_kind=a.index)
        with clock.part("recall"):
            recall = recall_at(pool, visual, budget, a.seed)
        with clock.part("re-rank"):
            best = rerank(pool, a.k)
        with clock.part("graph"):
            operator = smoothing_operator(adjacency(best))
            edges = operator.nnz / a.nodes - 1
        with clock.part("smooth"):
            smoothed = smooth(operator, texts, budget=budget)
        with clock.part("match"):
            ids = [f"{number:09d}" for number in range(a.nodes)]
            anchors = match(smoothed, meaning, labels, k=a.k, top_k=50, ids=ids)
        peak = memory.beyond_start() + start
        pure = float((truth[anchors.sample] == anchors.label).mean())
    total = sum(clock.seconds.values())
    print(f"{a.nodes} samples, {a.classes} classes, k = {a.k}, budget {a.memory} GB, {a.index} index")
    for name, seconds in clock.seconds.items():
        print(f"  {name:<10}{seconds:>9.1f} s  {1e6 * seconds / a.nodes:>9.1f} µs per sample")
    print(f"  {'total':<10}{total:>9.1f} s")
    print(f"{edges:.1f} re-ranked neighbours per sample, {len(anchors.sample)} anchors, "
          f"{pure:.1%} of them of their class ({(truth == labels).mean():.1%} of all)")  # fmt: skip
    print(f"imports and data take {start / 2**30:.2f} GB of the peak")
    bounds = [
        ("peak memory, GB", peak / 2**30, peak <= a.memory * 2**30, f"at most {a.memory}"),
        ("recall@10", recall, recall >= 0.95, "at least 0.95"),
    ]
    for name, value, good, bound in bounds:
        print(f"{'ok  ' if good else 'FAIL'} {name}: {value:.3f} ({bound})")
    return int(not all(good for _, _, good, _ in bounds))


if __name__ == "__main__":
    sys.exit(main())
