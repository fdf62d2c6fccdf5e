"""What a run costs, by formulae whose rates are measured here: docs/distributed.md, Arithmetic.

    python benchmarks/arithmetic.py [--samples 2440000] [--gpus 8] [--peak 312] [--used 0.2] [--cores 64]

Measures on one thread, in CPU time (other work disturbs that little): ResNet-50 forward and with
backward, MiniLM, exact and IVF search. A multiply-add is two FLOPs. Takes about a minute.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import faiss
import numpy as np
import torch

from capro import config
from capro.config import Settings
from capro.graph.smooth import pool_width
from capro.models.backbones import cost, load_backbone
from capro.models.text_encoders import TextEncoder, load_text_encoder

TOKENS = 32  # of a web text: a title and a few tags
DECODE = 2.8e-3  # CPU seconds of an image and its two views, docs/performance.md
JPEG = 40e3  # bytes of an image whose shorter side is 256 pixels
WORDS = "tench fish caught in a quiet lake near the old mill on a summer evening photo print".split()


def seconds(work: Callable[[], object], least: float = 3.0) -> float:
    """CPU seconds of one call: the best of several, after one that warms up."""
    work()
    times: list[float] = []
    while sum(times) < least or len(times) < 2:
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def measured(encoder: TextEncoder) -> dict[str, float]:
    """Rates of one thread: FLOP/s, texts/s."""
    net = load_backbone("resnet50").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    flops = 2e9 * cost(net, torch.zeros(2, 3, 224, 224)).gflops
    images = torch.randn(8, 3, 224, 224).to(memory_format=torch.channels_last)

    def forward() -> None:
        with torch.no_grad():
            net.eval()(images)

    def both() -> None:
        net.train()(images).sum().backward()

    once = seconds(forward)
    found = {
        "FLOPs of an image": flops,
        "forward, FLOP/s": 8 * flops / once,
        "with backward, in forwards": seconds(both) / once,
    }
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, TOKENS - 2)) for _ in range(64)]
    found["texts/s"] = 64 / seconds(lambda: encoder.encode(texts))

    n, d = 20_000, 256
    x = (
        rng.standard_normal((n, d), np.float32)
        + 3 * rng.standard_normal((200, d), np.float32)[rng.integers(0, 200, n)]
    )
    faiss.normalize_L2(x)
    queries, k = x[:4096], 21
    exact = seconds(lambda: faiss.knn(queries, x, k, metric=faiss.METRIC_INNER_PRODUCT))
    found["exact search, FLOP/s"] = 2 * len(queries) * n * d / exact
    cells, nprobe = 512, 64
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(d), d, cells, faiss.METRIC_INNER_PRODUCT)
    index.train(x)
    index.add(x)
    index.nprobe = nprobe
    probe = seconds(lambda: index.search(queries, k))
    found["IVF search, FLOP/s"] = 2 * len(queries) * (cells + nprobe * n / cells) * d / probe
    return found


def forwards(settings: Settings) -> dict[str, float]:
    """Forward passes of the encoder per training image; a backward pass counts as two."""
    frozen = settings.train.frozen_epochs
    return {
        "step 1": 3 * settings.pretrain.epochs,
        "embed": 1,
        "step 2": 2 * frozen + 4 * (settings.train.epochs - frozen),  # query and key
        "clean": 1,
        "step 3": settings.finetune.epochs,
    }


def sizes(n: int, settings: Settings, parameters: float, text: int) -> dict[str, float]:
    """Bytes on disk."""
    k, d, classes = settings.match.k, 2048, 1000
    width = pool_width(settings.match.enhancer, k) + 1
    state = 3 * 4 * parameters + 4 * settings.net.embedding_dim * (settings.train.queue + classes)
    return {
        "images": JPEG * n,
        "visual features": 4 * d * n,
        "texts, before and after smoothing": 2 * 4 * text * n,
        "while searching: unit rows, lists, hits": (2 * 4 * d + 2 * 8 * width) * n,
        "graph, at most": (2 * k * 8 + 4) * n,
        "checkpoints: two, and one being written": 3 * (state + 8 * n),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=float, nargs="*", default=[2.44e6, 100e6])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--peak", type=float, default=312.0, help="TFLOP/s of one GPU")
    parser.add_argument("--used", type=float, default=0.2, help="share of the peak that is reached")
    parser.add_argument("--cores", type=int, default=64)
    given = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    settings = config.load(preset_name="webvision1k")
    encoder = load_text_encoder("minilm")
    rates = measured(encoder)
    print("measured on one thread:")
    for name, rate in rates.items():
        print(f"  {name:28} {rate:12,.4g}")
    text_flops = 2e9 * encoder.gflops(TOKENS)
    print(f"  {'MiniLM, FLOP/s':28} {rates['texts/s'] * text_flops:12,.4g}")
    parameters = 25.6e6
    gpu = given.gpus * given.peak * 1e12 * given.used
    core = rates["forward, FLOP/s"]
    passes = forwards(settings)
    epochs = settings.pretrain.epochs + settings.train.epochs + settings.finetune.epochs + 2
    for n in given.samples:
        print(f"\n{n:,.0f} images: FLOPs, hours on {given.gpus} GPUs, hours on one core like this")
        for name, count in {**passes, "all steps": sum(passes.values())}.items():
            work = count * rates["FLOPs of an image"] * n
            print(f"  {name:28} {work:9.2e} {work / gpu / 3600:10,.2f} {work / core / 3600:14,.0f}")
        texts = text_flops * n
        by_rate = n / rates["texts/s"] / 3600
        print(f"  {'texts':28} {texts:9.2e} {texts / gpu / 3600:10,.2f} {by_rate:14,.0f}")
        d, cells, nprobe = 2048, 8 * math.sqrt(n), 64
        print(f"  FLOPs, hours on {given.cores} cores, hours on one core like this")
        searches = {
            "decoding": (0.0, epochs * DECODE * n),
            "exact k-NN": (2 * n * n * d, 2 * n * n * d / rates["exact search, FLOP/s"]),
        }
        work = 2 * n * (2 * cells + nprobe * n / cells) * d  # the first cells: adding to the index
        searches["IVF, 64 cells a query"] = (work, work / rates["IVF search, FLOP/s"])
        for name, (flops, taken) in searches.items():
            hours = taken / 3600
            print(f"  {name:28} {flops:9.2e} {hours / given.cores:10,.2f} {hours:14,.0f}")
        for name, size in sizes(int(n), settings, parameters, encoder.dim).items():
            print(f"  {name:40} {size / 1e9:10,.1f} GB")


if __name__ == "__main__":
    main()
