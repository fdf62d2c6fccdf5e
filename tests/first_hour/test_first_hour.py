"""The first hour with one's own crawl: README and guide, command by command, on messy data.

Everything a command prints for the reader to do is followed, and must work.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from tests.commands import Capro, capro
from tests.first_hour.crawl import BROKEN, CLASSES, write_crawl
from tests.first_hour.hints import commands, wrong_hints

__all__ = ["capro"]

README = Path(__file__).resolve().parents[2] / "README.md"
QUICK = """views.size=64 net.frozen_views=1 pretrain.epochs=3 match.top_k=20 plus.folds=2 plus.rounds=3
train.epochs=2 finetune.epochs=3""".split()


def own_images() -> list[list[str]]:
    """The README's commands for one's own images."""
    block = README.read_text("utf-8").partition("With your own images:")[2].partition("```sh\n")[2]
    lines = [line.partition("#")[0] for line in block.partition("```")[0].splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("capro ")]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_scan_says_what_is_wrong_with_the_crawl(home: Path, capro: Capro) -> None:
    crawl = write_crawl(home / "crawl")
    code, out, error = capro(*own_images()[0])
    assert code == 0, error
    assert wrong_hints(out + error) == []
    rows = crawl.pictures + len(BROKEN) + crawl.rows_without_file
    bad = len(BROKEN) + crawl.rows_without_file
    assert f"{rows} rows in the source = {crawl.pictures} samples + {bad} quarantined" in out
    assert "title from 'Alt Text', description from 'page title'" in out
    assert "columns that were not read: 'Quelle'" in out
    assert "metadata.csv is not UTF-8 and was read as cp1252" in out
    lacking = crawl.without_row + len(BROKEN)
    assert f"{lacking} of {crawl.pictures + len(BROKEN)} files have no row in the metadata" in out
    assert f"'boat' (70) and 'Boat' ({crawl.capitals}). --join-labels makes one class" in out
    manifest = pd.read_parquet("runs/crawl/scan/manifest.parquet")
    assert manifest["title"].str.contains("Vögel").any()
    assert manifest["description"].str.contains("schönsten").any()
    code, out, error = capro("doctor", "runs/crawl")
    assert code == 0, error
    assert "no test split" in out
    assert wrong_hints(out + error) == []


def test_a_crawl_whose_texts_are_not_found_stops_and_each_way_on_works(home: Path, capro: Capro) -> None:
    write_crawl(home / "crawl", columns=("Bildtext", "Überschrift"), per_class=8)
    scan = own_images()[0]
    code, out, error = capro(*scan)
    assert code == 0, error
    assert "training samples (100\N{NO-BREAK SPACE}%) have no text" in out
    assert "'Bildtext', 'Überschrift', 'Quelle'; to read one, give --label-column, --text-column" in out
    code, _, error = capro("run", "--run", "runs/crawl")
    assert code == 2
    assert "columns that were not read: Bildtext, Überschrift, Quelle" in error
    assert wrong_hints(error) == []
    hinted = re.findall(r"--[a-z]+-column|--set \S+", error.partition("hint:")[2])
    assert "--text-column" in hinted
    assert "--set data.without_texts=true" in hinted
    code, _, error = capro(*scan, "--text-column", "Bildtext")
    assert code == 0, error
    assert capro("classes", "show", "--run", "runs/crawl")[0] == 0
    assert capro(*scan, "--set", "data.text_column=null")[0] == 0
    assert capro("classes", "show", "--run", "runs/crawl")[0] == 2
    code, _, error = capro("classes", "show", "--run", "runs/crawl", "--set", "data.without_texts=true")
    assert code == 0, error
    assert "has a text: labels and pictures decide" in error
    assert "were not chosen by texts" in error


@pytest.mark.slow
def test_from_the_crawl_to_a_prediction(home: Path, capro: Capro) -> None:
    crawl = write_crawl(home / "crawl")
    scan, suggest, run = own_images()
    quick = [part for each in QUICK for part in ("--set", each)]
    code, out, error = capro(*scan, *quick)
    assert code == 0, error
    code, out, error = capro(*scan, *quick, "--join-labels")  # what the warning asks for
    assert code == 0, error
    assert "label 'Boat' was joined with 'boat'" in out
    assert "separate classes" not in out
    code, out, error = capro(*suggest)
    assert code == 0, error
    assert "no sense in WordNet" in out
    assert "WordNet has no sense of Track Pants, Vögel: write a definition of each in classes.yaml" in error
    code, out, error = capro(*run)
    assert code == 0, error
    assert wrong_hints(out + error) == []
    assert re.search(
        r"neither a sense nor a definition, .*: Track Pants, Vögel; write a definition in classes.yaml", error
    )
    assert "verdicts:" in out
    verdicts = pd.read_parquet("runs/crawl/clean/verdicts.parquet")
    assert set(verdicts["given_label"]) == set(CLASSES)
    for words in commands(error):  # "next:", each as it stands there
        serves = words[0] == "review"  # until it is ended; tests/review does it in a browser
        typed = [*words[:2], "--export", "decisions.csv"] if serves else words
        code, out, error = capro(*typed)
        assert code == 0, (words, error)
        for again in commands(error, NEW_RUN="runs/again"):
            code, out, error = capro(*again)
            assert code == 0, (again, error)
    assert (home / "runs/crawl/report/report.html").exists()
    assert len(pd.read_parquet("runs/again/scan/manifest.parquet")) == (verdicts["decision"] != "drop").sum()
    code, out, error = capro("predict", "model", "crawl/Vögel", "--out", "labels.csv")
    assert code == 0, error
    labels = pd.read_csv("labels.csv")
    assert len(labels) == crawl.pictures // len(CLASSES)
    assert (labels["label"] == "Vögel").mean() > 0.5
    # 20 samples that a person has checked
    checked = verdicts.sample(20, random_state=0)
    checked[["id", "given_label"]].rename(columns={"given_label": "true_label"}).to_csv(
        "checked.csv", index=False
    )
    code, out, error = capro("evaluate", "runs/crawl", "--truth", "checked.csv")
    assert out.startswith(
        "no test split, so the models were not compared: give other data with --on\n"
        "20 of 300 training samples have a true label"
    )
    code, out, error = capro("evaluate", "runs/crawl", "--truth", "checked.csv", "--json")
    assert code == 0, error
    truth = json.loads(out)["truth"]
    assert truth["checked"] == 20
    assert truth["intervals"]["web_label_accuracy"][0] == pytest.approx(0.84, abs=0.01)
