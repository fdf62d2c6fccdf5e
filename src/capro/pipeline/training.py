"""The three steps and the offline pass."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from capro import assemble, progress, verdicts
from capro.assemble import manifest_of
from capro.clean import judge
from capro.data.manifest import Manifest
from capro.graph.budget import Budget
from capro.graph.neighbors import nearest
from capro.nets.siamese import Siamese
from capro.pipeline.base import Work, stage, write_frame
from capro.runs import (
    Run,
    fingerprint,
    read_array,
    write_array,
    write_json,
)
from capro.train.batches import Inputs
from capro.train.checkpoints import Checkpoints
from capro.train.loop import NOT_FINITE, fit
from capro.train.ranks import Ranks
from capro.train.steps import ClassifierOnly, Objective, Prototypes, WebLabels
from capro.train.tasks import Task
from capro.witness import TextWitness

# --- step 1 ---------------------------------------------------------------------------------------


def pretrain(
    run: Run, *, bar: progress.Bar = progress.silent, say: Callable[[str], None] = lambda _: None
) -> None:
    """Step 1: train on web labels; the result is the vanilla baseline."""
    settings = run.settings
    manifest = manifest_of(run)
    ranks = assemble.ranks_of(settings, run.folder("log"))

    def work(folder: Path) -> dict[str, Any]:
        training, task, net, inputs = _parts(run, manifest, ranks)
        objective = WebLabels(
            net, task, training.labels, ranks, lambda_prj=settings.pretrain.lambda_prj
        )
        found: dict[str, Any] = {}
        if settings.net.mode == "full":
            size = settings.views.size or net.encoder.size
            found["encoder"] = assemble.encoder_cost(net.encoder, size)
            say(assemble.cost_line("encoder", found["encoder"]))
        history = _fit(
            run, "pretrain", objective, inputs, training, training.positions,
            name="step 1: web labels", seed=settings.seed, ranks=ranks, bar=bar,
        )  # fmt: skip
        if ranks.main:
            assemble.save_net(folder / "model.safetensors", net)
            write_json(folder / "history.json", history)
        return {"epochs": len(history), **found}

    _train_stage(run, "pretrain", work, ranks)


def _parts(
    run: Run, manifest: Manifest, ranks: Ranks
) -> tuple[assemble.TrainingSet, Task, Siamese, Inputs]:
    """What every step works on: training set, task, a new network, and where its input is from."""
    device = ranks.accelerator.device
    training = assemble.training_set(run, manifest, device)
    net = assemble.new_net(run, training).to(device)
    inputs = assemble.inputs_of(run, manifest, net.encoder)
    return training, training.task(run.settings.net.tau), net, inputs


def _fit(
    run: Run,
    stage: Literal["pretrain", "train", "finetune"],
    objective: Objective,
    inputs: Inputs,
    training: assemble.TrainingSet,
    positions: NDArray[np.int64],
    *,
    name: str,
    seed: int,
    ranks: Ranks,
    bar: progress.Bar,
) -> list[dict[str, float]]:
    """Train by the schedule of a stage, followed by its tracker; returns the history."""
    settings = run.settings
    with assemble.tracked(ranks, stage, settings) as log:
        return fit(
            objective,
            inputs,
            positions,
            getattr(settings, stage),
            name=name,
            seed=seed,
            ranks=ranks,
            ids=training.ids,
            checkpoints=_checkpoints(run, stage),
            bar=bar,
            checkpoint_minutes=settings.log.checkpoint_minutes,
            log=log,
        )


def _train_stage(run: Run, name: str, work: Work, ranks: Ranks) -> None:
    """A stage in which all ranks train; its checkpoints go when its result is there."""
    stage(
        run,
        name,
        work,
        settings=_decides(run, name),
        inputs=_inputs(run, name),
        ranks=ranks,
        training=True,
    )
    if ranks.main:
        _checkpoints(run, name).clear()
        (run.folder(name) / NOT_FINITE).unlink(missing_ok=True)  # of an attempt that failed


def _inputs(run: Run, stage: str) -> list[str]:
    """The stages that a training reads."""
    features = ["features"] if run.settings.net.mode == "frozen" else []
    read = {
        "pretrain": features,
        "train": ["pretrain", "match"],
        "finetune": ["train", "clean"],
    }
    return ["scan", "classes", *read[stage]]


def _decides(run: Run, *stages: str) -> dict[str, Any]:
    """Settings that decide a training."""
    settings = run.settings
    parts = {name: getattr(settings, name).model_dump() for name in ("net", *stages)}
    parts["views"] = settings.views.model_dump(exclude={"cache_gb"})
    return parts | {"seed": settings.seed}


def _checkpoints(run: Run, stage: str, *within: str) -> Checkpoints:
    """The checkpoints of a stage, or of a training within it."""
    prints = [run.need(name) for name in _inputs(run, stage)]
    folder = run.folder(stage).joinpath("checkpoints", *within)
    return Checkpoints(folder, fingerprint([prints, _decides(run, stage)]))


# --- steps 2 and 3 --------------------------------------------------------------------------------


def anchored_of(run: Run, training: assemble.TrainingSet) -> torch.Tensor:
    """Who is an anchor (of which class), in the shape of the labels."""
    run.need("match")
    frame = pd.read_parquet(run.folder("match") / "anchors.parquet")
    anchored = torch.zeros_like(training.labels, dtype=torch.bool)
    rows = torch.from_numpy(frame["row"].to_numpy(dtype=np.int64)).to(anchored.device)
    if training.multi_label:
        columns = torch.from_numpy(frame["class_index"].to_numpy(dtype=np.int64))
        anchored[rows, columns.to(anchored.device)] = True
    else:
        anchored[rows] = True
    return anchored


def _witness(run: Run, training: assemble.TrainingSet) -> TextWitness | None:
    """What the texts say of every sample, where they are to be heard in the label rule."""
    if training.multi_label or not run.settings.train.text_weight:
        return None
    return TextWitness.fitted(
        read_array(run.folder("graph") / "texts.npy"),
        read_array(run.folder("embed") / "prototypes.npy"),
        training.labels.cpu().numpy(),
    )


def train(run: Run, *, bar: progress.Bar = progress.silent) -> None:
    """Step 2: prototypes, bootstrapping, label correction."""
    settings, manifest = run.settings, manifest_of(run)
    ranks = assemble.ranks_of(settings, run.folder("log"))

    def work(folder: Path) -> dict[str, Any]:
        training, task, net, inputs = _parts(run, manifest, ranks)
        anchored = anchored_of(run, training)
        assemble.load_net(run.folder("pretrain") / "model.safetensors", net)
        if settings.train.start == "anchors":
            _train_on_anchors(run, net, training, anchored, inputs, ranks, bar)
        net.reset_key()
        objective = Prototypes(
            net,
            task,
            training.labels,
            anchored,
            inputs,
            training.positions,
            settings.train,
            ranks,
            tau=settings.net.tau,
            seed=settings.seed,
            witness=_witness(run, training),
        )
        history = _fit(
            run, "train", objective, inputs, training, training.positions,
            name="step 2: prototypes", seed=settings.seed + 1, ranks=ranks, bar=bar,
        )  # fmt: skip
        if ranks.main:
            extra = {"prototypes": objective.prototypes}
            assemble.save_net(folder / "model.safetensors", net, extra)
            write_json(folder / "history.json", history)
        return {"epochs": len(history), "last": history[-1] if history else {}}

    _train_stage(run, "train", work, ranks)


def _train_on_anchors(
    run: Run,
    net: Any,
    training: assemble.TrainingSet,
    anchored: torch.Tensor,
    inputs: Inputs,
    ranks: Ranks,
    bar: progress.Bar,
) -> None:
    """Fresh heads, trained on the anchors alone; the encoder stays as step 1 left it."""
    settings = run.settings
    heads = assemble.new_heads(settings, net.encoder.dim, training, name="anchors")
    net.heads.load_state_dict(heads.state_dict())
    member = anchored if not training.multi_label else anchored.any(dim=1)
    rows = torch.nonzero(member).flatten()
    objective = WebLabels(
        net,
        training.task(settings.net.tau),
        training.labels[rows],
        ranks,
        lambda_prj=settings.train.lambda_prj,
        freeze=True,
    )
    schedule = settings.train.model_copy(
        update={"epochs": settings.train.anchor_epochs, "warmup_epochs": 0}
    )
    fit(
        objective,
        inputs,
        training.positions[rows.cpu().numpy()],
        schedule,
        name="heads on anchors",
        seed=settings.seed,
        ranks=ranks,
        ids=training.ids,
        checkpoints=_checkpoints(run, "train", "anchors"),  # a resumed run has them at once
        bar=bar,
        checkpoint_minutes=settings.log.checkpoint_minutes,
    )


def clean(run: Run) -> dict[str, Any]:
    """The offline pass: a verdict per training sample, and the cleaned labels."""
    settings, manifest = run.settings, manifest_of(run)

    def work(folder: Path) -> dict[str, Any]:
        training, task, net, inputs = _parts(run, manifest, assemble.ranks_of(settings))
        anchored = anchored_of(run, training)
        extra = assemble.load_net(run.folder("train") / "model.safetensors", net)
        judged = judge(
            net,
            task,
            extra["prototypes"].to(training.labels.device),
            training.labels,
            anchored,
            inputs,
            training.positions,
            settings.train,
            _witness(run, training),
        )
        write_array(folder / "labels.npy", judged.labels)
        write_array(folder / "fused.npy", judged.fused)
        evidence = _evidence(run, training, anchored, judged, scratch=folder / "scratch")
        if training.multi_label:  # labels as lists, beside the (sample, class) table
            write_frame(folder / "samples.parquet", verdicts.multi_label(evidence))
            frame = verdicts.pairs(evidence)
        else:
            (folder / "samples.parquet").unlink(missing_ok=True)  # of other data
            frame = verdicts.single_label(evidence)
        write_frame(folder / "verdicts.parquet", frame)
        counts = frame["decision"].value_counts()
        return {str(name): int(count) for name, count in counts.items()}

    stage(
        run,
        "clean",
        work,
        inputs=["scan", "classes", "embed", "match", "train"],
        settings=settings.train.model_dump(include={"gamma", "alpha", "text_weight", "policy"}),
    )
    return dict((run.finished("clean") or {})["result"])


def _evidence(
    run: Run, training: assemble.TrainingSet, anchored: torch.Tensor, judged: Any, *, scratch: Path
) -> verdicts.Evidence:
    """What the verdict tables are written from."""
    settings, chosen = run.settings, run.settings.match
    shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed
    distances = pd.read_parquet(run.folder("match") / "distances.parquet")
    graph = run.folder("graph") / "graph.npz"
    near = nearest(
        read_array(run.folder("embed") / "visual.npy"),
        verdicts.NEIGHBORS,
        exact_below=chosen.exact_below,
        seed=settings.seed,
        budget=Budget.of(chosen.memory_gb, scratch),
        index_kind=chosen.index,
        recall=chosen.recall,
    )
    shutil.rmtree(scratch, ignore_errors=True)
    used = graph.exists() and chosen.enhancer != "none"  # a file of an earlier enhancer
    return verdicts.Evidence(
        ids=np.array([training.ids[position] for position in training.positions], dtype=object),
        classes=training.classes,
        given=training.labels.cpu().numpy(),
        corrected=judged.labels,
        decisions=judged.decisions,
        anchored=anchored.cpu().numpy(),
        fused=judged.fused,
        classifier=judged.classifier,
        similarity=judged.similarity,
        text=judged.text,
        text_distance=distances[["id", "class", "distance"]],
        pictures=verdicts.look_at_pictures(near),
        spoke=verdicts.spoke_for(np.load(graph) if used else None, len(training.positions)),
        gamma=settings.train.gamma,
    )


def finetune(run: Run, *, bar: progress.Bar = progress.silent) -> None:
    """Step 3: the classifier alone, on the cleaned labels."""
    settings, manifest = run.settings, manifest_of(run)
    ranks = assemble.ranks_of(settings, run.folder("log"))

    def work(folder: Path) -> dict[str, Any]:
        training, task, net, inputs = _parts(run, manifest, ranks)
        extra = assemble.load_net(run.folder("train") / "model.safetensors", net)
        labels = torch.from_numpy(np.array(read_array(run.folder("clean") / "labels.npy")))
        kept = torch.nonzero(~task.out(labels)).flatten()
        labels = labels[kept].to(training.labels.device)
        positions = training.positions[kept.numpy()]
        objective = ClassifierOnly.by(
            settings.finetune, net, task, labels, ranks, inputs, positions
        )
        history = _fit(
            run, "finetune", objective, inputs, training, positions,
            name="step 3: classifier", seed=settings.seed + 2, ranks=ranks, bar=bar,
        )  # fmt: skip
        objective.finish()
        if ranks.main:
            assemble.save_net(folder / "model.safetensors", net, extra)
            write_json(folder / "history.json", history)
        return {"epochs": len(history), "samples": len(kept)}

    _train_stage(run, "finetune", work, ranks)
