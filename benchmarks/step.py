"""What a training step costs: step 2 against step 1, and the parts beside the encoder.

    python benchmarks/step.py                   C = 1000, Q = 8192, one label
    python benchmarks/step.py --multi-label     C = 81, Q = 2048
    python benchmarks/step.py --profile         what step 2 spends its time on
    python benchmarks/step.py --layout          lite0 at 64 px, forwards and backwards: channels last against first

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

from capro.config import Settings, TrainSettings
from capro.core import losses
from capro.core.losses import positive_weights
from capro.core.references import provider
from capro.models.backbones import FeatureBackbone, load_backbone
from capro.models.heads import Heads
from capro.models.siamese import Siamese
from capro.pipeline.ranks import ranks_of
from capro.train.batches import Batch, Inputs
from capro.train.judgement import Judge
from capro.train.objectives import WebLabels
from capro.train.prototype_learning import PrototypeLearning
from capro.train.tasks import MultiLabelTask, SingleLabelTask

TAU = 0.1


class Noise(Inputs):
    """Inputs of random numbers with the shape of images or features."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape

    def raw(self, positions: Any, *, epoch: int, view: int) -> Any:
        del epoch, view
        return np.random.default_rng(0).normal(size=(len(positions), *self._shape)).astype(np.float32)


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


class Work:
    """Steps 1 and 2 on random data of one size, each as a call without arguments."""

    def __init__(self, *, multi_label: bool, batch: int) -> None:
        self.multi_label, self.batch = multi_label, batch
        self.classes, self.queue = (81, 2048) if multi_label else (1000, 8192)
        torch.manual_seed(0)
        n = max(self.queue, batch)
        if multi_label:
            self.labels = (torch.rand(n, self.classes) < 0.03).long()
            self.task: Any = MultiLabelTask(self.classes, TAU, positive_weights(self.labels.sum(0), n))
        else:
            self.labels = torch.randint(self.classes, (n,))
            self.task = SingleLabelTask(self.classes, TAU)
        self.anchored = torch.rand(self.labels.shape) < 0.05
        if multi_label:
            self.anchored &= self.labels > 0

    def parts(self) -> dict[str, Callable[[], None]]:
        """What is timed, by name."""
        one, two, images = self._objectives(features=False)
        _, heads_only, features = self._objectives(features=True)
        return {
            "step 1": self._step(one, images),
            "step 2": self._step(two, images),
            "step 2 without encoders": self._step(heads_only, features),
            "dictionary look-up": lambda: self._look_up(two),
        }

    def _objectives(self, *, features: bool) -> tuple[WebLabels, PrototypeLearning, Noise]:
        backbone: Any = FeatureBackbone(256) if features else load_backbone("small", image_size=64)
        noise = Noise((256,) if features else (3, 64, 64))
        heads = Heads(backbone.dim, 128, self.classes, tau=TAU, multi_label=self.multi_label)
        net, ranks = Siamese(backbone, heads), ranks_of(Settings())
        train = TrainSettings(queue=self.queue, frozen_epochs=0, correct_after=0)
        reference = provider(train.reference, tau=TAU, alpha=train.alpha)
        one = WebLabels(net, self.task, self.labels, ranks, lambda_prj=1.0)
        two = PrototypeLearning(
            net, Judge(self.task, train), reference, self.labels, self.anchored, noise,
            np.arange(len(self.labels)), ranks, tau=TAU, seed=0,
        )  # fmt: skip
        return one, two, noise

    def _step(self, objective: Any, inputs: Noise) -> Callable[[], None]:
        rows = np.arange(self.batch)
        x = inputs.ready(inputs.raw(rows, epoch=1, view=0), rows, epoch=1, view=0, device=torch.device("cpu"))
        data = Batch(1, 0, rows, slice(0, len(rows)), x, x.clone(), rows)
        optimizer = torch.optim.SGD(objective.parameters(), lr=1e-3, momentum=0.9)
        objective.begin_epoch(1, resumed=False)

        def once() -> None:
            terms = objective.terms(data)
            optimizer.zero_grad()
            losses.total(terms, objective.weights).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            objective.after(data)

        return once

    def _look_up(self, two: PrototypeLearning) -> None:
        """q', r', b of the whole dictionary and KL with its gradient: collective bootstrapping."""
        with torch.no_grad():
            z = torch.nn.functional.normalize(torch.randn(self.batch, 128), dim=1)
            keys, heads = two._dictionary.keys, two.net.heads
            q = self.task.probabilities(heads.auxiliary(keys))
            r = self.task.similarity(heads.compared(keys), two.prototypes)
            target = losses.collective_target(z, keys, q, r, tau=TAU, alpha=0.5)
        logits = heads.auxiliary(z)
        kl = losses.bootstrap_loss_multi_label if self.multi_label else losses.bootstrap_loss
        kl(logits, target).backward()  # type: ignore[no-untyped-call]


def medians(parts: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Seconds of each part: timed alternately, the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(rounds + 1):
        for name, part in parts.items():
            begin = time.perf_counter()
            part()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def layouts(batch: int) -> dict[str, Callable[[], None]]:
    """Forwards and backwards through EfficientNet-Lite0: as capro runs it, and with channels first."""
    backbone = load_backbone("lite0", image_size=64).train()
    images = torch.rand(batch, 3, 64, 64)
    ways = {
        "channels last": backbone,
        "channels first": lambda x: backbone.body.net.extract_features(x).mean((2, 3)),  # type: ignore[union-attr, operator]
    }
    return {name: lambda way=way: way(images).sum().backward() for name, way in ways.items()}  # type: ignore[misc]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--multi-label", action="store_true")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="print operations instead of ratios")
    parser.add_argument("--layout", action="store_true", help="time the memory layouts of an encoder instead")
    args = parser.parse_args()
    if args.layout:
        median = medians(layouts(args.batch), args.rounds)
        share = median["channels last"] / median["channels first"]
        print(f"lite0 at 64 px, batch {args.batch}: channels last / channels first: {share:.2f} (limit 0.8)")
        return int(share > 0.8)
    work = Work(multi_label=args.multi_label, batch=args.batch)
    parts = work.parts()
    if args.profile:
        profile(parts["step 2"], args.rounds)
        return 0
    median = medians(parts, args.rounds)
    kind = "multi-label" if args.multi_label else "single label"
    print(f"{kind}, C = {work.classes}, Q = {work.queue}, batch {args.batch}, small ResNet at 64 px, "
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
    for name, (value, limit) in bounds.items():
        print(f"{name}: {value:.3f} (limit {limit}){'' if value <= limit else '  NOT REACHED'}")
    return int(any(value > limit for value, limit in bounds.values()))


if __name__ == "__main__":
    sys.exit(main())
