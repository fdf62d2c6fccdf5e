"""Each stage of a whole run beside its limit, and beside what people would do instead.

    python benchmarks/stages.py [--data queryweb32] [--set views.size=96]

Preset small on all rows, all stages in one process as in `capro run`, on a quiet machine. Of each stage: seconds, share
of the run, peak memory, and the limit: its matrix products (counted by torch in a second pass; of the neighbour
search 2 n^2 d) at this machine's rate of products, the files that it reads and writes at the rate of a copy,
pictures at the rate of bare decoding; of the image encoder the time of its own layers on tensors that are
ready. Trainings are also done under torch's profiler, which says what part of them is products. Beside it in the
same run: 5-fold logistic regression on the same features, cleanlab's `find_label_issues` and a last fit without what
it found.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FEATURES, TRAININGS = ("features", "embed"), ("pretrain", "posterior", "train", "finetune")
DECODING = ("scan", "pixels")  # they look at every picture
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::mv", "aten::dot")
BOUNDS = {"features": 1.5, "training": 2.0, "map": 5.0, "rest": 0.15, "instead": 1.5}


def machine(run_path: Path) -> dict[str, float]:
    """Rates of this machine a second: products, bytes of a copy, pictures decoded, pictures through the encoder."""
    import torch
    from PIL import Image

    from capro.data.manifest import manifest_of
    from capro.data.pixels import ImageStore
    from capro.models.inference import for_inference
    from capro.pipeline.run import Run
    from capro.stages.features import CPU_BATCH
    from capro.train.setup import pretrained
    from rates import copy_rate, product_rate, rate

    run = Run.open(run_path)
    manifest = manifest_of(run)
    store = ImageStore(manifest)
    pictures = [store.read(position) for position in range(1000)]

    def decode(data: bytes) -> None:
        Image.open(io.BytesIO(data)).convert("RGB")

    threads = ThreadPoolExecutor(torch.get_num_threads())
    backbone = pretrained(run.settings).eval()
    size = run.settings.views.size or backbone.size
    backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    encoder = for_inference(backbone, (3, size, size), onnx=True)
    x = torch.rand(CPU_BATCH, 3, size, size).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        return {
            "flops": product_rate(),
            "bytes": copy_rate(),
            "pictures": len(pictures) * rate(lambda: [*threads.map(decode, pictures)]),
            "encoded": CPU_BATCH * rate(lambda: encoder(x), 8.0),
        }


def work(run_path: Path) -> dict[str, float]:
    """Every stage in one process, as `capro run` does, and the report: seconds, and peak of memory in each."""
    from capro.pipeline.run import Run
    from capro.stages import PLAN
    from capro.stages.report import report

    run, found = Run.open(run_path), dict[str, float]()
    for stage in [*(each.name for each in PLAN.of(run.settings)), "report"]:
        Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
        begin = time.monotonic()
        if stage == "report":
            report(run)
        else:
            PLAN.do(run, stage)
        found[stage] = time.monotonic() - begin
        lines = Path("/proc/self/status").read_text().splitlines()
        found[f"{stage} GB"] = (
            next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20
        )
    return found


def flops(run_path: Path, stage: str) -> dict[str, float]:
    """The floating point operations of a stage's products, which is done again."""
    from torch.utils.flop_counter import FlopCounterMode

    from capro.data.manifest import manifest_of
    from capro.pipeline.run import Run
    from capro.stages import PLAN

    run = Run.open(run_path)
    if stage in DECODING:
        return {"flops": 0.0}
    if stage == "features":  # known, and long
        return {"flops": 2e9 * run.result(stage)["encoder"]["gflops"] * len(manifest_of(run).samples)}
    with FlopCounterMode(display=False) as counter:
        PLAN.do(run, stage, force=True)
    found = float(counter.get_total_flops())
    if stage == "graph":
        found += products_of_search(run)
    return {"flops": found}


def products(run_path: Path, stage: str) -> dict[str, float]:
    """Seconds of a training that is done again under torch's profiler, and of its products among them."""
    from torch.profiler import ProfilerActivity, profile

    from capro.pipeline.run import Run
    from capro.stages import PLAN

    run = Run.open(run_path)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as found:
        PLAN.do(run, stage, force=True)
    seconds = json.loads((run.folder(stage) / "stage.json").read_text())["seconds"]
    own = sum(event.self_cpu_time_total for event in found.key_averages() if event.key in PRODUCTS)
    return {"seconds": seconds, "products": own / 1e6}


