"""The doctor: facts from runs, and the paper's guidelines as rules."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capro import config
from capro.cli import evaluation_tables
from capro.pipeline.run import Run
from capro.results import doctor
from capro.results.doctor import Facts, diagnose
from capro.stages import PLAN, run_all
from capro.stages.evaluate import evaluate
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
    bare = replace(FACTS, no_text=1.0, undefined=["a"])
    assert {"no texts"} == {name for name in topics(bare, "warning") if "text" in name}
    assert "no texts" in topics(bare, "advice", "data.without_texts=true")
    assert "classes without meaning" not in topics(bare, "warning")  # nothing is compared with their names
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


@pytest.mark.parametrize(
    ("expected", "word", "better"), [(20.0, "strict", 0.9), (250.0, "lax", 0.3), (110.0, "", 0)]
)
def test_dropping_is_compared_with_the_probabilities(expected: float, word: str, better: float) -> None:
    drops = {0.9: 30, 0.7: 60, 0.5: 100, 0.3: 180}
    found = topics(replace(FACTS, drops=drops, none_expected=expected), "advice")
    if not word:
        assert "dropping" not in found
        return
    assert f"seems too {word}: it drops 100 samples" in found["dropping"].text
    assert f"--set plus.drop_above={better} drops {drops[better]}" in found["dropping"].action


def test_a_value_without_a_better_one_is_left_alone() -> None:
    few = replace(FACTS, drops={0.9: 0, 0.7: 0, 0.5: 5, 0.3: 5}, none_expected=1.0)
    best = replace(FACTS, drops={0.9: 60, 0.7: 70, 0.5: 80, 0.3: 81}, none_expected=300.0)
    for facts, value in ((few, 0.5), (best, 0.3), (FACTS, 0.5)):
        assert "dropping" not in topics(facts, "advice", f"plus.drop_above={value}")


def test_run_and_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tiny.write_data(tmp_path / "data")
    shutil.copy(data / "train" / "lime-000.png", data / "test" / "lime-000.png")
    run = Run.create(tmp_path / "run", tiny.settings(data))
    PLAN.do(run, "scan")
    early = doctor.advice(run)
    assert early["facts"]["noise"] is None
    assert not early["facts"]["classes_known"]
    run_all(run)
    evaluate(run)
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
