"""The page as text, and the data under it: nothing missing is silent, nothing hostile is markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capro.data.pixels import pixels_of
from capro.errors import RunError
from capro.report import galleries, page, sentences, thumbnails
from capro.run.artefacts import VERDICTS, write_array
from capro.run.directory import Run
from capro.stages.report import report
from tests.fakes import fake_stage
from tests.report.made import HELD_OUT, HOSTILE, NAMES, SIZE, collected, make_run


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("single"))


@pytest.fixture(scope="module")
def data(run: Run) -> Any:
    return collected(run, title=HOSTILE[0])


def test_the_data_is_json_and_complete(data: Any) -> None:
    json.dumps(data, allow_nan=False)
    assert set(data["missing"]) == {"pixels", "graph"}  # implicit stages that the made-up run has no files of
    assert data["noise"]["total"] == {"anchor": 8, "keep": 33, "away": 5, "arrived": 5, "drop": 2}
    assert [part["name"] for part in data["summary"]] == [
        "What came in",
        "What was wrong with it",
        "What was done",
        "What it brought",
    ]
    assert "takes 15\xa0% of the web labels to be wrong" in data["summary"][1]["text"]
    assert len(data["map"]["items"]) == SIZE
    assert all(place is not None for place in data["samples"]["place"])
    first = data["matches"]["classes"][0]
    marked = [n for n, anchor in zip(first["text"], first["text_anchor"], strict=True) if anchor]
    assert {data["samples"]["id"][n][-7:] for n in marked} == {"000.png", "004.png"}


def test_galleries_say_how_many_of_how_many(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(galleries, "PER_GALLERY", 3)
    monkeypatch.setattr(galleries, "MAP_POINTS", 20)
    data = collected(run)
    part = next(c for c in data["galleries"]["classes"] if c["label"] == 0)["parts"]["keep"]
    assert (len(part["items"]), part["total"]) == (3, 8)
    assert (len(data["map"]["items"]), data["map"]["of"]) == (20, SIZE)
    text = page.render(data)
    assert "20 of 48 training images are shown" in text
    assert "Up to 3 images of each kind" in text


def test_many_classes_leave_out_those_with_least_change(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(galleries, "GALLERY_BUDGET", 2 * 5 * galleries.LEAST)
    data = collected(run)
    assert len(data["galleries"]["classes"]) == 2
    assert "The 2 classes of 4 with most change" in page.render(data)


def test_too_many_samples_for_a_graph_of_the_report(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(galleries, "GRAPH_LIMIT", 10)
    data = collected(run)
    assert data["matches"]["columns"] == ["text"]
    assert "more than 10 images: smoothed, reranked" in page.render(data)


def test_only_our_markup_is_in_the_page(data: Any) -> None:
    text = page.render(data)
    tags = Tags(text)
    names = [tag for tag, _ in tags.found]
    assert names.count("img") == 0
    assert names.count("script") == 2 + len(data["sheets"])
    for tag, attributes in tags.found:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        for name in ("href", "src"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), attributes
    assert "http:" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https:" not in text
    assert "\u202e" not in text
    for value in HOSTILE[:2]:
        assert value not in text


def test_the_policy_allows_our_style_and_script_alone(data: Any) -> None:
    text = page.render(data)
    style = text.split("<style>")[1].split("</style>")[0]
    script = text.rsplit("<script>", 1)[1].split("</script>")[0]
    content = next(a["content"] for t, a in Tags(text).found if t == "meta" and "http-equiv" in a)
    assert content == page.policy(style, script)
    assert "unsafe" not in str(content)


def test_the_script_never_parses_text_as_markup() -> None:
    for file in page.TEMPLATE.glob("*.js"):
        text = file.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(",
                     "new Function", "fetch(", "XMLHttp", "</script", "<!--"):  # fmt: skip
            assert word not in text, (file.name, word)


def test_the_block_survives_every_character() -> None:
    value = "".join(map(chr, [*range(0x300), 0x2028, 0x2029, 0x1F600])) + "</script><!--]]>"
    block = page.json_block([value])
    assert json.loads(block) == [value]
    assert not re.search("[<>&\u2028]", block)


@pytest.mark.parametrize(
    ("upto", "absent", "present"),
    [
        ("scan", "The clean stage has not finished", "48 training images"),
        ("embed", "The clean stage has not finished", "map-figure"),
        ("clean", "The evaluate stage has not finished", "class-list"),
    ],
)
def test_what_has_not_run_is_said(tmp_path: Path, upto: str, absent: str, present: str) -> None:
    text = page.render(collected(make_run(tmp_path, upto=upto)))
    assert absent in text
    assert present in text


def test_without_a_test_split(tmp_path: Path) -> None:
    data = collected(make_run(tmp_path, test=False))
    assert data["comparison"] is None
    assert "no test split" in data["summary"][3]["text"]
    assert "no test split" in page.render(data)


def test_several_labels(tmp_path: Path) -> None:
    data = collected(make_run(tmp_path, multi=True))
    assert data["noise"]["total"] == {"anchor": 8, "keep": 85, "away": 1, "arrived": 2, "drop": 2}
    assert data["confusion"] is None
    assert data["threshold"]["capro"]["recall"][0] == 1
    assert "labels were missing" in data["summary"][1]["text"]
    text = page.render(data)
    assert "there is no single confusion" in text
    assert "From which probability" in text


def test_arrays_of_another_scan_are_not_mixed_in(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_array(run.folder("clean") / "labels.npy", np.zeros(7, np.int64))
    data = collected(run)
    assert data["noise"] is None
    assert "does not fit the scan" in data["missing"]["clean"]


def test_pictures_that_are_gone_are_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for file in sorted((tmp_path / "data" / "train").glob("*.png"))[:5]:
        file.unlink()
    data = collected(run)
    assert data["samples"]["unreadable"] == 5
    assert "5 pictures could not be read" in page.render(data)


def test_the_stage_is_skipped_when_fresh_and_copied_out(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    path = report(run)
    assert path == run.folder("report") / "report.html"
    before = path.stat().st_mtime_ns
    out = report(run, out=tmp_path / "there" / "copy.html")
    assert path.stat().st_mtime_ns == before
    assert out.read_text() == path.read_text()
    report(run, title="Another")
    assert "Another" in path.read_text()


def test_the_threshold_of_held_out_data_is_shown_while_it_fits_the_model(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    path = report(run)
    assert collected(run)["held_out"] is None
    fake_stage(run, "threshold/capro", lambda _: HELD_OUT)
    chosen = collected(run)["held_out"]
    assert chosen["threshold"] == 0.37
    assert "1,200 samples: the val split; no test image" in chosen["text"]
    before = path.read_text("utf-8")
    assert report(run).read_text("utf-8") != before  # not skipped as fresh
    fake_stage(run, "finetune", lambda _: None, model="another")
    assert collected(run)["held_out"] is None
    nothing = {**HELD_OUT, "threshold": None}
    fake_stage(run, "threshold/capro", lambda _: nothing, found="none")
    assert collected(run)["held_out"] is None


def test_the_command_prints_the_path(run: Run, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from capro.cli import app

    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(run.path), "--out", str(out), "--title", "T < U"])
    assert done.exit_code == 0
    assert done.stdout.strip() == str(out)
    assert "<title>T &lt; U</title>" in out.read_text()


def test_a_run_without_a_scan_is_an_error(tmp_path: Path, run: Run) -> None:
    with pytest.raises(RunError, match="the scan stage has not finished"):
        report(Run.create(tmp_path / "new", run.settings))


def test_evidence_is_what_the_verdicts_hold(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    parts = collected(run)["galleries"]["classes"][0]["parts"]
    assert all(text.startswith("Kept as") for text in parts["keep"]["evidence"])
    run.file(VERDICTS).unlink()
    without = collected(run)["galleries"]["classes"][0]["parts"]["keep"]["evidence"]
    assert set(without) == {""}  # the report writes no sentence of its own


def test_harm_is_said() -> None:
    results = {"vanilla": {"top1": 0.5}, "capro": {"top1": 0.4}}
    changes = [{"label": 0, "change": -0.1}]
    text = sentences.brought(results, changes, NAMES, tests=10, interval=(-0.2, 0.0))
    assert "fell from 50.0 to 40.0" in text
    assert "0 classes got better, 1 worse (most of all cat, \N{MINUS SIGN}10.0 points)" in text


def test_sprites_fill_sheets_in_order(run: Run) -> None:
    drawn = thumbnails.sprites(pixels_of(run, 32), list(range(10)), [True] * 9 + [False], side=32)
    assert drawn.places[:9] == [(0, n) for n in range(9)]
    assert drawn.places[9] == (1, 0)
    assert len(drawn.sheets) == 2
    assert drawn.unreadable == 0