def products_of_search(run: Any) -> float:
    from capro.pipeline.artefacts import VISUAL

    n, d = run.read(VISUAL).shape
    return float(2 * n * n * d)


def size_map(run_path: Path) -> dict[str, float]:
    """Seconds of the report's t-SNE."""
    from capro.pipeline.artefacts import VISUAL
    from capro.pipeline.run import Run
    from capro.report.galleries import MAP_POINTS
    from capro.report.thumbnails import embedding_map

    points = Run.open(run_path).read(VISUAL)[:MAP_POINTS]
    begin = time.monotonic()
    embedding_map(points, 0)
    return {"seconds": time.monotonic() - begin, "points": len(points)}


def instead(run_path: Path) -> dict[str, float]:
    """What a user of cleanlab would do with the same features: seconds, and how good it is."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from capro.data.labels import known_labels
    from capro.data.manifest import manifest_of
    from capro.pipeline.artefacts import PLAIN_FEATURES
    from capro.pipeline.run import Run
    from capro.train.setup import training_set
    from others import find_issues

    run = Run.open(run_path)
    training, manifest = training_set(run), manifest_of(run)
    begin = time.monotonic()
    labels, _ = find_issues(run)
    features = run.read(PLAIN_FEATURES)
    kept = labels >= 0
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1e-3, max_iter=100))
    model.fit(features[training.positions[kept]], labels[kept])
    seconds = time.monotonic() - begin
    test = manifest.split("test")
    truth = known_labels(manifest, test, training.classes)
    return {
        "seconds": seconds,
        "top1": float(np.mean(model.predict(features[test]) == truth)),
        **label_quality(run, labels),
    }


def ours(run_path: Path) -> dict[str, float]:
    """The same figures of the run."""
    import numpy as np

    from capro.pipeline.artefacts import CLEANED_LABELS
    from capro.pipeline.run import Run

    run = Run.open(run_path)
    return {
        "top1": run.result("evaluate")["capro"]["top1"],
        **label_quality(run, np.asarray(run.read(CLEANED_LABELS))),
    }


def label_quality(run: Any, labels: Any) -> dict[str, float]:
    """Share of the labels that are left and true, and of the samples that are left."""
    import numpy as np

    from capro.data.manifest import manifest_of
    from capro.results.truth import load_truth
    from capro.train.setup import training_set

    names = training_set(run).classes
    truth = load_truth(next(Path(str(run.settings.data.source)).glob("train_truth.*")), manifest_of(run))
    kept = np.flatnonzero(labels >= 0)
    true = [names[labels[row]] in truth[row] for row in kept]
    return {"true": float(np.mean(true)), "kept": len(kept) / len(labels)}


PARTS: dict[str, Callable[..., dict[str, float]]] = {
    "machine": machine, "work": work, "flops": flops, "products": products, "map": size_map, "instead": instead,
    "ours": ours,
}  # fmt: skip


def child(part: str, run: Path, *more: str) -> dict[str, float]:
    """A part in a process of its own."""
    command = [sys.executable, __file__, "--part", part, "--run", str(run), *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def size_of(run: Any, stages: list[str]) -> int:
    """Bytes of the files of some stages."""
    files = (file for name in stages for file in run.folder(name).rglob("*") if file.is_file())
    return sum(file.stat().st_size for file in files)


def limit_of(run: Any, name: str, rates: dict[str, float], products: float) -> float:
    """Seconds that a stage cannot do without."""
    from capro.data.manifest import manifest_of
    from capro.stages import PLAN

    pictures = len(manifest_of(run).samples)
    if name == "features":
        return pictures / rates["encoded"]
    stage = PLAN[name]
    read = size_of(run, [*stage.inputs(run.settings), name])
    decoded = pictures / rates["pictures"] if name in DECODING else 0.0
    return products / rates["flops"] + read / rates["bytes"] + decoded


def compare(run_path: Path, seconds: dict[str, float]) -> float:
    """The table of what a user would do instead; returns how many times as long our run takes."""
    shared = sum(seconds.get(name, 0.0) for name in ("scan", "classes", "pixels", "features"))
    other, own = child("instead", run_path), child("ours", run_path)
    own["seconds"] = sum(seconds.values()) - shared - seconds["report"]
    print(
        f"\n{'beside it':<34}{'after features s':>17}{'with them s':>13}{'top-1':>8}{'labels true':>13}{'kept':>7}"
    )
    for name, row in (("logistic regression and cleanlab", other), ("capro", own)):
        print(
            f"{name:<34}{row['seconds']:>17.1f}{shared + row['seconds']:>13.1f}{100 * row['top1']:>8.1f}"
            f"{100 * row['true']:>12.1f}%{100 * row['kept']:>6.0f}%"
        )
    print()
    return (shared + own["seconds"]) / (shared + other["seconds"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="queryweb32", choices=["queryweb32", "shopweb64"])
    parser.add_argument("--set", action="append", default=[], help="override a setting")
    parser.add_argument("--part", choices=[*PARTS], help=argparse.SUPPRESS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.part:
        stage = (a.stage,) if a.stage else ()
        print(json.dumps(PARTS[a.part](a.run, *stage)))
        return 0
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder) / "run", a.data, a.set)


def measure(path: Path, data: str, overrides: list[str]) -> int:
    """Run every stage, print the tables; 1 where a bound is missed."""
    from capro import config
    from capro.pipeline.run import Run
    from capro.stages import PLAN
    from variants import PRESETS, SHARED

    source = [f"data.source={SHARED / data}", f"data.classes={SHARED / data / 'classes.yaml'}"]
    run = Run.create(path, config.load(preset_name=PRESETS[data], overrides=[*source, *overrides]))
    run.save_settings()
    names = [stage.name for stage in PLAN.of(run.settings)]
    done = child("work", path)
    seconds = {name: done[name] for name in [*names, "report"]}
    total, rates = sum(seconds.values()), child("machine", path)
    print(f"{data}, preset {PRESETS[data]} {' '.join(overrides)}".rstrip())
    print(
        f"this machine: {rates['flops'] / 1e9:.0f} GFLOP/s, copies {rates['bytes'] / 1e9:.1f} GB/s, decodes "
        f"{rates['pictures']:,.0f} pictures/s, encodes {rates['encoded']:,.0f} pictures/s\n"
    )
    print(f"{'stage':<10}{'s':>8}{'share':>8}{'limit s':>9}{'ratio':>8}{'GFLOP':>9}{'peak GB':>9}")
    ratios, whole, own = {}, 0.0, 0.0
    for name in names:
        counted = child("flops", path, "--stage", name)["flops"]
        limit = limit_of(run, name, rates, counted)
        ratios[name] = seconds[name] / limit
        if name in TRAININGS:
            again = child("products", path, "--stage", name)
            whole, own = whole + again["seconds"], own + again["products"]
        print(
            f"{name:<10}{seconds[name]:>8.2f}{100 * seconds[name] / total:>7.1f}%{limit:>9.2f}{ratios[name]:>8.1f}"
            f"{counted / 1e9:>9,.0f}{done[f'{name} GB']:>9.2f}"
        )
    print(
        f"{'report':<10}{seconds['report']:>8.2f}{100 * seconds['report'] / total:>7.1f}%{'':>26}"
        f"{done['report GB']:>9.2f}\n{'all':<10}{total:>8.2f}\n"
    )
    drawn = child("map", path)
    rest = 1 - sum(seconds.get(name, 0.0) for name in (*FEATURES, *TRAININGS)) / total
    found = {
        "features": (ratios["features"], "features take {:.2f} times the encoder's own layers"),
        "training": (whole / own, "trainings take {:.2f} times their matrix products"),
        "map": (drawn["seconds"], f"t-SNE of {drawn['points']:,.0f} points takes {{:.1f}} s"),
        "rest": (rest, "neither feature nor training: {:.3f} of the run"),
        "instead": (compare(path, seconds), "capro takes {:.2f} times as long"),
    }
    for name, (value, text) in found.items():
        print(
            f"{'ok  ' if value <= BOUNDS[name] else 'FAIL'} {text.format(value)} (at most {BOUNDS[name]:g})"
        )
    return int(any(value > BOUNDS[name] for name, (value, _) in found.items()))


if __name__ == "__main__":
    sys.exit(main())
