"""The page as text, and the data under it: nothing missing is silent, nothing hostile is markup."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from capro.pipeline.run import Run
from capro.report import page
from capro.stages.report import report
from tests.fakes import fake_the_rest
from tests.report.made import HOSTILE, make_run


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


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


def test_the_command_prints_the_path(run: Run, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from capro.cli import app

    out = tmp_path / "page.html"
    shutil.copytree(run.path, tmp_path / "run")
    fake_the_rest(Run.open(tmp_path / "run"))
    done = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--out", str(out), "--title", "T < U"])
    assert done.exit_code == 0
    assert done.stdout.strip() == str(out)
    assert "<title>T &lt; U</title>" in out.read_text()
