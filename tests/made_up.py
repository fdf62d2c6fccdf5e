"""Tiny runs for tests: real images and manifests, networks that nobody trained, made-up verdicts."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from capro import config
from capro.core.kept_scores import CLASS, keep
from capro.core.label_rule import adjust, adjust_multi_label
from capro.graph.neighbors import nearest
from capro.pipeline.artefacts import (
    CLEANED_LABELS,
    FUSED_SCORES,
    SAMPLE_VERDICTS,
    STEP1,
    VERDICTS,
    write_array,
    write_table,
    write_weights,
)
from capro.pipeline.run import Run
from capro.pipeline.stage import perform
from capro.results import verdicts
from capro.results.neighbourhood import neighbourhood
from capro.stages import PLAN
from capro.train import setup
from tests.data.corpus import encode, picture
from tests.fakes import fake_stage, fake_the_rest

CLASSES = ["tiger/cat", "tiger cat", "nut"]  # two of them share a safe name
HOSTILE = ['<img src=x onerror="alert(1)">', 'a, "b"\nc;\td', "=cmd()", "", "naïve 猫 🐈", "\\ \\n '"]


def write_source(
    folder: Path, *, multi: bool = False, per_class: int = 8, test: int = 2, classes: Sequence[str] = CLASSES
) -> Path:
    """An image folder with metadata, train and test; class decides the colour."""
    for split, count in (("train", per_class), ("test", test)):
        root = folder / split
        (root / "images").mkdir(parents=True)
        with (root / "metadata.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["file_name", "labels" if multi else "label", "title", "tags"])
            for number in range(count * len(classes)):
                label = number % len(classes)
                pixels = np.asarray(picture(20, 16, seed=1000 * count + number)) // 3
                pixels[..., label % 3] += 150
                name = f"images/{number:03d} x.png"
                (root / name).write_bytes(encode(Image.fromarray(pixels)))
                names = [classes[label]] + ([classes[(label + 1) % 3]] if number % 4 == 0 else [])
                cell = json.dumps(names) if multi else classes[label]
                writer.writerow([name, cell, HOSTILE[number % len(HOSTILE)], f"tag{label} web"])
    return folder


def make_run(
    folder: Path,
    *,
    multi: bool = False,
    frozen: bool = False,
    centred: bool = False,
    names: Sequence[str] = CLASSES,
) -> Run:
    """A run with every stage that export and predict read."""
    source = write_source(folder / "data", multi=multi, classes=names)
    classes = folder / "classes.yaml"
    classes.write_text("".join(f"- {json.dumps(name)}\n" for name in names), "utf-8")
    overrides = [
        f"data.source={source}",
        f"data.classes={classes}",
        "net.backbone=small",
        "views.size=16",
        "scan.workers=1",
    ]
    overrides += [
        f"net.mode={'frozen' if frozen else 'full'}",
        "net.frozen_views=1",
        f"net.centred={centred}",
    ]
    overrides += [f"{step}.epochs=2" for step in ("pretrain", "train", "finetune")]
    run = Run.create(folder / "run", config.load(overrides=overrides))
    PLAN.do(run, "scan")
    PLAN.do(run, "classes", "pixels", *(["features"] if frozen else []))
    training = setup.training_set(run)
    for number, name in enumerate(("pretrain", "finetune")):
        net = setup.new_net(run, training)
        torch.manual_seed(number)
        torch.nn.init.normal_(net.heads.classifier.weight, std=1.0)
        state = setup.net_state(net)
        fake_stage(run, name, lambda here, state=state: write_weights(here / STEP1.file, state))
    rows = make_verdict_rows(training)
    fake_stage(run, "clean", lambda here: write_verdicts(here, rows))
    fake_the_rest(run)
    perform(run, PLAN["evaluate"])
    return run


def make_verdict_rows(training: setup.TrainingSet, seed: int = 0) -> verdicts.VerdictRows:
    """Random scores, and the real rule on them."""
    rng = np.random.default_rng(seed)
    n, c = len(training.positions), len(training.classes)
    labels = training.labels
    anchored = torch.zeros_like(labels, dtype=torch.bool)
    if training.multi_label:
        p, r = rng.random((2, n, c)).astype(np.float32)
        anchored[: n // 3] = labels[: n // 3] > 0
        o = torch.from_numpy((p + r) / 2)
        corrected, decisions = adjust_multi_label(o, labels, anchored, gamma=0.6)
    else:
        p, r = rng.dirichlet(np.full(c, 0.4), (2, n)).astype(np.float32)
        anchored[:3] = True
        o = torch.from_numpy((p + r) / 2)
        corrected, decisions = adjust(o, labels, anchored, gamma=0.6)
    features = rng.normal(size=(n, 5))
    features[4 % n] = features[5 % n]
    ids = np.array([training.ids[position] for position in training.positions], dtype=object)
    near = neighbourhood(nearest(features, min(4, n - 1)))
    lenders = [np.array([(row + 1) % n, (row + 2) % n]) for row in range(n)]
    after = corrected.numpy()
    agreeing = [int((after[others] == after[row]).sum()) for row, others in enumerate(lenders)]
    return verdicts.VerdictRows(
        ids=ids, classes=training.classes, given=labels.numpy(), corrected=after,
        decisions=decisions.numpy(), anchored=anchored.numpy(),
        scores=keep({"fused": o.numpy(), "classifier": p, "similarity": r}),
        text_distance=rng.random(labels.shape), pictures=near,
        duplicates=[ids[rows].tolist() for rows in near.duplicates],
        lenders=[ids[rows].tolist() for rows in lenders], agreeing=np.array(agreeing),
        has_text=np.ones(n, dtype=bool), chosen_by=np.full(n, "text", dtype=object), gamma=0.6,
    )  # fmt: skip


def write_verdicts(folder: Path, rows: verdicts.VerdictRows) -> None:
    """What the stage clean leaves."""
    write_array(folder / CLEANED_LABELS.file, rows.corrected)
    write_array(folder / FUSED_SCORES.file, rows.scores[[CLASS, "fused"]])
    if rows.given.ndim == 2:
        write_table(folder / SAMPLE_VERDICTS.file, verdicts.multi_label(rows))
        write_table(folder / VERDICTS.file, verdicts.pairs(rows))
    else:
        write_table(folder / VERDICTS.file, verdicts.single_label(rows))


class HashedWords:
    """A text encoder without weights: each word a fixed random vector."""

    name, dim, max_tokens, parameters, fingerprint = "hashed", 16, 256, 0, "hashed words"

    def gflops(self, tokens: int | None = None) -> float:
        return 0.001 * (tokens or 256)

    def encode(self, texts: list[str], **_: Any) -> Any:
        rows = np.zeros((len(texts), self.dim), np.float32)
        for number, text in enumerate(texts):
            for word in text.lower().split():
                rows[number] += np.random.default_rng(sum(word.encode())).normal(size=self.dim)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.where(norms > 0, norms, 1)
