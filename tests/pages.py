"""The shell and Python blocks of docs/ and of the pages beside README, and a small world in which they can be run.

A block is run, or a comment before it says why not: ``<!-- not run: needs a graphics card -->``.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests import squares, towers
from tests.data.scanning import write_tar

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import check_docs  # noqa: E402

MARK = re.compile(r"<!-- not run: (.+?) -->")
TINY = """net.backbone=small net.embedding_dim=8 net.frozen_views=1 views.size=16 match.k=3 match.top_k=4
pretrain.epochs=1 pretrain.batch_size=16 plus.folds=2 plus.rounds=1 train.epochs=2 train.batch_size=16 train.queue=32
train.warmup_epochs=0 train.frozen_epochs=0 train.correct_after=1 finetune.epochs=1 finetune.batch_size=16""".split()
MODEL = "clip-vit-large-patch14"


@dataclass(frozen=True)
class Block:
    """A fenced block of shell commands, or of Python."""

    page: str
    line: int
    commands: tuple[str, ...]
    not_run: str = ""  # why not
    python: str = ""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path) -> list[Block]:
    """The blocks of a page that can be run, in order."""
    text = path.read_text("utf-8")
    lines = text.splitlines()
    found = []
    for line, language, content in check_docs.pieces(text):
        if language in (*check_docs.SHELL, "python"):
            before = next((each for each in reversed(lines[: line - 1]) if each.strip()), "")
            mark = MARK.fullmatch(before.strip())
            commands, python = ((), content) if language == "python" else (_commands(language, content), "")
            found.append(Block(path.name, line, commands, mark[1] if mark else "", python))
    return found


def _commands(language: str, content: str) -> tuple[str, ...]:
    lines = content.replace("\\\n", " ").splitlines()
    if language == "console":  # the others are what the commands printed
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return tuple(line for line in lines if shlex.split(line, comments=True))


# --- the world ------------------------------------------------------------------------------------


def write_world(folder: Path) -> Path:
    """Everything that the pages name, but for runs: coloured squares in every kind of source."""
    crawl = squares.write_data(folder / "crawl", train=8, test=3, noise=2)
    shutil.copy(crawl / "train_truth.csv", folder / "train_truth.csv")
    shutil.copytree(crawl / "test", folder / "other" / "photos")
    shutil.copytree(squares.write_data(folder / "mixed", novel=True) / "test", folder / "other" / "mixed")
    shutil.copytree(crawl / "test", folder / "runs" / "demo-data" / "test")
    shutil.copytree(crawl / "test", folder / "pictures")
    shutil.copytree(crawl / "train", folder / "pictures", dirs_exist_ok=True)
    shutil.copy(crawl / "test" / "lime-000.png", folder / "one.jpg")  # its content counts
    settings = {"preset": "small", "data": {"source": "crawl", "classes": "crawl/classes.yaml"}}
    for name in ("crawl.yaml", "config.yaml"):
        (folder / name).write_text(yaml.safe_dump(settings), "utf-8")
    rows = _rows(crawl / "train")
    with (folder / "pages.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["picture", "query", "heading"], *rows])
    with (folder / "albums.csv").open("w", newline="", encoding="utf-8") as file:
        several = [[f"pictures/{name}", f"{label};lime", text] for name, label, text in rows]
        csv.writer(file).writerows([["path", "tags", "title"], *several])
    _shard(folder / "shards" / "00000.tar", crawl / "train")
    for name in ("test/00000.tar", "other/00000.tar", "new.tar"):
        _shard(folder / "store" / name, crawl / "test")
    shutil.copy(folder / "store" / "new.tar", folder / "shard.tar")
    towers.save_clip(folder / "models" / MODEL)
    return folder


def _rows(split: Path) -> list[list[str]]:
    with (split / "metadata.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))[1:]


def _shard(path: Path, split: Path) -> None:
    members = []
    for number, (name, label, text) in enumerate(_rows(split)):
        meta = {"label": label, "caption": text, "status": "success"}
        members += [(f"{number:06d}.png", (split / name).read_bytes())]
        members += [(f"{number:06d}.json", json.dumps(meta).encode())]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tar(path, members)


def runs_before(given: list[Block]) -> set[str]:
    """The runs that a page needs before its first command: those that it does not begin itself."""
    begun: set[str] = set()
    needed: set[str] = set()
    for block in given:
        needed |= set(re.findall(r"runs/[\w-]+", block.python if not block.not_run else "")) - begun
        for words in [shlex.split(command, comments=True) for command in block.commands if not block.not_run]:
            named = {word for word in words if re.fullmatch(r"runs/[\w-]+", word)}
            begins = (
                words[1:2] == ["scan"] or "--data" in words or any(w.endswith(".yaml") for w in words[2:3])
            )
            needed |= set() if begins else named - begun
            begun |= named
    return needed
