"""Benchmarks on tiny data: stages are shared, an interrupted grid repeats nothing."""

from __future__ import annotations

import fcntl
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from capro import config
from capro.bench import Bench, bench
from capro.bench.store import SharedRun
from capro.data.manifest import manifest_of
from capro.errors import ConfigError, DataError, RunError
from capro.models import wordnet
from capro.pipeline.locks import LOCK
from capro.pipeline.progress import Lines
from capro.pipeline.run import Run
from capro.stages import PLAN
from tests import squares as tiny

pytestmark = pytest.mark.slow


def events(folder: Path, kind: str) -> Counter[str]:
    lines = [
        json.loads(line)
        for file in sorted(folder.rglob("events.jsonl"))
        for line in file.read_text().splitlines()
    ]
    return Counter(line["stage"] for line in lines if line["event"] == kind)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_data(tmp_path_factory.mktemp("bench") / "data")


@pytest.fixture(scope="module")
def done(data: Path) -> Bench:
    """A grid that was interrupted in the middle of a row and started again."""
    said: list[str] = []
    work = Bench(data.parent / "out", tiny.settings(data), (0, 1), watch=Lines(said.append, stages=False))
    calls = []

    def check(_: Run) -> list[str]:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            PLAN._stages, "clean", replace(PLAN["clean"], check=check)
        )  # between clean and finetune
        with pytest.raises(KeyboardInterrupt):
            bench(work, "policy")
    bench(work, "policy")
    return work


def test_interrupted_grid_repeats_nothing(done: Bench) -> None:
    finished = events(done.folder, "finished")
    assert finished["scan"] == finished["classes"] == finished["embed"] == finished["graph"] == 1
    assert finished["pretrain"] == 2  # one per seed
    assert finished["train"] == finished["clean"] == finished["finetune"] == 4  # rows x seeds
    assert events(done.folder, "started") == finished  # no stage began twice


def test_started_again_it_does_nothing(done: Bench) -> None:
    before = events(done.folder, "started")
    table = (done.folder / "tables" / "policy.md").read_text()
    bench(done, "policy")
    assert events(done.folder, "started") == before
    assert (done.folder / "tables" / "policy.md").read_text() == table


def test_tables_share_rows(done: Bench) -> None:
    before = events(done.folder, "started")
    found = bench(done, "reference", rows=["none", "CB (ours)"])
    extra = events(done.folder, "started") - before
    assert set(extra) == {"train", "clean", "finetune", "evaluate"}
    assert extra["train"] == 2  # `none`, two seeds; CB is the policy table's
    assert set(found["rows"]) == {"none", "CB (ours)"}


def test_outputs(done: Bench) -> None:
    folder = done.folder / "tables"
    assert {file.name for file in folder.iterdir()} >= {"policy.md", "policy.csv", "policy.svg"}
    text = (folder / "policy.md").read_text()
    assert "± " in text
    assert "/2)" in text
    assert len((folder / "policy.csv").read_text().splitlines()) == 1 + 2 * 2 * 2


def test_a_row_that_is_refused_says_what_to_do(done: Bench) -> None:
    problem = bench(done, "main", rows=["CleanNet"])["rows"]["CleanNet"]["problem"]
    assert "cleannet needs verified samples" in problem
    assert "--set baselines.verified=FILE" in problem


def test_rows_that_learn_from_verified_samples_say_so(done: Bench, data: Path) -> None:
    given = config.update(done.settings, [f"baselines.verified={data / 'train_truth.csv'}"])
    work = Bench(done.folder, given, (0,))
    bench(work, "main", rows=["CleanNet", "MentorNet", "k-NN label vote"])
    text = (done.folder / "tables" / "main.md").read_text()
    for label in ("CleanNet", "MentorNet"):
        assert f"| {label} (has seen verified labels) |" in text
    assert "| k-NN label vote |" in text


def test_a_row_whose_prototypes_would_never_be_updated_is_refused(done: Bench) -> None:
    """Two epochs: with an update every 5 epochs the row would measure prototypes that nobody polished."""
    found = bench(Bench(done.folder, done.settings, (0,)), "frequency", rows=["5"])["rows"]
    assert found["1"]["figures"]
    assert not found["5"]["figures"]
    assert "every 5 epochs, and step 2 has 2 epochs (give it 5 epochs or more" in found["5"]["problem"]


