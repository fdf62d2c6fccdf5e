"""What people use now, as plans: cleanlab on the same features, then step 1 and step 3 on what it leaves.

Five-fold logistic regression on the unaugmented features gives the out-of-fold probabilities that cleanlab
asks for. `find_label_issues` and Datalab then name the wrong labels. One label: those samples are left out.
Several labels: those (sample, class) pairs are turned over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from cleanlab import Datalab
from cleanlab.filter import find_label_issues
from cleanlab.multilabel_classification.filter import find_multilabel_issues_per_class
from cleanlab.rank import get_label_quality_scores
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from capro.bench.baselines.work import cross_validated
from capro.core.kept_scores import keep
from capro.pipeline.artefacts import CLEANED_LABELS, FUSED_SCORES, PLAIN_FEATURES
from capro.pipeline.plan import Plan
from capro.pipeline.run import Run
from capro.pipeline.stage import Job
from capro.train.setup import training_set
from variants import step3_after_step1

FOLDS = 5
Found = tuple[np.ndarray, np.ndarray]  # labels with -1 for out, and the score of every class, (n, C)


def cleanlab_plan(plan: Plan, by: Callable[[Run], Found]) -> Plan:
    """The plan with cleanlab in the place of step 2 and of the label rule."""

    def clean(job: Job) -> None:
        labels, scores = by(job.run)
        job.write(CLEANED_LABELS, labels)
        job.write(FUSED_SCORES, keep({"fused": scores}, multi_label=labels.ndim == 2))

    stages = step3_after_step1(plan)
    return stages.replacing(
        replace(
            stages["clean"],
            work=clean,
            settings=lambda run: {"labels": by.__name__, "seed": run.settings.seed},
            reads=["scan", "classes", "features"],
        )
    )


def probabilities(run: Run) -> np.ndarray:
    """Out of fold, (n, C)."""
    training = training_set(run)
    x = np.asarray(run.read(PLAIN_FEATURES)[training.positions])
    y = training.labels.numpy()

    def fitted(target: np.ndarray, rows: np.ndarray) -> LogisticRegression:
        return make_pipeline(StandardScaler(), LogisticRegression(C=1e-3, max_iter=100)).fit(x[rows], target)

    def learn(rows: np.ndarray, held: np.ndarray) -> np.ndarray:
        out = np.zeros((len(held), len(training.classes)), dtype=np.float32)
        if y.ndim == 1:
            model = fitted(y[rows], rows)
            out[:, model.classes_] = model.predict_proba(x[held])
            return out
        for c in range(y.shape[1]):
            if 0 < y[rows, c].sum() < len(rows):
                out[:, c] = fitted(y[rows, c], rows).predict_proba(x[held])[:, 1]
        return out

    return cross_validated(y, learn, count=FOLDS, seed=run.settings.seed)


def find_issues(run: Run) -> Found:
    """By `find_label_issues`; the score is self-confidence, cleanlab's default order."""
    p, y = probabilities(run), training_set(run).labels.numpy()
    if y.ndim == 1:
        wrong = find_label_issues(y, p.astype(np.float64), n_jobs=1)
        scores = p.copy()
        scores[np.arange(len(y)), y] = get_label_quality_scores(y, p.astype(np.float64))
        return np.where(wrong, -1, y), scores
    given = [np.flatnonzero(row).tolist() for row in y > 0]
    found = find_multilabel_issues_per_class(given, p.astype(np.float64), n_jobs=1)
    wrong = np.stack(found, axis=1) if isinstance(found, list) else np.asarray(found)
    labels = np.where(wrong, 1 - y, y)
    out = (y > 0).any(axis=1) & ~(labels > 0).any(axis=1)
    labels[out] = -1
    return labels, p


def datalab(run: Run) -> Found:
    """By Datalab's label issues, given features and probabilities; one label."""
    p, training = probabilities(run), training_set(run)
    y = training.labels.numpy()
    x = np.asarray(run.read(PLAIN_FEATURES)[training.positions])
    lab = Datalab({"label": y}, label_name="label", verbosity=0)
    lab.find_issues(pred_probs=p.astype(np.float64), features=x, issue_types={"label": {}})
    found = lab.get_issues("label")
    scores = p.copy()
    scores[np.arange(len(y)), y] = found["label_score"].to_numpy()
    return np.where(found["is_label_issue"].to_numpy(), -1, y), scores
