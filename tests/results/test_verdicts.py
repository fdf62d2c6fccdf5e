"""Verdict tables: hand values, a slow reference, and the real cleanlab on the same data."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from capro.core.kept_scores import keep
from capro.core.label_rule import LabelDecision
from capro.graph.neighbors import nearest
from capro.results import verdicts
from capro.results.neighbourhood import NEIGHBORS, neighbourhood
from capro.train.setup import TrainingSet
from tests.made_up import CLASSES, make_verdict_rows


def training(n: int = 24, *, multi: bool = False) -> TrainingSet:
    y = torch.arange(n) % 3
    labels = torch.nn.functional.one_hot(y, 3) if multi else y
    return TrainingSet(np.arange(n), [f"train/{i}" for i in range(n)], CLASSES, labels)


def rows(text: Any = None, fused: Any = None, **changes: Any) -> verdicts.VerdictRows:
    """One sample of each kind, scores by hand."""
    p = np.array([[0.8, 0.1, 0.1], [0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.1, 0.45, 0.45]], np.float32)
    scores = {"fused": p if fused is None else fused, "classifier": p, "similarity": p}
    near = neighbourhood(nearest(np.eye(4) + 0.5, 3))
    ids = np.array(["a", "b", "c", "d"], dtype=object)
    values: dict[str, Any] = {
        "ids": ids,
        "classes": CLASSES,
        "given": np.array([0, 0, 0, 0]),
        "corrected": np.array([0, 1, 0, -1]),
        "decisions": np.array([LabelDecision.ANCHOR, LabelDecision.RELABEL, LabelDecision.KEEP, LabelDecision.DROP]),
        "anchored": np.array([True, False, False, False]),
        "scores": keep(scores | ({} if text is None else {"text": text})),
        "text_distance": np.array([0.25, np.nan, np.nan, np.nan]),
        "pictures": near, "duplicates": [ids[rows].tolist() for rows in near.duplicates],
        "lenders": [["c"], ["a", "c"], [], []], "agreeing": np.array([1, 0, 0, 0]),
        "has_text": np.ones(4, bool), "chosen_by": np.array(["text", None, None, None], dtype=object),
        "gamma": 0.6,
    }  # fmt: skip
    return verdicts.VerdictRows(**(values | changes))


# --- the table ------------------------------------------------------------------------------------


def test_columns_and_values_by_hand() -> None:
    table = verdicts.single_label(rows()).set_index("id")
    assert table["decision"].tolist() == ["anchor", "relabel", "keep", "drop"]
    assert table["is_label_issue"].tolist() == [False, True, False, True]
    assert table["label_score"].tolist() == pytest.approx([0.8, 0.1, 0.5, 0.1])
    assert table["predicted_label"].tolist() == [CLASSES[0], CLASSES[1], CLASSES[0], CLASSES[1]]
    assert table["corrected_label"].isna().tolist() == [False, False, False, True]
    assert table["given_label"].tolist() == [CLASSES[0]] * 4
    assert table.loc["b", "neighbors"] == ["a", "c"]
    assert table.loc["a", "text_distance"] == 0.25
    assert np.isnan(table.loc["b", "text_distance"])


def test_sentences_say_what_decided() -> None:
    said = verdicts.single_label(rows()).set_index("id")["evidence"]
    assert said["a"].startswith(
        f"Anchor of '{CLASSES[0]}': its own text and the texts of 1 similar picture have "
    )
    assert "0.25" in said["a"]
    assert f"from '{CLASSES[0]}' to '{CLASSES[1]}'" in said["b"]
    assert "is 0.70, above 0.60" in said["b"]
    assert f"0 of the 2 similar pictures whose texts were added to it are '{CLASSES[1]}'" in said["b"]
    assert said["c"].startswith(f"Kept as '{CLASSES[0]}'")
    assert "below chance (0.33)" in said["d"]


def test_the_papers_rule_has_no_probability_by_the_text() -> None:
    table = verdicts.single_label(rows()).set_index("id")
    assert "(classifier 0.50, prototype 0.50)" in table.loc["c", "evidence"]
    assert table["text_probability"].isna().all()


def test_the_probability_by_the_text_is_of_the_given_label() -> None:
    t = np.array([[0.9, 0.1, 0], [0.3, 0.6, 0.1], [0.5, 0.3, 0.2], [0, 0, 0]], np.float32)
    found = rows(text=t, given=np.array([0, 0, 0, -1]), none=np.zeros(4), ask=np.zeros(4, bool))
    probability = verdicts.single_label(found)["text_probability"]
    assert probability.tolist()[:3] == pytest.approx([0.9, 0.3, 0.5])
    assert np.isnan(probability[3])


@pytest.mark.parametrize(
    ("own", "chosen_by", "distance", "reason"),
    [
        (
            True,
            "text",
            0.25,
            "its own text and the texts of 1 similar picture have a distance of 0.25 to the class text",
        ),
        (
            False,
            "text",
            0.25,
            "it has no text, and the texts of 1 similar picture have a distance of 0.25 to",
        ),
        (
            False,
            "picture",
            np.nan,
            "there is no text, but its picture is one of the most typical of its class",
        ),
        (True, "chance", 0.9, "it was drawn at random from its class"),
    ],
)
def test_an_anchor_names_only_evidence_that_exists(
    own: bool, chosen_by: str, distance: float, reason: str
) -> None:
    found = rows(
        has_text=np.full(4, own),
        chosen_by=np.array([chosen_by, None, None, None], dtype=object),
        text_distance=np.array([distance, np.nan, np.nan, np.nan]),
    )
    assert f"Anchor of '{CLASSES[0]}': {reason}" in verdicts.single_label(found)["evidence"][0]


@pytest.mark.parametrize(
    ("own", "given", "part"),
    [(True, 0, "(label and texts 0.70, picture"), (False, 0, "(label 0.70, picture"), (True, -1, "(texts 0.70, "),
     (False, -1, "has a probability of 0.80 (picture 0.80)")],
)  # fmt: skip
def test_a_posterior_names_only_evidence_that_exists(own: bool, given: int, part: str) -> None:
    found = rows(
        none=np.zeros(4), ask=np.zeros(4, bool), text=np.full((4, 3), 0.7, np.float32),
        has_text=np.full(4, own), given=np.full(4, given),
        decisions=np.full(4, int(LabelDecision.KEEP if given == 0 else LabelDecision.RELABEL)),
        corrected=np.zeros(4, int),
    )  # fmt: skip
    table = verdicts.single_label(found)
    assert part in table["evidence"][0]
    assert np.isnan(table["text_probability"][0]) == (not own or given < 0)


def test_keep_without_proof_says_so() -> None:
    p = np.array([[0.4, 0.5, 0.1]] * 4, np.float32)
    changed = rows(fused=p, decisions=np.full(4, int(LabelDecision.KEEP)), corrected=np.zeros(4, int))
    assert "since no class is sure" in verdicts.single_label(changed)["evidence"][0]


def test_multi_label_has_a_row_per_sample_with_lists_and_one_per_pair() -> None:
    made = make_verdict_rows(training(multi=True))
    table, of_pairs = verdicts.multi_label(made), verdicts.pairs(made)
    assert table["id"].is_unique
    assert set(of_pairs["id"]) <= set(table["id"])
    out = (made.corrected < 0).any(axis=1)
    for row, sample in enumerate(table.to_dict("records")):
        before, after = made.given[row] > 0, (made.corrected[row] > 0) & ~out[row]
        assert sample["given_labels"] == [CLASSES[c] for c in np.flatnonzero(before)]
        assert sample["corrected_labels"] == [CLASSES[c] for c in np.flatnonzero(after)]
        belief = [o if g else 1 - o for o, g in zip(made.fused[row], before, strict=True)]
        assert sample["label_score"] == pytest.approx(min(belief))
        if out[row]:
            assert (sample["decision"], sample["corrected_labels"]) == ("drop", [])
        elif (before != after).any():
            assert sample["decision"] == "relabel"
        else:
            assert sample["decision"] == ("anchor" if made.anchored[row].any() else "keep")
    assert {"drop", "relabel", "keep", "anchor"} == set(table["decision"])
    added = of_pairs[~of_pairs["given"]]
    assert (added["decision"] == "add").all()
    assert len(added)


# --- cleanlab -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both() -> tuple[pd.DataFrame, pd.DataFrame, dict[str, pd.DataFrame]]:
    """Our table and Datalab's, from the same labels, probabilities and features."""
    pytest.importorskip("cleanlab")
    rng = np.random.default_rng(1)
    n, classes = 150, ["a", "b", "c"]
    true = np.arange(n) % 3
    web = np.where(rng.random(n) < 0.2, (true + 1) % 3, true)
    p = np.full((n, 3), 0.05)
    p[np.arange(n), true] = 0.9
    p = 0.7 * p + 0.3 * rng.dirichlet(np.ones(3), n)
    features = np.eye(8)[true] * 3 + rng.normal(size=(n, 8)) * 0.4
    features[10], features[20] = features[40], features[50] * 1.0001
    features[3] = -5 * np.ones(8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from cleanlab import Datalab

        with contextlib.redirect_stdout(io.StringIO()):
            lab = Datalab({"y": [classes[c] for c in web]}, label_name="y", verbosity=0)
            lab.find_issues(
                pred_probs=p, features=features,
                issue_types={"label": {}, "outlier": {"k": 10}, "near_duplicate": {"k": 10}},
            )  # fmt: skip
    logging.disable(logging.NOTSET)
    score = torch.from_numpy(p)
    from capro.core.label_rule import adjust

    corrected, decisions = adjust(score, torch.from_numpy(web), torch.zeros(n, dtype=torch.bool), gamma=0.6)
    near, ids = (
        neighbourhood(nearest(features, NEIGHBORS)),
        np.array([str(i) for i in range(n)], dtype=object),
    )
    ours = verdicts.single_label(
        verdicts.VerdictRows(
            ids=ids, classes=classes, given=web, corrected=corrected.numpy(), decisions=decisions.numpy(),
            anchored=np.zeros(n, bool), scores=keep({"fused": p, "classifier": p, "similarity": p}),
            text_distance=np.full(n, np.nan), pictures=near,
            duplicates=[ids[rows].tolist() for rows in near.duplicates],
            lenders=[[]] * n, agreeing=np.zeros(n, np.int64), has_text=np.zeros(n, bool),
            chosen_by=np.full(n, None, dtype=object), gamma=0.6,
        )
    )  # fmt: skip
    parts = {name: lab.get_issues(name) for name in ("label", "outlier", "near_duplicate")}
    return ours, lab.get_issues(), parts


def test_our_columns_are_cleanlabs_columns(both: Any) -> None:
    ours, theirs, parts = both
    wanted = set(theirs.columns) | set(parts["label"].columns)
    wanted |= {"near_duplicate_sets"} & set(parts["near_duplicate"].columns)
    assert "near_duplicate_sets" in wanted
    assert wanted <= set(ours.columns)
    for name in theirs.columns:
        assert ours[name].dtype.kind == theirs[name].dtype.kind, name
    assert ours["given_label"].tolist() == parts["label"]["given_label"].tolist()
    assert ours["predicted_label"].tolist() == parts["label"]["predicted_label"].tolist()


def test_outliers_and_duplicates_are_cleanlabs(both: Any) -> None:
    ours, theirs, parts = both
    for name in ("outlier_score", "near_duplicate_score"):
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-4)
    assert ours["is_outlier_issue"].tolist() == theirs["is_outlier_issue"].tolist()
    assert ours["is_outlier_issue"][3]
    assert ours["is_near_duplicate_issue"].tolist() == theirs["is_near_duplicate_issue"].tolist()
    sets = parts["near_duplicate"]["near_duplicate_sets"]
    assert [sorted(map(int, rows)) for rows in ours["near_duplicate_sets"]] == [
        sorted(map(int, rows)) for rows in sets
    ]
    assert ours["near_duplicate_sets"][10] == ["40"]


def test_label_scores_point_the_same_way(both: Any) -> None:
    ours, theirs, _ = both
    np.testing.assert_allclose(ours["label_score"], theirs["label_score"], atol=1e-6)
    for table in (ours, theirs):
        wrong = table.loc[table["is_label_issue"], "label_score"].median()
        assert wrong < table.loc[~table["is_label_issue"], "label_score"].median()
    same = (ours["is_label_issue"] == theirs["is_label_issue"]).mean()
    assert same > 0.9
