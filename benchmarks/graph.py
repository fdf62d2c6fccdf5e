"""Re-ranking and smoothing against the exact k-NN search they follow, in one run.

    python benchmarks/graph.py [--nodes 50000] [--width 512] [--k 10] [--released FOLDER]

The search is shown beside the time of its products at the machine's rate for large matrices, smoothing beside the
time of its bytes at the rate of a copy. With `--released`, a checkout of the authors' repository
(github.com/yuleiqin/capro), their re-ranking is timed in the same run: for each of some nodes their
`visual_knn_rerank.py` calls `re_ranking(node, its k nearest)` of `graph/rerank_feature.py`, and so does this program.

Three bounds (exit code 1 if one is broken): all that follows the search takes at most 30 % of the
search's time, doubling the nodes costs at most 2.3 times as much, and the peak memory beyond the
features stays under 1.5 GB. The features are synthetic: clusters of about 100 nodes.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np

from capro.graph import neighbors as search_module
from capro.graph.neighbors import nearest
from capro.graph.rerank import encoding, rerank
from capro.graph.smooth import adjacency, smooth, smoothing_operator
from rates import copy_rate, product_rate

RELEASED_NODES = 200  # of which the released re-ranking is timed
TEXT_WIDTH = 384  # of MiniLM-L6


class Clock:
    """Seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0) + time.perf_counter() - start


class PeakMemory(threading.Thread):
    """Highest resident memory of this process while it runs, read every 5 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.start_bytes = self.peak = resident()
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.005):
            self.peak = max(self.peak, resident())

    def beyond_start(self) -> int:
        self.done.set()
        self.join()
        return self.peak - self.start_bytes


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def clusters(n: int, d: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(1, n // 100), d), np.float32)
    x = rng.standard_normal((n, d), np.float32)
    x += centres[rng.integers(0, len(centres), n)]
    return x


def timed(clock: Clock, exact: Callable[..., Callable[..., object]]) -> Callable[..., object]:
    """Time FAISS alone, within `nearest`: the rest of `nearest` counts as ours."""

    def make(*given: object) -> Callable[..., object]:
        search = exact(*given)

        def run(queries: np.ndarray, width: int) -> object:
            with clock.part("search"):
                return search(queries, width)

        return run

    return make


def measure(n: int, d: int, k: int, seed: int) -> tuple[dict[str, float], int, float]:
    """Seconds of each part, bytes beyond the features, edges a node."""
    x, texts = clusters(n, d, seed), clusters(n, TEXT_WIDTH, seed + 1)
    clock, memory = Clock(), PeakMemory()
    memory.start()
    plain = search_module.exact_search  # type: ignore[attr-defined]
    search_module.exact_search = timed(clock, plain)  # type: ignore[attr-defined, assignment]
    try:
        with clock.part("prepare"):
            pool = nearest(x, 4 * k)
    finally:
        search_module.exact_search = plain  # type: ignore[attr-defined]
    clock.seconds["prepare"] -= clock.seconds["search"]
    with clock.part("re-rank"):
        best = rerank(pool, k)
    with clock.part("graph"):
        graph = adjacency(best)
        operator = smoothing_operator(graph)
    with clock.part("smooth"):
        smooth(operator, texts)
    peak = memory.beyond_start()
    edges = encoding(pool, k).nnz / n, graph.nnz / n
    print(f"  {n} nodes: {edges[0]:.1f} reciprocal neighbours per node, {edges[1]:.1f} re-ranked")
    return clock.seconds, peak, edges[1]


def limits(n: int, d: int, edges: float) -> dict[str, float]:
    """Seconds that the search's products and the smoothing's bytes take at this machine's rates."""
    row = 4 * TEXT_WIDTH
    return {"search": 2 * n * n * d / product_rate(), "smooth": (edges + 1) * n * row / copy_rate()}


def released(folder: Path, n: int, d: int, k: int, seed: int) -> float:
    """Seconds a node of the authors' re-ranking, which gets each node and its nearest ones."""
    file = folder / "graph" / "rerank_feature.py"
    found = spec_from_file_location("released_rerank", file)
    if found is None or found.loader is None or not file.is_file():
        raise SystemExit(f"error: no {file}\nhint: --released is a checkout of github.com/yuleiqin/capro")
    module = module_from_spec(found)
    found.loader.exec_module(module)
    x = clusters(n, d, seed)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    near = nearest(x, k).index
    begin = time.perf_counter()
    for node in range(min(n, RELEASED_NODES)):
        module.re_ranking(x[node : node + 1], x[near[node]])
    return (time.perf_counter() - begin) / min(n, RELEASED_NODES)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--released", type=Path, help="checkout of the authors' repository")
    a = parser.parse_args()

    measure(min(a.nodes, 2000), a.width, a.k, a.seed)  # warm up: imports, threads
    half, _, _ = measure(a.nodes // 2, a.width, a.k, a.seed)
    full, peak, edges = measure(a.nodes, a.width, a.k, a.seed)
    later = [name for name in full if name != "search"]
    total, total_half = sum(full[m] for m in later), sum(half[m] for m in later)
    print(f"\n{'part':<10}{a.nodes // 2:>12}{a.nodes:>12}{'growth':>9}   (seconds)")
    for name in ["search", *later]:
        print(f"{name:<10}{half[name]:>12.3f}{full[name]:>12.3f}{full[name] / half[name]:>9.2f}")
    print(f"{'later':<10}{total_half:>12.3f}{total:>12.3f}{total / total_half:>9.2f}")
    for name, limit in limits(a.nodes, a.width, edges).items():
        print(f"{name}: {full[name] / limit:.1f} times its limit of {limit:.3f} s")
    print(f"re-ranking: {1000 * full['re-rank'] / a.nodes:.3f} ms a node")
    if a.released:
        theirs = released(a.released, min(a.nodes, 5000), a.width, 2 * a.k, a.seed)
        times = theirs * a.nodes / full["re-rank"]
        print(
            f"released re-ranking of the {2 * a.k} nearest: {1000 * theirs:.1f} ms a node, {times:,.0f} times ours"
        )

    bounds = [
        ("later / search", total / full["search"], 0.30, ""),
        ("growth for twice the nodes", total / total_half, 2.3, ""),
        ("peak beyond the features", peak / 1e9, 1.5, " GB"),
    ]
    for name, value, bound, unit in bounds:
        print(f"{'ok  ' if value <= bound else 'FAIL'} {name}: {value:.3f}{unit} (at most {bound})")
    return int(any(value > bound for _, value, bound, _ in bounds))


if __name__ == "__main__":
    sys.exit(main())
