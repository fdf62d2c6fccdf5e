"""A small run directory with hostile texts: scanned for real, the other artefacts written directly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from PIL import Image

from capro import config
from capro.core.kept_scores import keep
from capro.pipeline.artefacts import FUSED_SCORES, SAMPLE_VERDICTS, VERDICTS, write_array, write_json
from capro.pipeline.run import Run
from capro.report.collect import collect
from capro.stages import PLAN
from capro.stages import report as stage
from tests.fakes import fake_stage

HOSTILE = (
    '<img src=x onerror="window.hacked=1">',
    "</script><script>window.hacked=2</script>",
    "javascript:window.hacked=3",
)
NAMES = ["cat", *HOSTILE]
TITLES = (*HOSTILE, "<!-- <script>", '" onmouseover="window.hacked=4', "\u202egnp.exe", "", "a cat")
SIZE, TESTS = 48, 16
STAGES = ("classes", "pretrain", "embed", "match", "train", "clean", "finetune", "evaluate")
HELD_OUT = {
    "threshold": 0.37,
    "known": {"from": "the val split", "samples": 1200, "kept": 0.81},
    "open": {"from": "the same without their own classes", "rejected": 0.6},
    "rule": "best C-F1",
}


def collected(run: Run, title: str | None = None) -> Any:
    """What the page of a run shows."""
    return collect(run, PLAN, held_out=stage.HELD_OUT, title=title)


def make_run(
    path: Path, *, multi: bool = False, test: bool = True, upto: str = "evaluate", seed: int = 0
) -> Run:
    """A run of 48 training and 16 test pictures in four classes, up to a stage."""
    rng = np.random.default_rng(seed)
    source = path / "data"
    for split, size in (("train", SIZE), ("test", TESTS if test else 0)):
        _pictures(source / split, size, rng, multi=multi) if size else None
    classes = path / "classes.yaml"
    specs = [{"name": name, "definition": f"a thing <b>{n}</b>"} for n, name in enumerate(NAMES)]
    classes.write_text(yaml.safe_dump(specs))
    overrides = [f"data.source={source}", f"data.classes={classes}", "train.correct_after=0", "method=paper"]
    run = Run.create(path / "run", config.load(preset_name="scratch", overrides=overrides))
    PLAN.do(run, "scan")
    manifest = pd.read_parquet(run.folder("scan") / "manifest.parquet")
    if upto == "scan":
        return run
    for name in STAGES[: STAGES.index(upto) + 1]:
        if name == "classes":
            PLAN.do(run, "classes")
        else:
            fake_stage(run, name, _writer(name, manifest, rng, multi=multi))
    return run


def _pictures(folder: Path, size: int, rng: np.random.Generator, *, multi: bool) -> None:
    folder.mkdir(parents=True)
    rows = []
    for number in range(size):
        c = number % len(NAMES)
        base = np.array([40 + 50 * c, 200 - 40 * c, 90])
        pixels = np.clip(rng.normal(base, 20, (32, 40, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03d}.png")
        title = TITLES[number % len(TITLES)]
        labels: Any = {"labels": [NAMES[c], NAMES[(c + 1) % 4]]} if multi else {"label": NAMES[c]}
        text = {"title": title, "description": f"{title} {title}", "tags": ["x", title]}
        rows.append({"file_name": f"{number:03d}.png", **text, **labels})
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


def given_labels(manifest: pd.DataFrame, split: str, *, multi: bool) -> Any:
    part = manifest[manifest["split"] == split]
    if not multi:
        return np.array([NAMES.index(name) for name in part["label"]])
    member = np.zeros((len(part), len(NAMES)), dtype=np.int64)
    for row, names in enumerate(part["labels"]):
        member[row, [NAMES.index(name) for name in names]] = 1
    return member


def _writer(
    name: str, manifest: pd.DataFrame, rng: np.random.Generator, *, multi: bool
) -> Callable[[Path], dict[str, Any]]:
    y, tests = (given_labels(manifest, split, multi=multi) for split in ("train", "test"))
    ids = manifest.loc[manifest["split"] == "train", "id"].tolist()
    n, c = len(y), len(NAMES)
    anchors = np.arange(8)
    first = y.argmax(axis=1) if multi else y

    def work(folder: Path) -> dict[str, Any]:
        if name in ("pretrain", "train", "finetune"):
            shares = {"keep": 0.5, "relabel": 0.3, "drop": 0.2} if name == "train" else {}
            rows = [{"epoch": float(e), "lr": 0.1, "loss": 2 - e, "cls": 1.0, **shares} for e in (0, 1)]
            write_json(folder / "history.json", rows)
        elif name == "embed":
            write_array(folder / "visual.npy", _near(first, c, rng))
            write_array(folder / "texts.npy", _near(first, c, rng))
            write_array(folder / "prototypes.npy", np.eye(c, 8, dtype=np.float32))
        elif name == "match":
            pd.DataFrame(
                {
                    "class": [NAMES[first[row]] for row in anchors],
                    "rank": anchors // c,
                    "id": [ids[row] for row in anchors],
                    "row": anchors,
                    "class_index": first[anchors],
                    "chosen_by": "text",
                    "words": [[HOSTILE[1], "cat"] for _ in anchors],
                    "neighbors": [ids[-2:] for _ in anchors],
                }
            ).to_parquet(folder / "anchors.parquet")
        elif name == "clean":
            after = y.copy()
            if multi:
                after[10] = [1, 1, 1, 1]
                after[11, first[11]] = 0
                after[12] = -1
            else:
                after[[10, 11, 20, 21, 30]] = [0, 1, 2, 3, 0]
                after[[12, 13]] = -1
            write_array(folder / "labels.npy", after)
            reasons = [f"Kept as {NAMES[first[row]]!r}: a made-up reason" for row in range(n)]
            pd.DataFrame({"id": ids, "evidence": reasons}).to_parquet(
                folder / (SAMPLE_VERDICTS if multi else VERDICTS).file
            )
            write_array(folder / FUSED_SCORES.file, keep({"fused": rng.dirichlet(np.ones(c), n)}))
        elif name == "evaluate" and len(tests):
            results = {}
            for model, right in (("vanilla", 1.0), ("capro", 2.0)):
                member = tests if multi else np.eye(c)[tests]
                scores = rng.random((len(tests), c)) + right * member * rng.random((len(tests), 1))
                scores /= scores.max() if multi else scores.sum(axis=1, keepdims=True)
                write_array(folder / f"{model}.npy", scores.astype(np.float32))
                metric = {"C-F1": right / 3, "mAP": right / 3} if multi else {"top1": right / 3}
                results[model] = metric
            return results
        return {}

    return work


def _near(label: Any, classes: int, rng: np.random.Generator) -> Any:
    """Unit vectors around an axis per class, (n, 8)."""
    x = np.eye(classes, 8)[label] + rng.normal(0, 0.2, (len(label), 8))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
