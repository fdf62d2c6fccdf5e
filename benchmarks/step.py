"""What a training step costs: step 2 against step 1, and the parts beside the encoder.

    python benchmarks/step.py                   C = 1000, Q = 8192, one label
    python benchmarks/step.py --multi-label     C = 81, Q = 2048
    python benchmarks/step.py --profile         what step 2 spends its time on

Small ResNet at 64 px, one run. Input tensors are ready: this times arithmetic, not decoding. Every
figure is a ratio of two things timed alternately in this run; the median over rounds is printed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from capro.train.steps import Prototypes, WebLabels

from capro.config import Settings, TrainSettings
from capro.method import losses
from capro.method.losses import positive_weights
from capro.nets.backbones import FeatureBackbone, load_backbone
from capro.nets.heads import Heads
from capro.nets.siamese import Siamese
from capro.run.ranks import ranks_of
from capro.train.batches import Batch
from capro.train.tasks import MultiLabel, SingleLabel


class Noise:
    """Inputs of random numbers with the shape of images or features."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape

    def raw(self, positions: Any, *, epoch: int, view: int) -> Any:
        del epoch, view
        return np.random.default_rng(0).normal(size=(len(positions), *self._shape)).astype(np.float32)

    def ready(self, raw: Any, positions: Any, *, epoch: int, view: int, device: Any) -> torch.Tensor:
        del positions, epoch, view
        return torch.from_numpy(raw).to(device)


def profile(step: Callable[[], None], rounds: int) -> None:
    """Print the costliest operations of a step, and the rate of those whose FLOPs torch counts."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    step()
    with record(activities=[ProfilerActivity.CPU], with_flops=True) as found:
        for _ in range(rounds):
            step()
    rows = sorted(found.key_averages(), key=lambda row: -row.self_cpu_time_total)
    total = sum(row.self_cpu_time_total for row in rows)
    for row in rows[:10]:
        share = row.self_cpu_time_total / total
        print(f"{row.key:<40}{share:>7.1%}{row.count / rounds:>7.0f} calls a step")
    for row in rows:
        if row.key in ("aten::conv2d", "aten::addmm", "aten::mm"):
            print(f"{row.key:<40}{row.flops / row.cpu_time_total / 1e3:>7.0f} GFLOP/s")
    a, b = torch.randn(2, 1024, 1024)
    begin = time.thread_time()
    for _ in range(20):
        a @ b
    rate = 20 * 2 * 1024**3 / (time.thread_time() - begin) / 1e9
    print(f"{'a bare product of 1024 x 1024':<40}{rate:>7.0f} GFLOP/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--multi-label", action="store_true")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="print operations instead of ratios")
    args = parser.parse_args()
    classes, queue = (81, 2048) if args.multi_label else (1000, 8192)
    torch.manual_seed(0)
    n = max(queue, args.batch)
    if args.multi_label:
        labels = (torch.rand(n, classes) < 0.03).long()
        task: Any = MultiLabel(classes, 0.1, positive_weights(labels.sum(0), n))
    else:
        labels = torch.randint(classes, (n,))
        task = SingleLabel(classes, 0.1)
    anchored = torch.rand(labels.shape) < 0.05
    if args.multi_label:
        anchored &= labels > 0
    ranks = ranks_of(Settings())
    train = TrainSettings(queue=queue, frozen_epochs=0, correct_after=0)

    def objectives(features: bool) -> tuple[Any, Any, Any]:
        backbone: Any = FeatureBackbone(256) if features else load_backbone("small", image_size=64)
        noise = Noise((256,) if features else (3, 64, 64))
        heads = Heads(backbone.dim, 128, classes, tau=0.1, multi_label=args.multi_label)
        net = Siamese(backbone, heads)
        one = WebLabels(net, task, labels, ranks, lambda_prj=1.0)
        two = Prototypes(net, task, labels, anchored, noise, np.arange(n), train, ranks, tau=0.1, seed=0)
        return one, two, noise

    one, two, images = objectives(False)
    _, heads_only, features = objectives(True)
    rows = np.arange(args.batch)

    def batch(inputs: Any) -> Batch:
        x = inputs.ready(inputs.raw(rows, epoch=1, view=0), rows, epoch=1, view=0, device="cpu")
        return Batch(1, 0, rows, slice(0, len(rows)), x, x.clone(), rows)

    image_batch, feature_batch = batch(images), batch(features)

    def step(objective: Any, data: Batch) -> Callable[[], None]:
        optimizer = torch.optim.SGD(objective.parameters(), lr=1e-3, momentum=0.9)
        objective.begin_epoch(1, resumed=False)

        def once() -> None:
            terms = objective.terms(data)
            optimizer.zero_grad()
            losses.total(terms, objective.weights).backward()
            optimizer.step()
            objective.after(data)

        return once

    def look_up() -> None:
        """q', r', b of the whole dictionary and KL with its gradient: collective bootstrapping."""
        with torch.no_grad():
            z = torch.nn.functional.normalize(torch.randn(args.batch, 128), dim=1)
            keys, heads = two._dictionary.keys, two.net.heads
            q = task.probabilities(heads.auxiliary(keys))
            r = task.similarity(heads.compared(keys), two.prototypes)
            target = losses.collective_target(z, keys, q, r, tau=0.1, alpha=0.5)
        logits = heads.auxiliary(z)
        kl = losses.bootstrap_loss_binary if args.multi_label else losses.bootstrap_loss
        kl(logits, target).backward()

    parts = {
        "step 1": step(one, image_batch),
        "step 2": step(two, image_batch),
        "step 2 without encoders": step(heads_only, feature_batch),
        "dictionary look-up": look_up,
    }
    if args.profile:
        profile(parts["step 2"], args.rounds)
        return
    times: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(args.rounds + 1):
        for name, part in parts.items():
            begin = time.perf_counter()
            part()
            times[name].append(time.perf_counter() - begin)
    median = {name: statistics.median(values[1:]) for name, values in times.items()}  # first warms up
    kind = "multi-label" if args.multi_label else "single label"
    print(f"{kind}, C = {classes}, Q = {queue}, batch {args.batch}, small ResNet at 64 px, "
          f"{torch.get_num_threads()} threads")  # fmt: skip
    for name, seconds in median.items():
        print(f"  {name:<26}{1e3 * seconds:>9.0f} ms  {seconds / median['step 2']:>6.1%} of step 2")
    bounds = {"step 2 / step 1": (median["step 2"] / median["step 1"], 1.6)}
    if args.multi_label:
        share = median["step 2 without encoders"] / median["step 2"]
        bounds["heads, prototypes, bootstrapping / step 2"] = (share, 0.20)
    else:
        share = median["dictionary look-up"] / median["step 2"]
        bounds["dictionary look-up / step 2"] = (share, 0.10)
    failed = False
    for name, (value, limit) in bounds.items():
        failed |= value > limit
        print(f"{name}: {value:.3f} (limit {limit}){'' if value <= limit else '  NOT REACHED'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
