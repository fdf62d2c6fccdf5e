"""A dataset of coloured squares that a frozen random network can learn, and settings for it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

from capro import config
from capro.config import Settings

COLOURS = {"crimson": (200, 20, 40), "azure": (20, 90, 220), "lime": (60, 210, 40)}
WORDS = {"crimson": "deep red fruit", "azure": "blue clear sky", "lime": "green citrus"}
NOVEL = {"gold": (230, 200, 30)}


def write_data(
    folder: Path,
    *,
    train: int = 16,
    test: int = 6,
    val: int = 0,
    noise: int = 4,
    multi: bool = False,
    novel: bool = False,
) -> Path:
    """Folders train, test (and val) of one picture per sample, and the truth of train.

    The first ``noise`` pictures of each class show the next class's colour and text.
    """
    rng = np.random.default_rng(0)
    names = list(COLOURS)
    truth = []
    for split, count in (("train", train), ("val", val), ("test", test)):
        rows = []
        for c, name in enumerate(names):
            for number in range(count):
                wrong = split == "train" and number < noise
                shown = names[(c + 1) % len(names)] if wrong else name
                other = names[(c + 2) % len(names)] if multi and number % 3 == 2 else None
                file = f"{name}-{number:03d}.png"
                _picture(folder / split / file, [shown, *([other] if other else [])], rng)
                labels = [name, *([other] if other else [])]
                text = WORDS[shown] if number % 5 else ""
                rows.append([file, "|".join(labels), text])
                if split == "train":
                    truth.append([f"{split}/{file}", "|".join([shown, *labels[1:]])])
        if split == "test" and novel:
            for name in NOVEL:
                for number in range(count):
                    file = f"{name}-{number:03d}.png"
                    _picture(folder / split / file, [name], rng)
                    rows.append([file, name, ""])
        if count:
            with (folder / split / "metadata.csv").open("w", newline="") as out:
                csv.writer(out).writerows([["file_name", "label", "title"], *rows])
    with (folder / "train_truth.csv").open("w", newline="") as out:
        names_of = [[name.removeprefix("train/"), label] for name, label in truth]
        csv.writer(out).writerows([["file_name", "true_labels"], *names_of])
    lines = [
        f"- name: {name}\n  definition: {WORDS[name]}\n  ambiguous: {str(name == 'lime').lower()}\n"
        for name in names
    ]
    (folder / "classes.yaml").write_text("".join(lines))
    return folder


def _picture(path: Path, shown: list[str], rng: np.random.Generator) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.empty((24, 24, 3))
    for part, name in zip(np.array_split(np.arange(24), len(shown)), shown, strict=True):
        pixels[:, part] = (COLOURS | NOVEL)[name]
    noisy = pixels + rng.normal(0, 20, pixels.shape)
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path)


def settings(data: Path, *overrides: str, multi: bool = False) -> Settings:
    """Frozen mode, a few epochs: a run takes seconds."""
    return config.load(
        overrides=[
            f"data.source={data}",
            f"data.classes={data / 'classes.yaml'}",
            *(["data.label_separator='|'"] if multi else []),
            "net.mode=frozen", "net.backbone=small", "net.embedding_dim=8", "net.frozen_views=2",
            "views.size=32", "match.k=3", "match.top_k=4",
            "pretrain.epochs=4", "pretrain.batch_size=16", "pretrain.warmup_epochs=0",
            "train.epochs=2", "train.batch_size=16", "train.queue=32", "train.warmup_epochs=0",
            "train.frozen_epochs=0", "train.correct_after=1", "train.prototype_momentum=0.9", "match.contrast=1",
            "finetune.epochs=2", "finetune.batch_size=16", "finetune.lr=0.05",
            *overrides,
        ]
    )  # fmt: skip