def test_row_that_cannot_run_is_told(done: Bench) -> None:
    found = bench(done, "text", rows=["xlnet, our enhancement"])
    assert found["rows"]["no text: random anchors"]["figures"]
    if found["rows"]["xlnet, our enhancement"]["problem"]:  # no network here
        assert "not run: xlnet, our enhancement" in (done.folder / "tables" / "text.md").read_text()


def test_baselines_and_cost(done: Bench) -> None:
    one = Bench(done.folder, done.settings, (0,))
    found = bench(one, "main", rows=["k-NN label vote"])
    assert found["rows"]["k-NN label vote"]["figures"][0]["top1"] > 0.5
    parts = {part["name"] for part in bench(one, "cost")["parts"]}
    assert any(name.startswith("image encoder small") for name in parts)
    assert "step 2 with NCR" in parts
    assert "graph: text enhancement" in parts


def test_product_row_has_the_settings_as_given_and_others_the_papers(data: Path, tmp_path: Path) -> None:
    given = tiny.settings(data, "method=plus", "train.lambda_bts=0.7", "match.contrast=1")
    work = Bench(tmp_path, given, (0,), product="capro, preset x")
    found = bench(work, "main", rows=["CAPro", "capro, preset x"])
    assert set(found["rows"]) == {"Vanilla", "CAPro", "capro, preset x"}
    assert all(row["figures"] for row in found["rows"].values())
    runs = tmp_path / "runs" / "main"
    product, paper, vanilla = (
        Run.open(runs / name / "seed0").settings for name in ("capro-preset-x", "capro", "vanilla")
    )
    assert product == given
    assert (paper.method, paper.train.lambda_bts, paper.match.contrast) == ("paper", 0.1, 0)
    assert vanilla == paper
    assert "| capro, preset x |" in (tmp_path / "tables" / "main.md").read_text()


def test_the_open_set_has_key_views_though_the_preset_needs_none(data: Path, tmp_path: Path) -> None:
    """Method plus caches no key views; rows of the paper need them."""
    novel = tmp_path / "novel.txt"
    novel.write_text("lime\n")
    work = Bench(tmp_path, tiny.settings(data, "method=plus", "net.mode=frozen"), (0,), novel=novel)
    assert bench(work, "openset", rows=["CAPro"])["rows"]["CAPro"]["figures"]


def test_a_second_test_set_has_columns_of_its_own(data: Path, tmp_path: Path) -> None:
    """Its pictures show the next class's colour: its figures are lower than those of the first."""
    swapped = tiny.write_data(tmp_path / "elsewhere", train=3, test=0, noise=3) / "train"
    work = Bench(tmp_path / "out", tiny.settings(data, f"data.test={swapped}"), (0,))
    found = bench(work, "main", rows=["CAPro"])
    for row in found["rows"].values():
        figures = row["figures"][0]
        assert list(figures) == ["top1", "top5", "top1 on elsewhere/train", "top5 on elsewhere/train"]
        assert figures["top1"] > figures["top1 on elsewhere/train"] + 0.3
    head = next(line for line in (tmp_path / "out/tables/main.md").read_text().splitlines() if "top1" in line)
    assert "top1, % | top5, % | top1 on elsewhere/train, % | top5 on elsewhere/train, % |" in head
    assert "paper's ImageNet500: top1 / top5" in head
    novel = tmp_path / "novel.txt"
    novel.write_text("lime\n")
    opened = bench(replace(work, novel=novel), "openset", rows=["CAPro"])["rows"]["Vanilla"]["figures"][0]
    assert opened["C-F1 mean"] > opened["C-F1 mean on elsewhere/train"]
    lines = (tmp_path / "out/tables/openset-curves.csv").read_text().splitlines()
    by_row = Counter(line.partition(",")[0] for line in lines[1:])
    assert by_row == {f"{row}{on}": 101 for row in ("Vanilla", "CAPro") for on in ("", " on elsewhere/train")}
    own = [float(line.split(",")[-1]) for line in lines if line.startswith("Vanilla,")]
    assert sum(own) / 101 == pytest.approx(opened["C-F1 mean"], abs=1e-4)
    figures = [(tmp_path / "out/tables" / name).read_text() for name in ("openset.svg", "openset.2.svg")]
    assert ["on elsewhere/train" in text for text in figures] == [False, True]
    assert all(f">{row}</text>" in text for text in figures for row in ("Vanilla", "CAPro"))


