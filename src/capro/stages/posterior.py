"""Which label is true? The posterior from web label, texts and picture (method `plus`, docs/plus.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from capro.config import Settings
from capro.evaluate.class_findings import class_findings, finding_text
from capro.method import plus
from capro.review.decisions import deciding_person
from capro.run.artefacts import (
    CLASS_NAME_TEXTS,
    CLASS_TEXTS,
    FIELD_TEXTS,
    JOINT_PICTURES,
    JOINT_PROMPTS,
    JOINT_TEXTS,
    OTHER_SENSES,
    PICTURE_EVIDENCE,
    POSTERIOR,
    VISUAL,
    WORD_EVIDENCE,
    Artefact,
)
from capro.run.directory import Run
from capro.run.stage import Job, Stage
from capro.stages.decided import known_of
from capro.text.towers import has_text_tower
from capro.train.setup import TrainingSet, anchored_of, text_anchors, training_set


def _tensor(run: Run, artefact: Artefact[Any]) -> Tensor:
    return torch.from_numpy(np.array(run.read(artefact)))


def _joint(run: Run) -> plus.Joint | None:
    """What an image-text model says in its own space; None where the backbone is none."""
    if not has_text_tower(run.settings.net.backbone):
        return None
    texts = [_tensor(run, JOINT_TEXTS[name]) for name in run.result("embed")["fields"]]
    return plus.joint_evidence(_tensor(run, JOINT_PICTURES), _tensor(run, JOINT_PROMPTS), texts)


def posterior_of(run: Run, training: TrainingSet, features: Tensor, **options: Any) -> plus.Posterior:
    """The posterior of the training rows from features of their pictures, (n, d), and what the run knows."""
    x = plus.centred(features)
    texts = [_tensor(run, FIELD_TEXTS[name]) for name in run.result("embed")["fields"]]
    class_texts, labels = _tensor(run, CLASS_TEXTS), training.labels.cpu()
    settings = run.settings.plus
    known = known_of(run, training)
    options = {
        "folds": settings.folds,
        "seed": run.settings.seed,
        "known": known,
        "joint": _joint(run),
        **options,
    }
    if settings.rounds:
        options.setdefault("rounds", settings.rounds)
    if training.multi_label:
        names = _tensor(run, CLASS_NAME_TEXTS)
        return plus.several_labels(x, texts, class_texts, labels, class_names=names, **options)
    owners = torch.tensor(run.result("embed")["sense_owners"], dtype=torch.int64)
    return plus.single_label(
        x, texts, class_texts, labels, anchors=anchored_of(run, training).cpu(),
        senses=_tensor(run, OTHER_SENSES), owner=owners, **options,
    )  # fmt: skip


def _work(job: Job) -> dict[str, Any]:
    training = training_set(job.run)
    with job.bar("weighing evidence", None):
        found = posterior_of(job.run, training, _tensor(job.run, VISUAL))
    job.write(POSTERIOR, found.q.numpy())
    job.write(WORD_EVIDENCE, found.words.numpy())
    job.write(PICTURE_EVIDENCE, found.picture.numpy())
    fields = job.run.result("embed")["fields"]
    weights = found.field_weights.reshape(len(fields), -1).mean(1).tolist() if fields else []
    return {
        "label_weight": found.label_weight,
        "field_weights": dict(zip(fields, weights, strict=True)),
        **_joint_weights(found, fields),
        "none_of_these": None if found.several else float(found.prior[-1]),
        "findings": _findings(job.run, training, found),
    }


def _joint_weights(found: plus.Posterior, fields: list[str]) -> dict[str, Any]:
    """How much the image-text model's own evidence counted, where there is one."""
    if found.zero_shot_weight is None or found.fit_weights is None:
        return {}
    fits = dict(zip(fields, found.fit_weights.tolist(), strict=True))
    return {"zero_shot_weight": found.zero_shot_weight, "fit_weights": fits}


def _findings(run: Run, training: TrainingSet, found: plus.Posterior) -> list[dict[str, Any]]:
    """Classes with something wrong, and the samples that show it (one label)."""
    if found.several:
        return []
    texts = [_tensor(run, FIELD_TEXTS[name]) for name in run.result("embed")["fields"]]
    anchors, known = text_anchors(run, training).cpu(), known_of(run, training)
    if known is not None:  # what a person decided is no sign of a class with something wrong
        anchors &= known.isnan().any(1)
    listed = plus.diagnose(found, training.labels.cpu(), texts, _tensor(run, CLASS_TEXTS), anchors=anchors)
    ids = training.row_ids
    return [
        {
            "kind": each.kind,
            "classes": [training.classes[c] for c in each.classes],
            "share": each.share,
            "samples": [ids[row] for row in each.rows],
        }
        for each in listed
    ]


def _reads(settings: Settings) -> list[str]:
    joint = ["joint"] if has_text_tower(settings.net.backbone) else []
    return ["scan", "classes", "embed", "match", *joint]


STAGE = Stage(
    "posterior",
    _work,
    summary="posterior of the true labels",
    settings=lambda run: {
        "plus": run.settings.plus.model_dump(include={"folds", "rounds"}),
        "seed": run.settings.seed,
        **deciding_person(run),
    },
    reads=_reads,
    command="clean",
    implicit=True,
    when=lambda settings: settings.method == "plus",
    check=lambda run: [finding_text(each) for each in class_findings(run)],
)
