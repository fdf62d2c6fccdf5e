"""The doctor: facts from runs, and the paper's guidelines as rules."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capro import config
from capro.cli import evaluation_tables
from capro.evaluate import doctor
from capro.evaluate.doctor import Facts, diagnose, noise_from_anchors
from capro.run.directory import Run
from capro.stages import PLAN, run_all
from capro.stages.assess import assess
from tests import squares as tiny

FACTS = Facts("single", {"a": 300, "b": 400}, 700, 0.1, test_samples=50, classes_known=True)


def topics(facts: Facts, level: str, *overrides: str) -> dict[str, doctor.Finding]:
    settings = config.load(overrides=["train.queue=64", *overrides])
    return {each.topic: each for each in diagnose(facts, settings) if each.level == level}


def test_healthy_data_has_no_warning() -> None:
    assert not topics(FACTS, "warning")


@pytest.mark.parametrize(("noise", "gamma"), [(0.05, 0.8), (0.34, 0.6), (0.6, 0.4), (None, 0.6)])
def test_gamma_falls_with_noise(noise: float | None, gamma: float) -> None:
    assert doctor.recommended_gamma(replace(FACTS, noise=noise))[0] == gamma


@given(st.floats(0, 1), st.floats(0, 1))
def test_gamma_is_monotone_in_noise(a: float, b: float) -> None:
    low, high = sorted((a, b))
    gammas = [doctor.recommended_gamma(replace(FACTS, noise=n))[0] for n in (low, high)]
    assert gammas[0] >= gammas[1]


def test_several_labels_need_a_strict_gamma_and_rare_updates() -> None:
    facts = replace(FACTS, task="multi", positive_ratio=0.02, noise=0.5)
    found = topics(facts, "advice", "train.gamma=0.6", "train.update_every=0")
    assert found["gamma"].action == "--set train.gamma=0.9"
    assert "0.02" in found["gamma"].text
    assert found["frequency"].action == "--set train.update_every=10"
    assert doctor.recommended_gamma(replace(facts, positive_ratio=1.0))[0] == 0.6


def test_k_follows_noise_and_size() -> None:
    assert doctor.recommended_k(replace(FACTS, noise=0.2))[0] == 100
    assert doctor.recommended_k(replace(FACTS, noise=0.4))[0] == 50
    small = replace(FACTS, sizes={"a": 40, "b": 60}, noise=0.5)
    assert doctor.recommended_k(small)[0] == 10
    assert "match.top_k=10" in topics(small, "advice")["K"].action


def test_large_lambda_is_named() -> None:
    found = topics(FACTS, "advice", "train.lambda_bts=0.5", "train.lambda_ins=3")
    assert set(found) == {"lambda_bts", "lambda_ins"}
    assert "smooths too much" in found["lambda_bts"].text


def test_warnings() -> None:
    facts = replace(
        FACTS,
        sizes={"a": 300, "tiny": 3},
        no_text_by_class={"a": 0.9},
        undefined=["a"],
        duplicates={
            "held_out_also_in_train": 2,
            "groups_with_different_labels": 1,
            "examples": [["train/1", "test/1"]],
        },
        test_samples=0,
        emptied=["a"],
    )
    found = topics(facts, "warning")
    assert set(found) == {
        "small classes", "texts missing in classes", "classes without meaning", "no test split",
        "duplicates across splits", "copies with different labels", "emptied classes",
    }  # fmt: skip
    assert "tiny" in found["small classes"].text
    assert "test/1 = train/1" in found["duplicates across splits"].text
    assert "texts missing" in topics(replace(FACTS, no_text=0.7), "warning")
    advice = topics(replace(facts, harmed=["a"], compared=2, ambiguous=["a"]), "advice")
    assert {"classes made worse", "ambiguous names"} <= set(advice)


def test_uneven_classes_are_named_until_balance_is_set() -> None:
    def named(sizes: dict[str, int], *overrides: str, task: str = "single") -> bool:
        facts = replace(FACTS, sizes=sizes, task=task)
        return "uneven classes" in topics(facts, "advice", *overrides)

    assert named({"a": 300, "b": 100, "none": 0})
    assert not named({"a": 299, "b": 100})
    assert not named({"a": 300, "b": 100}, "finetune.balance=0")
    assert not named({"a": 300, "b": 100}, task="multi")
    assert not named({})


def test_queue_larger_than_half_the_data() -> None:
    found = {each.topic: each for each in diagnose(FACTS, config.load())}
    assert found["dictionary"].action == "--set train.queue=350"


def made(noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels with noise, and 100 right anchors."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 6, 1200)
    v = np.eye(6)[truth] + rng.normal(0, 0.15, (1200, 6))
    labels = truth.copy()
    wrong = rng.permutation(np.arange(200, 1200))[: int(noise * 1200)]
    labels[wrong] = (truth[wrong] + rng.integers(1, 6, len(wrong))) % 6
    return v.astype(np.float32), labels, np.arange(100)


@pytest.mark.parametrize("noise", [0.0, 0.2, 0.5])
def test_noise_is_found_where_classes_are_apart(noise: float) -> None:
    assert noise_from_anchors(*made(noise)) == pytest.approx(noise, abs=0.04)


def slow_noise(v: np.ndarray, labels: np.ndarray, anchors: np.ndarray) -> float:
    """The rule in loops, over dense cosines."""
    n, c = len(v), 6
    k = min(doctor.NEIGHBOURS, n // c // 2)
    unit = v / np.linalg.norm(v, axis=1, keepdims=True)
    agrees = []
    for i in range(n):
        near = sorted((j for j in range(n) if j != i), key=lambda j: -float(unit[i] @ unit[j]))[:k]
        votes = [sum(labels[j] == x for j in near) for x in range(c)]
        winners = [x for x in range(c) if votes[x] == max(votes)]
        first = labels[near[0]]
        agrees.append((first if first in winners else winners[0]) == labels[i])
    wrong = 0.0
    for x in range(c):
        own = [i for i in range(n) if labels[i] == x]
        rest = [i for i in own if i not in set(anchors.tolist())]
        a = np.mean([agrees[i] for i in own if i in set(anchors.tolist())])
        r = np.mean([agrees[i] for i in rest])
        wrong += min(1.0, max(0.0, (a - r) / (a - (1 - a) / (c - 1)))) * len(rest)
    return wrong / n


def test_noise_equals_a_slow_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    v, labels, anchors = made(0.3)
    at = np.r_[0:60, 700:800]  # anchors are among the first
    args = v[at], labels[at], anchors[:60]
    monkeypatch.setattr(doctor, "BLOCK", 33)
    assert noise_from_anchors(*args) == pytest.approx(slow_noise(*args))


def test_anchors_that_look_alike_do_not_raise_the_estimate() -> None:
    """Right samples that differ from the anchors are not noise: the rest votes as well."""
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 4, 800)
    plain = np.arange(800) >= 100  # anchors sit in a corner of their class
    v = np.eye(8)[truth] + 0.8 * np.eye(8)[truth + 4] * plain[:, None]
    v += rng.normal(0, 0.25, v.shape)
    found = noise_from_anchors(v.astype(np.float32), truth, np.arange(100))
    assert found == pytest.approx(0, abs=0.03)


def test_noise_is_unknown_where_anchors_look_like_others() -> None:
    rng = np.random.default_rng(0)
    v, labels = rng.normal(size=(200, 4)).astype(np.float32), rng.integers(0, 10, 200)
    assert noise_from_anchors(v, labels, np.arange(60)) is None
    assert noise_from_anchors(v, labels, np.arange(0)) is None
    assert noise_from_anchors(v[:9], labels[:9], np.arange(3)) is None


def test_run_and_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tiny.write_data(tmp_path / "data")
    shutil.copy(data / "train" / "lime-000.png", data / "test" / "lime-000.png")
    run = Run.create(tmp_path / "run", tiny.settings(data))
    PLAN.do(run, "scan")
    early = doctor.advice(run)
    assert early["facts"]["noise"] is None
    assert not early["facts"]["classes_known"]
    run_all(run)
    assess(run)
    found = doctor.advice(run)
    json.dumps(found, allow_nan=False)
    assert found["facts"]["ambiguous"] == ["lime"]
    assert found["facts"]["noise"] is not None
    assert found["facts"]["compared"] == 3
    words = [each["topic"] for each in found["findings"]]
    assert "duplicates across splits" in words
    assert "small classes" in words
    evaluation_tables.findings(found)
    assert "duplicates across splits" in capsys.readouterr().out
