"""One's own crawl on the command line: what is printed where texts, columns, labels or names are not as expected."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from capro.pipeline.run import Run
from tests import squares
from tests.commands import Capro, capro
from tests.stages.conftest import words

__all__ = ["capro", "words"]
pytestmark = pytest.mark.usefixtures("words")

FAST = [
    part
    for line in """net.mode=frozen net.backbone=small net.embedding_dim=8 net.frozen_views=2 views.size=32
    match.k=3 match.top_k=4 pretrain.epochs=3 pretrain.batch_size=16 pretrain.warmup_epochs=0 train.epochs=2
    train.batch_size=16 train.queue=32 train.warmup_epochs=0 train.frozen_epochs=0 train.correct_after=1
    finetune.epochs=2 finetune.batch_size=16""".split()
    for part in ("--set", line)
]


def write_crawl(folder: Path, *, column: str = "title", texts: bool = True, silent: str = "") -> Path:
    """Squares, whose texts are in a column of any name; of one class there may be none."""
    data = squares.write_data(folder, train=10, test=3, noise=2)
    for split in ("train", "test"):
        with (data / split / "metadata.csv").open(newline="") as file:
            rows = list(csv.reader(file))[1:]
        kept = [[name, label, text if texts and label != silent else ""] for name, label, text in rows]
        with (data / split / "metadata.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["file_name", "label", column], *kept])
    return data


# --- texts ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_without_texts_stops_and_its_hints_work(tmp_path: Path, capro: Capro) -> None:
    data, run = write_crawl(tmp_path / "data", column="Bildtext"), tmp_path / "run"
    code, out, _ = capro("scan", data, "--run", run)
    assert code == 0
    assert (
        "columns that were not read: 'Bildtext'; to read one, give --text-column, --description-column or --tags-column"
        in out
    )
    assert (
        "warning: 30 of 30 training samples (100\N{NO-BREAK SPACE}%) have no text, so a run will stop" in out
    )
    code, _, error = capro("run", "--data", data, "--run", run, *FAST)
    assert code == 2
    assert (
        "none of 30 training samples has a text that can be used; columns that were not read: Bildtext"
        in error
    )
    assert "--text-column" in error
    assert "--set data.without_texts=true" in error
    assert not (run / "pretrain").exists()  # nothing was trained before it stopped
    code, out, error = capro("run", "--run", run, "--text-column", "Bildtext")
    assert code == 0
    assert "verdicts:" in out
    assert "have no text" not in error
    assert Run.open(run).issues()["evidence"].str.contains("label and texts").any()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["paper", "plus"])
@pytest.mark.parametrize("classes", [True, False])
def test_without_texts_on_purpose_nothing_claims_a_text(
    tmp_path: Path, capro: Capro, method: str, classes: bool
) -> None:
    data, path = write_crawl(tmp_path / "data", texts=False), tmp_path / "run"
    named = ["--classes", data / "classes.yaml"] if classes else []
    code, out, error = capro(
        "run", "--data", data, "--run", path, "--without-texts", "--set", f"method={method}", *named, *FAST
    )
    assert code == 0, error
    assert "none of 30 training samples has a text: labels and pictures decide" in error
    assert ("senses of the classes were not chosen by texts" in error) == (not classes)
    assert "chosen by the texts" not in error
    run = Run.open(path)
    issues = run.issues()
    assert not issues["evidence"].str.contains("own text|its text|texts", regex=True).any()
    assert issues[["text_distance", "text_probability"]].isna().all(axis=None)
    anchors = pd.read_parquet(path / "match" / "anchors.parquet")
    assert set(anchors["chosen_by"]) == {"picture"}
    assert anchors[["distance", "cosine_distance"]].isna().all(axis=None)
    assert anchors["words"].str.len().sum() == anchors["neighbors"].str.len().sum() == 0
    assert (method == "paper") == issues["evidence"].str.contains(
        "its picture is one of the most typical"
    ).any()
    code, out, _ = capro("doctor", path)
    assert "no training sample has a text: labels and pictures decide" in out
    assert "texts of similar pictures" not in out
    assert "about" not in out or "comparing anchors with" not in out
    code, out, _ = capro("report", path)
    page = (path / "report" / "report.html").read_text("utf-8")
    assert "No training image has a text, so there is nothing to match" in page
    assert "without a text became anchors" in page
    assert "their texts, together with" not in page
    code, out, _ = capro("match", "--run", path)
    assert "6 of them have no text and were chosen as typical pictures" in out


def test_one_class_without_texts_is_named(tmp_path: Path, capro: Capro) -> None:
    data, run = write_crawl(tmp_path / "data", silent="lime"), tmp_path / "run"
    capro("scan", data, "--run", run)
    code, _, error = capro("classes", "show", "--run", run, "--set", f"data.classes={data / 'classes.yaml'}")
    assert code == 0
    assert (
        "warning: no sample of lime has a text: anchors there are chosen by the texts of similar pictures, or"
        in error
    )


def test_pictures_without_labels_need_texts(tmp_path: Path, capro: Capro) -> None:
    data, run = write_crawl(tmp_path / "data", texts=False), tmp_path / "run"
    given = ["--classes", data / "classes.yaml", "--unlabelled", "--without-texts", "--set", "method=plus"]
    code, _, error = capro("run", "--data", data, "--run", run, *given)
    assert code == 2
    assert "has a text that can be used, and data.unlabelled leaves no labels either" in error


# --- columns and tables ---------------------------------------------------------------------------


@pytest.mark.slow
def test_own_column_names_do_not_block_testing(tmp_path: Path, capro: Capro) -> None:
    data, run = write_crawl(tmp_path / "data", column="Bildtext"), tmp_path / "run"
    for file in (data / "test").glob("*.png"):  # a plain folder: pictures and classes
        target = tmp_path / "plain" / file.name.split("-")[0] / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    given = ["--text-column", "Bildtext", "--classes", data / "classes.yaml"]
    code, out, error = capro("scan", data / "train", "--run", run, "--test", tmp_path / "plain", *given)
    assert code == 0, error
    assert "(30 train, 9 test)" in out
    assert "text" not in error
    code, _, error = capro("run", "--data", data / "train", "--run", run, *given, *FAST)
    assert code == 0, error
    code, out, error = capro("evaluate", run, "--on", tmp_path / "plain")
    assert code == 0, error
    assert "9 samples of" in out


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-8"])
def test_tables_from_excel(tmp_path: Path, capro: Capro, encoding: str) -> None:
    data = write_crawl(tmp_path / "data")
    rows = [
        [f"Vögel/{file.name}", "Vögel", "ein schöner Vogel"]
        for file in sorted((data / "train").glob("*.png"))
    ]
    (data / "train").rename(data / "Vögel")
    (data / "Vögel" / "metadata.csv").unlink()
    shutil.rmtree(data / "test")
    with (data / "metadata.csv").open("w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=";").writerows([["File Name", "Label", "Alt Text"], *rows])
    code, out, _ = capro("scan", data, "--run", tmp_path / "run")
    assert code == 0
    assert "metadata: 30 of 30 rows matched a file" in out
    assert "title from 'Alt Text'" in out
    assert ("metadata.csv is not UTF-8 and was read as cp1252; if letters look wrong" in out) == (
        encoding == "cp1252"
    )
    manifest = pd.read_parquet(tmp_path / "run" / "scan" / "manifest.parquet")
    assert set(manifest["title"]) == {"ein schöner Vogel"}
    code, _, error = capro("scan", data, "--run", tmp_path / "run", "--encoding", "cp-x")
    assert code == 2
    assert "data.encoding: no encoding that Python knows" in error


# --- labels and classes ---------------------------------------------------------------------------


def test_labels_that_look_alike(tmp_path: Path, capro: Capro) -> None:
    data, run = write_crawl(tmp_path / "data"), tmp_path / "run"
    table = data / "train" / "metadata.csv"
    table.write_text(table.read_text().replace(",lime,", ",Lime,", 3))
    code, out, _ = capro("scan", data, "--run", run)
    assert code == 0
    # the test images count too: without the option those of 'lime' and of 'Lime' would be two classes
    assert (
        "are separate classes: 'lime' (10) and 'Lime' (3). --join-labels makes one class of each group" in out
    )
    code, out, _ = capro("scan", data, "--run", run, "--join-labels", "--json")
    found = json.loads(out)
    assert found["joined_labels"] == {"Lime": "lime"}
    assert found["classes"]["lime"] == {"test": 3, "train": 10}


def test_bare_class_names_are_warned_of(tmp_path: Path, capro: Capro) -> None:
    data, run = write_crawl(tmp_path / "data"), tmp_path / "run"
    for split in ("train", "test"):
        table = data / split / "metadata.csv"
        table.write_text(table.read_text().replace(",lime,", ",Track Pants,").replace(",azure,", ",Vögel,"))
    capro("scan", data, "--run", run)
    code, _, error = capro("classes", "show", "--run", run)
    assert code == 0
    warned = next(line for line in error.splitlines() if "neither a sense nor a definition" in line)
    assert "2 classes with neither" in warned
    assert "Track Pants, Vögel" in warned
    # the hint, followed: a definition in a copy
    draft, copy = run / "classes" / "classes.yaml", tmp_path / "mine.yaml"
    assert str(draft) in warned
    text = draft.read_text("utf-8")
    for name in ("Track Pants", "Vögel"):
        text = text.replace(f"name: {name}\n", f"name: {name}\n  definition: something\n")
    copy.write_text(text, "utf-8")
    code, _, error = capro("classes", "show", "--run", run, "--set", f"data.classes={copy}")
    assert code == 0
    assert "neither a sense" not in error


# --- truth ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_some_checked_samples_give_estimates_with_intervals(tmp_path: Path, capro: Capro) -> None:
    data, run = write_crawl(tmp_path / "data"), tmp_path / "run"
    code, _, error = capro("run", "--data", data, "--run", run, "--classes", data / "classes.yaml", *FAST)
    assert code == 0, error
    lines = (data / "train_truth.csv").read_text().splitlines()
    some = tmp_path / "checked.csv"
    some.write_text("\n".join([lines[0], *lines[1::3], "nobody.png,lime", "crimson-000.png,Lime"]) + "\n")
    code, out, error = capro("evaluate", run, "--truth", some)
    assert code == 0, error
    assert "10 of 30 training samples have a true label: the figures are estimates" in out
    assert "estimated from true labels" in out
    assert "95 % interval" in out
    assert "1 name in the file is not the id of a training sample" in out
    assert "not a class of the run; no label of these samples counts as right: 'Lime' (1)" in out
    code, out, _ = capro("evaluate", run, "--truth", some, "--json")
    found = json.loads(out)["truth"]
    low, high = found["intervals"]["web_label_accuracy"]
    assert 0 < low < found["web_label_accuracy"] < high < 1
    code, out, _ = capro("evaluate", run, "--truth", data / "train_truth.csv", "--json")
    whole = json.loads(out)["truth"]
    assert (whole["checked"], whole["of"], whole["intervals"]) == (30, 30, {})
    some.write_text("file_name,true_label\nelsewhere.png,lime\n")
    code, _, error = capro("evaluate", run, "--truth", some)
    assert code == 2
    assert "none of its 1 names is a training sample: there is 'elsewhere.png', and a sample is" in error
