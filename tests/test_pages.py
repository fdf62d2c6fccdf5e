"""Every block of commands or Python in README and docs/ is run here on small data, or says why not."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from capro.models.text_encoders import load_text_encoder
from capro.pipeline import working_copy
from capro.stages import classes, embed, match
from tests import tiny
from tests.commands import Capro, capro
from tests.pages import ROOT, TINY, Block, blocks, pages, runs_before, write_world
from tests.stores import put_tree

__all__ = ["capro"]
BY_PAGE = {path.name: blocks(path) for path in pages()}
RUN = {name: found for name, found in BY_PAGE.items() if any(not block.not_run for block in found)}
QUICK = [part for each in TINY for part in ("--set", each)]

# README has no marks before its first lines, so that they stay the first. What is not run of it, and who does:
README = {
    "make": "CI runs `make test`, `make site` and `make wheel`; benchmarks/demo.py runs `make demo`",
    "python3": "makes an environment, as tests/test_package.py does",
    ".venv/bin/pip": "installs, as tests/test_package.py does",
}


def program(command: str) -> str:
    return shlex.split(command, comments=True)[0]


def is_run(block: Block) -> bool:
    return bool(block.python) or any(program(command) == "capro" for command in block.commands)


@pytest.mark.parametrize(
    "block", [block for found in BY_PAGE.values() for block in found], ids=lambda b: b.place
)
def test_a_block_is_run_or_says_why_not(block: Block) -> None:
    if (
        block.page == "README.md"
        and block.commands
        and all(program(each) in README for each in block.commands)
    ):
        return
    assert is_run(block) or block.not_run, (
        f"{block.place}: write <!-- not run: WHY, and who runs it --> before it, or commands of capro that "
        "tests/test_pages.py can run"
    )
    for file in re.findall(r"(?:tests|benchmarks)/[\w/]+(?:\.py)?", block.not_run):
        assert (ROOT / file).exists(), f"{block.place}: no {file}"


def test_a_mark_belongs_to_the_block_behind_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- not run: needs a card -->\n\n```sh\ncapro run \\\n  --run a # x\n# only a comment\n```\n\n"
        "```console\n$ capro scan b\nprinted\n```\n",
        "utf-8",
    )
    marked, plain = blocks(page)
    assert (marked.line, marked.not_run) == (3, "needs a card")
    assert [shlex.split(each, comments=True) for each in marked.commands] == [["capro", "run", "--run", "a"]]
    assert (plain.commands, plain.not_run) == (("capro scan b",), "")


def test_a_run_that_a_page_begins_is_not_there_before() -> None:
    given = [
        Block("p", 1, ("capro scan crawl --run runs/a", "capro run --run runs/a")),
        Block("p", 2, ("capro report runs/b",)),
        Block("p", 3, ("capro report runs/c",), not_run="why"),
    ]
    assert runs_before(given) == {"runs/b"}


@pytest.fixture(scope="module")
def patched() -> Any:
    """A text encoder without weights in place of MiniLM, and no waiting for disks."""
    patch = pytest.MonkeyPatch()

    def load(name: str, **options: Any) -> Any:
        return tiny.WordEncoder() if name == "minilm" else load_text_encoder(name, **options)

    for module in (classes, embed, match):
        patch.setattr(module, "load_text_encoder", load)
    patch.setattr(os, "fsync", lambda _descriptor: None)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources, and a folder for a finished run, which the first page that needs one fills."""
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("name", RUN)
def test_the_commands_of_a_page_work(
    name: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capro: Capro
) -> None:
    home = tmp_path / "home"
    shutil.copytree(world, home, ignore=shutil.ignore_patterns("finished"))
    monkeypatch.chdir(home)
    finished = world / "finished"
    for run in runs_before(RUN[name]):
        if not finished.exists():
            typed(
                capro,
                "run",
                "--data",
                "crawl",
                "--classes",
                "crawl/classes.yaml",
                "--run",
                str(home / "made"),
                *QUICK,
            )
            shutil.move(home / "made", finished)
        shutil.copytree(finished, home / run)
    if any("s3://" in command for block in RUN[name] for command in block.commands):
        monkeypatch.setenv("CAPRO_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(working_copy, "_copies", {})
        put_tree(home / "store", "memory://crawl")
        put_tree(home / "shards", "memory://crawl/shards")
    names: dict[str, Any] = {}
    for block in RUN[name]:
        for command in block.commands if not block.not_run else ():
            run_line(command.replace("s3://", "memory://"), capro, f"{block.place}: {command}")
        if block.python and not block.not_run:
            exec(block.python, names)


def run_line(command: str, capro: Capro, place: str) -> None:
    words = shlex.split(command, comments=True)
    if place.startswith("README.md") and words[0] in README:
        return
    if words[:2] == ["pip", "install"]:  # the extra must exist
        extra = re.fullmatch(r"capro\[(\w+)\]", words[2])
        document = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
        assert extra, place
        assert extra[1] in document["project"]["optional-dependencies"], place
        return
    assert words[0] == "capro", f"{place}: only commands of capro are run; mark the block, or part it"
    fresh = words[1] in ("scan", "run")
    run = words[words.index("--run") + 1] if fresh and "--run" in words else ""
    begins = fresh and ("--preset" in words or not Path(run, "run.yaml").exists())
    typed(capro, words[1], *(QUICK if begins else []), *words[2:], place=place)


def typed(capro: Capro, *words: str, place: str = "") -> None:
    code, out, error = capro(*words)
    assert code == 0, f"{place}\n{out}\n{error}"
