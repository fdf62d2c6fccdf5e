"""The model card."""

from __future__ import annotations

import json
import re
from pathlib import Path

from capro.export.card import _plain, model_card
from capro.run.directory import Run


def test_card_has_data_settings_and_results(run: Run, model: Path) -> None:
    card = (model / "README.md").read_text()
    assert card.startswith("---\n")
    for text in ("## Data", "verdict: relabel", "## Measured", "| vanilla |", "| capro |", "top1"):
        assert text in card
    assert "gamma: 0.6" in card
    assert run.need("scan") in card
    top1 = run.result("evaluate")["capro"]["top1"]
    assert f"{100 * top1:.1f}" in card
    assert _plain("<script>[x](javascript:1)`\n") == "script x javascript:1"


def test_the_card_holds_no_absolute_path_and_no_hidden_character(run: Run, model: Path) -> None:
    for name in ("README.md", "config.json"):
        text = (model / name).read_text("utf-8")
        assert str(run.path.parent) not in text, name
        assert not re.search(r"(?<![\w.])/(?:tmp|home|root|Users)/", text), name
    assert "source: data\n" in (model / "README.md").read_text("utf-8")
    hidden = "".join(map(chr, [0, 7, 27, 0x7F, 0x85, 0x9B, 0x61C, *range(0x200E, 0x2010), *range(0x2028, 0x202F),
                               *range(0x2066, 0x206A), 0xFEFF, 0xFFF9, 0xE0041]))  # fmt: skip
    assert _plain(f"a{hidden}b") in {"ab", "a b"}
    assert (
        _plain("نیم\u200cفاصله 👩\u200d💻") == "نیم\u200cفاصله 👩\u200d💻"
    )  # joiners are part of words and pictures


def test_class_names_of_the_web_stay_inert_in_the_card(run: Run, model: Path) -> None:
    names = ["\u202egnp.exe", "a\u2066b", "x\x1b[2Jy", "line\u2028break", "```\n# no heading", "<img src=x>"]
    config = json.loads((model / "config.json").read_text())
    made = model_card(run, config | {"id2label": dict(enumerate(names))})
    line = next(line for line in made.splitlines() if "6 classes" in line)
    assert "gnp.exe, ab, x 2Jy, line break, # no heading, img src=x" in line
    assert not set(made) & set("\u202e\u2066\u2028\x1b")
