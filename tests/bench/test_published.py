"""The paper's figures are those of its source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from capro.bench import published
from capro.bench.published import METRICS_OF, Published
from tests.conftest import SHARED

TEX = SHARED.parent / "paper" / "capro.tex"


def test_every_data_set_has_a_figure_for_each_metric() -> None:
    tables = (
        published.MAIN, published.OPENSET, published.TEXT, published.REFERENCE, published.GAMMA,
        published.FREQUENCY, published.POLICY,
    )  # fmt: skip
    for table in tables:
        for name, row in table.items():  # type: ignore[attr-defined]
            assert row, name
            for data, figures in row.items():
                assert len(figures) == len(METRICS_OF[data]), (name, data)


def cells_of(line: str) -> list[str]:
    """Cells of a table's line, without commands of the typesetter."""
    plain = re.sub(r"\[?\\citenum\{[^}]*\}\]?|\$\^?\\?(dagger)\$", " ", line.rstrip().removesuffix(r"\\"))
    for _ in range(3):
        plain = re.sub(r"\\(textbf|underline|multicolumn\{\d\}\{\w\})\{([^{}]*)\}", r"\2", plain)
    plain = re.sub(
        r"\[[^\]]*\]|\$\^\\dagger\$", " ", plain.replace(r"$\times$", "x").replace(r"$\checkmark$", "ours")
    )
    return [" ".join(cell.replace("{", " ").replace("}", " ").split()) for cell in plain.split("&")]


def figures_in(cells: Sequence[str]) -> list[float | None]:
    return [None if cell == "--" else float(cell) for cell in cells if re.fullmatch(r"--|\d+\.\d", cell)]


@pytest.fixture(scope="module")
def rows() -> dict[str, list[list[str]]]:
    """Lines of tables in the paper's source, by the table's number of columns and its first cell."""
    if not TEX.is_file():
        pytest.skip(f"the paper is not at {TEX}")
    found: dict[str, list[list[str]]] = {}
    for line in Path(TEX).read_text("utf-8").splitlines():
        if "&" in line and line.rstrip().endswith(r"\\"):
            cells = cells_of(line)
            if figures_in(cells):
                found.setdefault(f"{len(cells)} {cells[0]}", []).append(cells)
    return found


def flat(row: Published, *data: str) -> list[float | None]:
    """Figures in the order of the columns; a dataset that the row does not have is dashes."""
    return [value for name in data for value in row.get(name, (None,) * len(METRICS_OF[name]))]


FOUR = ("WebVision1k", "ImageNet1k", "Google500", "ImageNet500")
THREE = ("Google500", "ImageNet500", "NUS-WIDE")
IN_TEX = {
    "CurriculumNet": "Curriculum",
    "Co-teaching": "CoTeach",
    "Vanilla": "Vanilla (ours)",
    "CAPro": "CAPro (ours)",
}


@pytest.mark.shared
def test_systems(rows: dict[str, list[list[str]]]) -> None:
    for name, row in published.MAIN.items():
        label = IN_TEX.get(name, name)
        if any(data in row for data in FOUR) and name != "CAPro + mix-up":
            lines = [cells for cells in rows[f"10 {label}"] if name != "CurriculumNet" or cells[1] == "R50"]
            assert figures_in(lines[0]) == flat(row, *FOUR), name
        if "NUS-WIDE" in row and name != "CAPro + mix-up":
            assert figures_in(rows[f"5 {label}"][0]) == flat(row, "NUS-WIDE"), name
    for name, row in published.OPENSET.items():
        wanted = flat(row, "WebVision1k, open set", "ImageNet1k, open set")
        assert figures_in(rows[f"3 {IN_TEX.get(name, name)}"][0]) == wanted, name


@pytest.mark.shared
def test_ablations(rows: dict[str, list[list[str]]]) -> None:
    encoders = {"none": "x", "minilm": "MiniLM", "xlnet": "XLNet", "gpt-neo": "GPT-Neo"}
    enhancers = {"none": "x", "knn": "VSGraph", "reciprocal": "ours (ours)"}
    for (encoder, enhancer), row in published.TEXT.items():
        lines = rows[f"10 {encoders[encoder]}"]
        line = next(cells for cells in lines if cells[1] == enhancers[enhancer] and cells[2] == "x")
        assert figures_in(line) == flat(row, *THREE)
    providers = {
        "none": "x", "mixup": "Mix-up (MU)", "bootstrap": "Bootstrap", "smoothing": "Label smooth", "scc": "SCC",
        "ncr": "NCR", "cb": "ours CB (ours)", "cb+mixup": "ours CB (ours) + MU",
    }  # fmt: skip
    for (encoder, provider), row in published.REFERENCE.items():
        lines = rows[f"10 {encoders[encoder]}"]
        line = next(cells for cells in lines if cells[1] == "ours (ours)" and cells[2] == providers[provider])
        assert figures_in(line) == flat(row, *THREE), provider
    for gamma, row in published.GAMMA.items():
        line = next(cells for cells in rows[f"9 {gamma}"] if cells[1] == "x")
        assert figures_in(line[1:]) == flat(row, *THREE)
    for frequency, row in published.FREQUENCY.items():
        label = "1 (by default)" if frequency == 1 else f"{frequency:g}"
        assert figures_in(rows[f"8 {label}"][0]) == flat(row, *THREE)
    for policy, label in (("mopro", "MoPro"), ("capro", "CAPro (ours)")):
        assert figures_in(rows[f"8 {label}"][0]) == flat(published.POLICY[policy], *THREE)
