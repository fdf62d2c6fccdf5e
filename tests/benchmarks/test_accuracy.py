"""Every row of the accuracy benchmark on tiny data: runs of the product's stages, to their end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import accuracy
import variants
from capro.bench import Bench
from capro.bench.summary import Measured, TableResult, results_markdown
from capro.data.labels import MULTI_LABEL, SINGLE_LABEL
from capro.data.manifest import manifest_of
from capro.pipeline.artefacts import CLEANED_LABELS
from capro.pipeline.run import Run
from capro.results.truth import load_truth
from capro.train.setup import training_set
from tests import squares

pytestmark = pytest.mark.slow

Made = tuple[Bench, TableResult]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Made]:
    found: dict[bool, Made] = {}

    def make(multi: bool) -> Made:
        if multi not in found:
            data = squares.write_data(tmp_path_factory.mktemp("accuracy") / "data", multi=multi)
            bench = Bench(data.parent / "bench", squares.settings(data, multi=multi), (0,))
            found[multi] = bench, accuracy.measure(bench, variants.truth_of(bench))
        return found[multi]

    return make


def run_of(bench: Bench, label: str) -> Run:
    return bench.run_of("accuracy", label, [], 0)


def true_labels(bench: Bench) -> list[tuple[str, ...]]:
    return load_truth(variants.truth_of(bench), manifest_of(variants.base_of(bench, accuracy.PAPER)))


def test_rows_and_figures_of_one_label(made: Callable[[bool], Made]) -> None:
    _, result = made(False)
    labels = [row.label for row in result.rows]
    assert labels == [
        "vanilla",
        "vanilla, as many epochs as CAPro",
        "vanilla, then step 3",
        "plus",
        "cleanlab find_label_issues",
        "cleanlab Datalab",
        "random anchors, MoPro's rule",
        "anchors only",
        "CAPro from web",
        "CAPro from web, balance 0 in step 3",
        "CAPro from anchors",
        "CAPro from anchors, balance 0 in step 3",
        "oracle: clean subset",
        "oracle: clean subset, then step 3",
        "oracle: true labels",
        "oracle: true labels, then step 3",
    ]
    for row in result.rows:
        cleaned = row.label.startswith(("CAPro", "plus", "cleanlab", "random", "anchors"))
        figures = {"top1", "top5", "class-top1", "ECE"}
        assert set(row.figures[0]) == figures | (set(accuracy.CLEANED) if cleaned else set())
    web = next(row for row in result.rows if row.label == "CAPro from web")
    assert web.figures[0]["labels before"] == 0.75  # 4 of 16 pictures of each class show another one
    assert "| oracle: true labels, then step 3 |" in results_markdown(result)
    lines = accuracy.comparisons(result)
    assert len(lines) == len(labels) - 1
    assert all("top1 (" in line and "over vanilla" in line for line in lines)


def test_vanilla_is_the_first_step_of_every_run(made: Callable[[bool], Made]) -> None:
    bench, result = made(False)
    first = {
        row.label: run_of(bench, row.label).result("evaluate")["vanilla"]
        for row in result.rows
        if "epochs" not in row.label and "oracle" not in row.label and row.label != "plus"
    }
    assert all(figures == first["vanilla"] for figures in first.values())
    assert len([*(bench.folder / "store" / "features").iterdir()]) == 4  # all rows, two oracles, and plus
    assert len([*(bench.folder / "store" / "pretrain").iterdir()]) == 5  # and as many epochs


def test_oracles_train_on_the_truth_and_test_on_the_same_samples(made: Callable[[bool], Made]) -> None:
    bench, _ = made(False)
    base, truth = variants.base_of(bench, accuracy.PAPER), true_labels(bench)
    web = training_set(base).labels.tolist()
    true = SINGLE_LABEL.encode(truth, training_set(base).classes).tolist()
    clean = training_set(run_of(bench, "oracle: clean subset")).labels.tolist()
    relabelled = training_set(run_of(bench, "oracle: true labels, then step 3")).labels.tolist()
    assert relabelled == true != web
    assert clean == [given for given, right in zip(web, true, strict=True) if given == right]
    tests = [
        manifest.samples["id"].iloc[manifest.split("test")].tolist()
        for manifest in (manifest_of(base), manifest_of(run_of(bench, "oracle: clean subset")))
    ]
    assert tests[0] == tests[1]


def test_step_3_after_step_1_keeps_every_label(made: Callable[[bool], Made]) -> None:
    bench, _ = made(False)
    run = run_of(bench, "vanilla, then step 3")
    assert run.read(CLEANED_LABELS).tolist() == training_set(run).labels.tolist()
    assert run.result("finetune")["samples"] == 48
    assert run.finished("match") is None


def test_several_labels(made: Callable[[bool], Made]) -> None:
    bench, result = made(True)
    assert [row.label for row in result.rows] == [
        "vanilla",
        "vanilla, as many epochs as CAPro",
        "vanilla, then step 3",
        "plus",
        "cleanlab find_label_issues",
        "CAPro",
        "oracle: true labels",
        "oracle: true labels, then step 3",
    ]
    assert {"C-F1", "O-F1", "mAP", *accuracy.CLEANED, "ECE of given tags"} <= set(result.rows[4].figures[0])
    training = training_set(run_of(bench, "oracle: true labels"))
    expected = MULTI_LABEL.encode(true_labels(bench), training.classes)
    assert training.labels.tolist() == expected.tolist()


def test_differences_to_vanilla_and_share_of_the_gap() -> None:
    top1 = {
        "vanilla": (0.5, 0.6),
        "vanilla, then step 3": (0.55, 0.65),
        "CAPro from web": (0.7, 0.6),
        "CAPro from web, balance 0 in step 3": (0.5, 0.6),
        "oracle: clean subset": (0.7, 0.8),
        "oracle: clean subset, then step 3": (0.8, 0.8),
    }
    rows = [
        Measured(label, {seed: {"top1": value} for seed, value in enumerate(values)})
        for label, values in top1.items()
    ]
    step3, web, unbalanced, *_ = accuracy.comparisons(
        TableResult("accuracy", "", rows, ["top1", *accuracy.CLEANED], "vanilla", (0, 1))
    )
    assert step3 == "vanilla, then step 3: +5.00 top1 (2/2) over vanilla"
    assert web == (
        "CAPro from web: +10.00 top1 (1/2) over vanilla; gap to the oracle closed: 50% of top1; "
        "gap to the oracle closed with step 3 on both sides: 25% of top1"
    )
    assert unbalanced.endswith("step 3: +0.00 top1 (0/2) over vanilla")


def test_unknown_row(tmp_path: Path) -> None:
    data = squares.write_data(tmp_path / "data")
    bench = Bench(tmp_path / "bench", squares.settings(data), (0,))
    with pytest.raises(SystemExit, match="no row"):
        accuracy.measure(bench, variants.truth_of(bench), ["CAPro from nowhere"])
