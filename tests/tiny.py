"""A tiny dataset on disk, and runs over it in seconds: coloured squares with one-word titles."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from capro import config
from capro.pipeline.run import Run
from capro.stages import PLAN

COLOURS = {"red": (220, 60, 60), "green": (60, 200, 60), "blue": (60, 60, 220)}
FAST = [
    "views.size=16", "views.crop_scale=0.6", "net.backbone=small", "net.embedding_dim=8",
    "net.frozen_views=3", "match.top_k=4", "match.k=3",
    "pretrain.epochs=2", "pretrain.batch_size=9", "pretrain.warmup_epochs=1", "pretrain.lr=0.05",
    "train.epochs=3", "train.batch_size=9", "train.warmup_epochs=1", "train.lr=0.05",
    "train.frozen_epochs=1", "train.correct_after=1", "train.queue=16", "train.anchor_epochs=2",
    "train.key_momentum=0.9", "train.prototype_momentum=0.9",
    "finetune.epochs=2", "finetune.batch_size=9", "finetune.lr=0.05",
]  # fmt: skip


def write_data(
    folder: Path, *, per_class: int = 9, multi: bool = False, names: Sequence[str] = tuple(COLOURS)
) -> Path:
    """Train and test images with metadata.jsonl, and classes.yaml."""
    rng = np.random.default_rng(0)
    for split, count in (("train", per_class), ("test", 2)):
        (folder / split / "images").mkdir(parents=True)
        rows = []
        for number in range(count * len(names)):
            name = names[number % len(names)]
            colour = np.array(COLOURS[name]) + rng.integers(-30, 30, size=(20, 20, 3))
            file = f"images/{number:03d}.png"
            Image.fromarray(colour.clip(0, 255).astype(np.uint8)).save(folder / split / file)
            wrong = split == "train" and number % 7 == 6
            label = names[(number + 1) % len(names)] if wrong else name
            also = [names[0]] if number % 4 == 0 and label != names[0] else []
            row: dict[str, Any] = {"file_name": file, "title": f"a {name} square"}
            row |= {"labels": [label, *also]} if multi else {"label": label}
            rows.append(json.dumps(row) + "\n")
        (folder / split / "metadata.jsonl").write_text("".join(rows), "utf-8")
    lines = [f"- {{name: {name}, definition: the colour {name}}}\n" for name in names]
    (folder / "classes.yaml").write_text("".join(lines), "utf-8")
    return folder


class WordEncoder:
    """Stands for a language model: a text is the sum of random vectors of its words."""

    name, dim, max_tokens, parameters, fingerprint = "words", 16, 256, 1000, "words"

    def gflops(self, tokens: int | None = None) -> float:
        return 0.001 * (tokens or self.max_tokens)

    def encode(self, texts: Sequence[str], **_options: Any) -> np.ndarray[Any, Any]:
        out = np.zeros((len(texts), self.dim), dtype=np.float32)
        for number, text in enumerate(texts):
            for word in text.lower().split():
                out[number] += np.random.default_rng(list(word.encode())).standard_normal(self.dim)
        return out / np.linalg.norm(out, axis=1, keepdims=True).clip(min=1e-9)


def settings(data: Path, *overrides: str) -> config.Settings:
    given = [f"data.source={data}", f"data.classes={data / 'classes.yaml'}"]
    return config.load(overrides=[*given, *FAST, *overrides])


def prepare(run: Run, **options: Any) -> None:
    """Every stage before step 2."""
    PLAN.do(run, "scan", "pretrain", "embed", "match", **options)


def copied(run: Run, target: Path, *overrides: str) -> Run:
    """A copy of a run, under changed settings."""
    shutil.copytree(run.path, target)
    made = Run.create(target, config.update(run.settings, overrides))
    made.save_settings()
    return made


def results(run: Run) -> dict[str, bytes]:
    """What the trainings wrote, to the byte."""
    found = {}
    for stage in ("pretrain", "train", "clean", "finetune"):
        for path in sorted(run.folder(stage).glob("*")):
            if path.name != "stage.json" and path.is_file():
                found[f"{stage}/{path.name}"] = path.read_bytes()
    return found


def processes() -> Any:
    """Processes that fork from one which has imported everything and done nothing."""
    context = multiprocessing.get_context("forkserver")
    ours = ["capro.cli", "capro.cli.tables", "capro.demo.run", "tests.tiny"]
    ours += [f"capro.stages.{name}" for name in PLAN.names]
    slow = ["accelerate", "faiss", "kornia", "pyarrow", "rich", "torch._dynamo"]
    context.set_forkserver_preload([*ours, *slow])
    return context


def fatal(die: str, at: int, act: Callable[[], Any] | None = None) -> None:
    """Make the ``at``-th call of a function kill this process, or act in another way.

    Args:
        die: Dotted name of the function, and an optional "after".
        at: Which call.
        act: What to do instead of a kill.
    """
    import importlib

    module_name, _, name = die.removesuffix(" after").rpartition(".")
    owner: Any = importlib.import_module("os" if module_name == "os" else module_name)
    real, calls = getattr(owner, name), [0]
    do = act or (lambda: os.kill(os.getpid(), signal.SIGKILL))

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        last = calls[0] == at
        if last and not die.endswith("after"):
            do()
        value = real(*args, **kwargs)
        if last:
            do()
        return value

    setattr(owner, name, counted)


def work(path: str, stages: Sequence[str], die: str = "", at: int = -1) -> None:
    """Run stages in a process of its own, which kills itself at a chosen moment.

    Args:
        path: Run directory.
        stages: Their names.
        die: See ``fatal``, as for ``at``.
        at: Which call.
    """
    os.fsync = lambda _descriptor: None
    if die:
        fatal(die, at)
    run = Run.open(Path(path))
    for stage in stages:
        PLAN.do(run, stage)