def test_novel_classes_may_be_named_by_their_wordnet_ids(data: Path, tmp_path: Path) -> None:
    classes = tmp_path / "classes.yaml"
    named = {"crimson": "n04963588", "azure": "n04969242", "lime": "lime.n.06"}
    classes.write_text("".join(f"- name: {name}\n  sense: {sense}\n" for name, sense in named.items()))
    (tmp_path / "novel.txt").write_text(f"17 {wordnet.resolve('lime.n.06').wnid}\n")
    settings = tiny.settings(data, f"data.classes={classes}")
    work = Bench(tmp_path / "out", settings, (0,), novel=tmp_path / "novel.txt")
    bench(work, "openset", rows=["Vanilla"])
    assert (tmp_path / "out" / "openset" / "novel.txt").read_text() == "lime\n"


def test_open_set(done: Bench, tmp_path: Path) -> None:
    novel = tmp_path / "novel.txt"
    novel.write_text("lime\n")
    one = Bench(done.folder, done.settings, (0,), novel=novel)
    found = bench(one, "openset", rows=["CAPro"])
    figures = found["rows"]["CAPro"]["figures"][0]
    assert 0 < figures["C-F1 mean"] <= figures["C-F1 best"] <= 1
    assert figures["C-F1 held-out"] <= figures["C-F1 best"]
    assert (done.folder / "openset" / "known.txt").read_text() == "azure\ncrimson\n"
    run = Run.open(done.folder / "runs" / "openset" / "capro" / "seed0")
    manifest = manifest_of(run)
    assert set(manifest.label_names("train")) == {"azure", "crimson"}
    assert set(manifest.label_names("test")) == {"azure", "crimson", "lime"}
    assert len(manifest.split("val")) == 4
    lines = (done.folder / "tables" / "openset-curves.csv").read_text().splitlines()
    assert lines[0] == "row,threshold,C-P,C-R,C-F1"
    assert len(lines) == 1 + 2 * 101
    assert "polyline" in (done.folder / "tables" / "openset.svg").read_text()


def test_several_labels(tmp_path: Path) -> None:
    data = tiny.write_data(tmp_path / "data", train=8, multi=True)
    work = Bench(tmp_path / "out", tiny.settings(data, multi=True), (0,))
    found = bench(work, "gamma", rows=["0.9"])
    assert set(found["rows"]["0.9"]["figures"][0]) >= {"C-F1", "O-F1", "mAP"}
    text = (tmp_path / "out" / "tables" / "gamma.md").read_text()
    assert "| gamma | C-F1, % | O-F1, % | mAP, % |" in text
    assert "paper's NUS-WIDE: C-F1 / O-F1 / mAP" in text
    with pytest.raises(DataError, match="one label per sample"):
        bench(work, "openset")


def test_stages_of_a_given_run_are_taken(done: Bench, data: Path, tmp_path: Path) -> None:
    elsewhere = Run.create(tmp_path / "elsewhere", done.settings)
    PLAN.do(elsewhere, "scan")
    run = SharedRun.make(tmp_path / "run", done.settings, store=tmp_path / "store", given=[elsewhere.path])
    PLAN.do(run, "scan")
    assert events(tmp_path / "run", "taken") == {"scan": 1}
    assert not events(tmp_path / "run", "started")
    assert run.identity("scan") == elsewhere.identity("scan")


def test_mistakes(done: Bench, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no row 'CB'"):
        bench(done, "reference", rows=["CB"])
    with (tmp_path / LOCK).open("w") as file:  # as another process would
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="another capro bench"):
            bench(Bench(tmp_path, done.settings, (0,)), "policy")
    bare = tiny.write_data(tmp_path / "data", test=0)
    with pytest.raises(DataError, match="no test split"):
        bench(Bench(tmp_path / "out", tiny.settings(bare), (0,)), "policy")
