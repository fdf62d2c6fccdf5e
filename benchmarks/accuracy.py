"""Test accuracy of vanilla, MoPro's and CAPro's variants, and oracles, on frozen features.

    python benchmarks/accuracy.py --data queryweb32
    python benchmarks/accuracy.py --data shopweb64
    python benchmarks/accuracy.py --data cococap64      multi-label

EfficientNet-Lite0 at 128 px, last epoch, mean and spread (standard deviation) over seeds. The test
set is scored once per training; nothing is chosen on it.
"""

from __future__ import annotations

import argparse
import copy
import time

import numpy as np
import torch

from capro.config import TrainSettings
from capro.evaluate.truth import label_accuracy
from capro.nets.siamese import Siamese
from frozen import Bench, Trial, oracle_labels, preset_for

AS_LONG = "vanilla, as many epochs as CAPro"


def single_label(bench: Bench, seed: int) -> dict[str, dict[str, float]]:
    """One seed of every row."""
    trial = Trial(bench, seed)
    train = bench.settings.train
    web_start = train.model_copy(update={"start": "web"})
    text = bench.anchored(bench.anchors())
    chance = bench.anchored(bench.anchors(seed=seed, mode="random"))
    rows: dict[str, dict[str, float]] = {}

    vanilla = trial.web()
    rows["vanilla"] = trial.test(vanilla)
    rows[AS_LONG] = _as_long(trial)
    balance = bench.settings.finetune.balance
    rows["vanilla, then step 3"] = _step3(trial, vanilla, trial.training.labels)
    mopro = web_start.model_copy(update={"policy": "mopro", "reference": "none"})
    rows["random anchors + mopro (MoPro)"] = _capro(trial, vanilla, chance, mopro, 0.0)[0]
    anchors = trial.anchor_heads(text, train)
    rows["anchors only"] = trial.test(anchors)
    from_anchors = train.model_copy(update={"start": "anchors"})
    for name, start, settings in (("web", vanilla, web_start), ("anchors", anchors, from_anchors)):
        found = _capro(trial, start, text, settings, balance, 0.0)
        rows[f"CAPro from {name}"], rows[f"CAPro from {name}, balance 0 in step 3"] = found
        heard = settings.model_copy(update={"text_weight": 1.0})
        [rows[f"CAPro from {name}, texts in the label rule"]] = _capro(trial, start, text, heard, balance)
    return rows | _oracles(trial, {"clean subset": False, "true labels": True})


def multi_label(bench: Bench, seed: int) -> dict[str, dict[str, float]]:
    """One seed of every row."""
    trial = Trial(bench, seed)
    train = bench.settings.train
    text = bench.anchored(bench.anchors())
    vanilla = trial.web()
    return {
        "vanilla": trial.test(vanilla),
        AS_LONG: _as_long(trial),
        "vanilla, then step 3": _step3(trial, vanilla, trial.training.labels),
        "CAPro": _capro(trial, vanilla, text, train, bench.settings.finetune.balance)[0],
    } | _oracles(trial, {"true labels": True})


def _as_long(trial: Trial) -> dict[str, float]:
    """Step 1 with the epochs of all three steps: what longer training alone brings."""
    steps = trial.settings
    epochs = steps.pretrain.epochs + steps.train.epochs + steps.finetune.epochs
    return trial.test(trial.web(schedule=steps.pretrain.model_copy(update={"epochs": epochs})))


def _step3(trial: Trial, net: Siamese, labels: torch.Tensor, **changed: float | None) -> dict[str, float]:
    """Figures after step 3; the net given stays as it is."""
    net = copy.deepcopy(net)
    trial.finetune(net, labels, **changed)
    return trial.test(net)


def _oracles(trial: Trial, relabel: dict[str, bool]) -> dict[str, dict[str, float]]:
    """Step 1 on true labels, and step 3 after it."""
    rows = {}
    for name, every in relabel.items():
        labels = oracle_labels(trial.bench, relabel=every)
        net = trial.web(labels)
        rows[f"oracle: {name}"] = trial.test(net)
        rows[f"oracle: {name}, then step 3"] = _step3(trial, net, labels)
    return rows


def _capro(
    trial: Trial, start: Siamese, anchored: torch.Tensor, train: TrainSettings, *balances: float | None
) -> list[dict[str, float]]:
    """Figures with each of some balances in step 3."""
    step2, verdicts = trial.step2(start, anchored, train)
    labels, member = torch.from_numpy(verdicts.labels), trial.bench.member
    cleaned = {
        "labels before": label_accuracy(trial.training.labels.numpy(), member),
        "labels after": label_accuracy(verdicts.labels, member),
        "kept": 1 - float(trial.task.out(labels).float().mean()),
    }
    return [_step3(trial, step2, labels, balance=value) | cleaned for value in balances]


def _paired(results: list[dict[str, dict[str, float]]], row: str, metric: str) -> str:
    """Difference to vanilla, and the seeds in which it is positive."""
    gains = [100 * (result[row][metric] - result["vanilla"][metric]) for result in results]
    wins = sum(gain > 0 for gain in gains)
    return f"{np.mean(gains):+.2f} {metric} ({wins}/{len(gains)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="queryweb32", choices=["queryweb32", "shopweb64", "cococap64"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="override a setting")
    args = parser.parse_args()
    bench = Bench(args.data, tuple(args.set), preset_for(args.data))
    begin = time.monotonic()
    multi = bench.training.multi_label
    results = [(multi_label if multi else single_label)(bench, seed) for seed in range(args.seeds)]
    print(f"{args.data}: lite0 at {bench.settings.views.size} px, {args.seeds} seeds, last epoch")
    metrics = ["C-F1", "O-F1", "mAP"] if multi else ["top1", "top5"]
    extra = ["labels before", "labels after", "kept"]
    print(f"{'':<46}" + "".join(f"{name:>16}" for name in metrics + extra))
    for row in results[0]:
        cells = ""
        for name in metrics + extra:
            values = [100 * result[row][name] for result in results if name in result[row]]
            cells += f"{np.mean(values):>9.1f} ± {np.std(values):.1f}" + "   " if values else " " * 16
        print(f"{row:<46}{cells}")
    name = metrics[0]
    mean = {row: np.mean([result[row][name] for result in results]) for row in results[0]}
    oracle = "oracle: true labels" if multi else "oracle: clean subset"
    for row, value in mean.items():
        told = ", ".join(_paired(results, row, metric) for metric in metrics) + " over vanilla"
        if row.startswith("CAPro"):
            shares = [
                (value - mean[f"vanilla{after}"]) / (mean[f"{oracle}{after}"] - mean[f"vanilla{after}"])
                for after in ("", ", then step 3")
            ]
            told += f", {shares[0]:.0%} of the gap from vanilla to the oracle"
            if "balance 0" not in row:
                told += f", {shares[1]:.0%} of it with step 3 on both sides"
        if row != "vanilla":
            print(f"{row}: {told}")
    print(f"({time.monotonic() - begin:.0f} s)")


if __name__ == "__main__":
    main()
