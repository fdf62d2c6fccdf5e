"""Which encoder at which picture size: accuracy against pictures per second, as a table and a figure.

    python benchmarks/encoder_table.py --data pages256
    python benchmarks/encoder_table.py --data queryweb32 --train 3000

For every network and size: test top-1 (several labels: mAP) of a linear classifier of the features, learnt on the web
labels and on the true ones, and the time for a picture as a multiple of lite0 at 128 px, which is timed in the same
minute. Variants at one size: a mirrored second view (mean of both), features of two depths side by side, two encoders
joined. The classifier has one solution: no seed. ``docs/figures/encoders.svg`` is drawn from the table of pages256.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from capro.core.linear import Centring, linear
from capro.data.labels import labels_of
from capro.data.manifest import manifest_of
from capro.models.backbones import Backbone, load_backbone
from capro.models.inference import for_inference
from capro.pipeline.run import Run
from capro.results.truth import load_truth, membership
from capro.stages import PLAN
from capro.stages.features import CPU_BATCH
from capro.train.batches import PLAIN, ImageInputs
from capro.train.setup import image_inputs, training_set
from variants import PRESETS, arguments, bench_of, truth_of

SIZES = [128, 160, 192, 224, 260, 300]
AXIS = "time for a picture (lite0 at 128 px: 1)"
FIGURE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "encoders.svg"
Encode = Callable[[Tensor], Tensor]


def encoder_of(backbone: Backbone, size: int) -> Encode:
    """As `capro run` takes it."""
    backbone = backbone.to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    return for_inference(backbone, torch.Size((3, size, size)), onnx=True)


def mirrored(encode: Encode, x: Tensor) -> Tensor:
    """The mean of the features of a picture and of its mirror image."""
    return (encode(x) + encode(x.flip(3))) / 2


class TwoDepths:
    """Pooled maps of an inner block beside the last features."""

    def __init__(self, backbone: Backbone, block: int) -> None:
        self.backbone = backbone.eval()
        self.inner = torch.zeros(0)
        net: Any = backbone.body.net
        net._blocks[block].register_forward_hook(self._keep)

    def _keep(self, _module: object, _inputs: object, maps: Tensor) -> None:
        self.inner = maps.mean((2, 3))

    def __call__(self, x: Tensor) -> Tensor:
        v = self.backbone(x)
        scale = v.norm(dim=1).mean() / self.inner.norm(dim=1).mean()
        return torch.cat([v, self.inner * scale], 1)


@torch.no_grad()
def features(inputs: ImageInputs, encode: Encode, rows: np.ndarray) -> tuple[Tensor, float]:
    """Of pictures, (n, d), and the seconds that the encoder alone took."""
    parts, seconds = [], 0.0
    for begin in range(0, len(rows), CPU_BATCH):
        block = rows[begin : begin + CPU_BATCH]
        x = inputs.ready(
            inputs.raw(block, epoch=0, view=PLAIN), block, epoch=0, view=PLAIN, device=torch.device("cpu")
        )
        x = x.contiguous(memory_format=torch.channels_last)
        start = time.perf_counter()
        parts.append(encode(x).float())
        seconds += time.perf_counter() - start
    return torch.cat(parts), seconds


def accuracy(train: Tensor, target: Tensor, test: Tensor, truth: np.ndarray) -> float:
    """Top-1, or mAP, of a linear classifier."""
    centring = Centring.of(train)
    multi_label = truth.ndim == 2
    logits = linear(centring(train), target, multi_label=multi_label, steps=60)(centring(test)).numpy()
    if multi_label:
        return float(
            np.mean([average_precision_score(truth[:, c], logits[:, c]) for c in range(truth.shape[1])])
        )
    return float((logits.argmax(1) == truth).mean())


class Comparison:
    """The pictures of a dataset, and every encoder on them."""

    def __init__(self, name: str, args: object) -> None:
        self.bench = bench_of(name, args.runs, args.set)  # type: ignore[attr-defined]
        base = self.bench.run_of("encoders", "all rows", [], 0)
        PLAN.do(base, "scan", "classes", watch=self.bench.watch)
        training, manifest = training_set(base), manifest_of(base)
        rng = np.random.default_rng(0)
        chosen = np.sort(rng.permutation(len(training.positions))[: args.train])  # type: ignore[attr-defined]
        tests = np.sort(rng.permutation(manifest.split("test"))[: args.test])  # type: ignore[attr-defined]
        member = membership(load_truth(truth_of(self.bench), manifest), training.classes)[chosen]
        labels, self.truth = training.labels[chosen], labels_of(manifest, tests, training.classes)
        classes = len(training.classes)
        web = labels if training.multi_label else torch.nn.functional.one_hot(labels.clamp(min=0), classes)
        true = torch.from_numpy(member).float()
        self.targets = {
            "web": web.float(),
            "true": true if training.multi_label else true / true.sum(1, keepdim=True).clamp(min=1),
        }
        self.rows = np.concatenate([training.positions[chosen], tests])
        self.size = len(chosen)
        self.yard = self._inputs("lite0", 128)

    def _inputs(self, net: str, size: int) -> tuple[Backbone, ImageInputs]:
        run: Run = self.bench.run_of("encoders", f"pixels-{size}", [f"views.size={size}"], 0)
        PLAN.do(run, "scan", "pixels", watch=self.bench.watch)
        backbone = load_backbone(net, image_size=size)
        return backbone, image_inputs(run, backbone, seed=0)

    def measure(
        self, label: str, parts: list[tuple[str, int, Callable[[Backbone, int], Encode]]]
    ) -> tuple[float, ...]:
        """A row of the table: one encoder, or several whose features stand side by side."""
        columns, cost = [], 0.0
        for net, size, make in parts:
            backbone, inputs = self._inputs(net, size)
            some = self.rows[:: max(1, len(self.rows) // 160)]
            encode, yard = make(backbone, size), encoder_of(self.yard[0], 128)
            ratios = [
                features(inputs, encode, some)[1] / features(self.yard[1], yard, some)[1] for _ in range(3)
            ]
            cost += sorted(ratios)[1]
            v = features(inputs, encode, self.rows)[0]
            columns.append(v / v.norm(dim=1).mean())
        v = torch.cat(columns, 1)
        train, test = v[: self.size], v[self.size :]
        figures = [
            accuracy(train[t.sum(1) > 0], t[t.sum(1) > 0], test, self.truth) for t in self.targets.values()
        ]
        print(
            "| " + " | ".join([label, *(f"{100 * f:.1f}" for f in figures), f"{cost:.2f}"]) + " |", flush=True
        )
        return (*figures, cost)


def draw(rows: dict[str, tuple[float, ...]]) -> None:
    """Accuracy with true labels against time, a line for each network."""
    left, top, width, height = 60, 20, 540, 300
    times = [np.log2(row[-1]) for row in rows.values()]
    best = [row[1] for row in rows.values()]
    x = partial(np.interp, xp=[min(times) - 0.2, max(times) + 0.4], fp=[left, left + width])
    y = partial(np.interp, xp=[min(best) - 0.01, max(best) + 0.01], fp=[top + height, top])
    parts = []
    for number, net in enumerate(dict.fromkeys(label.split()[0] for label in rows)):
        mine = [
            (x(np.log2(row[-1])), y(row[1]), label) for label, row in rows.items() if label.split()[0] == net
        ]
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b, _ in mine)
        parts.append(f'<polyline class="l{number}" points="{points}"/>')
        parts += [f'<circle class="c{number}" cx="{a:.1f}" cy="{b:.1f}" r="4"/>' for a, b, _ in mine]
        parts += [
            f'<text class="t{number}" x="{a:.1f}" y="{b + (-10, 20, 32)[number]:.1f}" text-anchor="middle">'
            f"{label.split()[1]}</text>"
            for a, b, label in mine
        ]
        parts.append(f'<text class="t{number}" x="{left + 20}" y="{top + 20 + 18 * number}">{net}, px</text>')
    for power in range(round(min(times)), round(max(times)) + 1):
        parts.append(
            f'<text x="{x(power):.0f}" y="{top + height + 24}" text-anchor="middle">{2.0**power:g}×</text>'
        )
    for value in range(int(100 * min(best)), int(100 * max(best)) + 2, 2):
        parts.append(f'<text x="{left - 8}" y="{y(value / 100) + 4:.0f}" text-anchor="end">{value} %</text>')
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 46}" text-anchor="middle">{AXIS}</text>')
    style = (
        "text{font:12px sans-serif;fill:#222}polyline{fill:none;stroke-width:2}"
        ".l0,.c0{stroke:#2563eb;fill:#2563eb}.l1,.c1{stroke:#b45309;fill:#b45309}.l2,.c2{stroke:#047857;fill:#047857}"
        ".t0{fill:#2563eb}.t1{fill:#b45309}.t2{fill:#047857}"
        "polyline{fill:none!important}"
        "@media(prefers-color-scheme:dark){text{fill:#eee}.t0{fill:#93c5fd}.t1{fill:#fbbf24}.t2{fill:#6ee7b7}}"
    )
    FIGURE.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 60} {top + height + 56}" role="img" '
        f'aria-label="Top-1 with true labels against time for a picture">'
        f"<style>{style}</style>{''.join(parts)}</svg>\n",
        encoding="utf-8",
    )


def main() -> None:
    parser = arguments(__doc__, data=[name for name in PRESETS if name != "demo"], seeds=1)
    parser.add_argument("--nets", nargs="+", default=["lite0", "lite1", "lite2"])
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--variants", type=int, default=192, help="size of the variants; 0: none")
    parser.add_argument("--train", type=int, default=3000, help="training samples")
    parser.add_argument("--test", type=int, default=1000, help="test samples")
    args = parser.parse_args()
    comparison = Comparison(args.data, args)
    print("| encoder | web labels | true labels | time |\n|---|---|---|---|")
    rows = {
        f"{net} {size}": comparison.measure(f"{net} {size}", [(net, size, encoder_of)])
        for net in args.nets
        for size in args.sizes
    }
    if args.data == "pages256" and len(rows) > 1:
        draw(rows)
    if size := args.variants:
        comparison.measure(
            f"lite0 {size}, mirrored view too",
            [("lite0", size, lambda b, s: partial(mirrored, encoder_of(b, s)))],
        )
        comparison.measure(f"lite0 {size}, two depths", [("lite0", size, lambda b, _: TwoDepths(b, 10))])
        comparison.measure(
            f"lite0 {size} and lite2 {size}", [(net, size, encoder_of) for net in ("lite0", "lite2")]
        )


if __name__ == "__main__":
    main()
