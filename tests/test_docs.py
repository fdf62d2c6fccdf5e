"""What the documentation names must exist; and the check must notice when it does not."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import check_docs  # noqa: E402


def test_the_documentation_is_right() -> None:
    assert list(check_docs.check_all()) == []


def problems(text: str, tmp_path: Path) -> list[str]:
    page = tmp_path / "page.md"
    page.write_text(text, "utf-8")
    return [found.split(": ", 1)[1] for found in check_docs.check(page)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`capro scna x`", "no such command: did you mean 'capro scan'?"),
        ("`capro classes sugest`", "did you mean 'capro classes suggest'?"),
        ("`capro scan x --lable-column y`", "no option '--lable-column'"),
        ("`capro match x --run r`", "more arguments than capro match takes"),
        ("`capro run --preset smal`", "no preset 'smal': did you mean 'small'?"),
        ("`capro run --set train.gama=1`", "unknown setting 'train.gama'"),
        ("`capro run --set train.gamma=7`", "train.gamma: input should be less"),
        ("`train.gama`", "no setting 'train.gama': did you mean 'gamma'?"),
        ("`train.start=anchor`", "input should be 'web' or 'anchors'"),
        ("`capro bench mian`", "no table 'mian': did you mean 'main'?"),
        ("`capro.core.losses.totl`", "no 'capro.core.losses.totl'"),
        ("`capro.methd.losses`", "no 'capro.methd.losses'"),
        ("`make tset`", "no make target 'tset'"),
        ("`python scripts/none.py`", "no file 'scripts/none.py'"),
        ("`src/capro/none.py`", "no file 'src/capro/none.py'"),
        ("`clean/verdict.parquet`", "no code writes 'verdict.parquet'"),
        ("[a](nowhere.md)", "link to 'nowhere.md': no such file"),
        ("# Title\n[a](#titel)", "no heading '#titel'"),
        ("```sh\ncapro run \\\n  --sett a=1\n```", "no option '--sett'"),
        ("```sh\ncd x && OMP_NUM_THREADS=1 capro rum\n```", "no such command"),
        ("```sh\naccelerate launch -m capro rum\n```", "no such command"),
        ("```console\n$ capro rum\nerror: ...\n```", "no such command"),
        ("```yaml\ntrain:\n  gama: 1\n```", "unknown setting 'train.gama'"),
        ("```yaml\n- name: x\n  sense: n00000000\n```", "n00000000"),
        ("```python\nfrom capro.pipeline.run import Rum\n```", "capro.pipeline.run has no 'Rum'"),
        ("```python\nx = = 1\n```", "python: invalid syntax"),
    ],
)
def test_a_mistake_is_found(text: str, expected: str, tmp_path: Path) -> None:
    found = problems(text, tmp_path)
    assert len(found) == 1
    assert expected in found[0]


def test_blocks_that_a_formatter_has_broken_are_found(tmp_path: Path) -> None:
    """Each was written like this once, or is what a reflowed paragraph does to a block."""
    for text, expected in [
        ("```sh\nmake test # all tests make docs # this page\n```", "two comments on one line"),
        (
            "```sh\nmake docs # checks links, after that make site\n```",
            "the comment holds a command: 'make site'",
        ),
        ("```sh\ncapro scan crawl --run runs/a make test\n```", "several commands on one line"),
        ("```sh\nmake test\nseconds, then\n```", "begins with no command: 'seconds, then'"),
        ("```console\n$ capro report a $ capro doctor a\n```", "several commands on one line"),
        ("```python\nimport capro; print(capro)\n```", "several statements on one line"),
        ("```python\nx = 1  # the count y = 2\n```", "the comment holds a statement"),
        ("```python\nimport capro print(capro)\n```", "python: invalid syntax"),
        ("```yaml\n- name: a sense: b\n```", "yaml: mapping values are not allowed here"),
        ("text ```sh make test```", "a fence within a line of text"),
        ("```sh make test\n```", "text behind a fence"),
        ("text\n\n```text\nx", "the block is not closed"),
        ("| a | b |\n|---|---|\n| 1 |", "a table row with 1 cells below one with 2"),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n\n| 3 | 4 |", "a table without a head, or one that is cut in two"),
    ]:
        assert any(expected in each for each in problems(text, tmp_path)), (text, problems(text, tmp_path))


def test_what_is_right_passes(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("## Two words, *here*\n", "utf-8")
    text = """
# Title
`capro`, `capro run`, `capro classes`, `capro COMMAND --help`, `capro run ... --set ...`
`capro scan SOURCE --run DIR [--json]`, `train-0000N.parquet`, `train.gamma=0.4`, `clean/verdicts.parquet`,
`make test`, `match.py`,
`data.yaml`, `crawl/train/x.png`, [here](other.md#two-words-here), [web](https://example.org/x)
```sh
$ capro scan a --run=b --label-separator ";" | head  # comment
cd x && make test
torchrun --nproc_per_node 8 \\
    -m -- capro run config.yaml --run a  # continued, `make test` in backquotes
export OMP_NUM_THREADS=1
```
```python
x = [1, 2]  # (n, d)
if x:
    print(x)
```
| a | b \\| c |
|---|---|
| `1` | 2 |
```console
$ ls
capro rum
```
```text
capro rum
```
"""
    assert problems(text, tmp_path) == []


# --- all pages --------------------------------------------------------------------------------------


def test_the_documentation_is_short() -> None:
    pages = [path for path in check_docs.documents() if path.name != "LOG.md"]
    words = {path.name: len(path.read_text("utf-8").split()) for path in pages}
    assert sum(words.values()) <= 28_000, sorted(words.items(), key=lambda each: each[1])


def test_the_reference_has_a_place_for_each_table() -> None:
    page = check_docs.reference.filled((ROOT / "docs" / "reference.md").read_text("utf-8"))
    assert page.index("### capro demo") < page.index("`match.top_k`") < page.index("| setting | clip |")
    assert list(check_docs.broken(page)) == []


def test_every_column_of_verdicts_and_exports_is_described() -> None:
    words = "".join((ROOT / "docs" / name).read_text("utf-8") for name in ("export.md", "files.md"))
    for file in sorted((ROOT / "tests" / "golden").glob("*.json")):
        record = json.loads(file.read_text("utf-8"))
        exports = [
            record.get("exports", {}).get(kind, {}).get("tables", {}) for kind in ("csv", "parquet", "hf")
        ]
        tables = [record["verdicts"], record["pairs"], *(rows for each in exports for rows in each.values())]
        columns = {name for rows in tables for row in rows for name in row}
        assert len(columns) > 10, file
        assert [name for name in sorted(columns) if f"`{name}`" not in words] == [], file


# --- README.md and docs/results.md ----------------------------------------------------------------


def test_the_results_are_short_and_each_table_names_its_command() -> None:
    text = (ROOT / "docs" / "results.md").read_text("utf-8")
    assert len(text.splitlines()) <= 100
    for section in text.split("\n## ")[1:]:
        if "\n|" in section:
            assert re.search(r"`(python benchmarks/\w+\.py|capro bench|make \w+)|same command", section), (
                section
            )


def test_every_figure_of_the_results_is_in_the_log() -> None:
    """Or in the page that the log names for it: a figure is changed in both places or in none."""
    pages = ["benchmarks/LOG.md", "docs/performance.md"]
    log = " ".join((ROOT / page).read_text("utf-8") for page in pages)
    figures = set(re.findall(r"\d[\d,]*\.\d+", (ROOT / "docs" / "results.md").read_text("utf-8")))
    assert len(figures) > 100
    assert figures - set(re.findall(r"\d[\d,]*\.\d+", log)) == set()


def test_the_readme_has_no_figure_that_the_results_do_not_hold() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = readme.partition("## Compared")[2].partition("## Install")[0]
    results = (ROOT / "docs" / "results.md").read_text("utf-8")
    figures = set(re.findall(r"\d+\.\d+|\d+(?= %)", shown))
    assert len(figures) > 10
    assert figures - set(re.findall(r"\d+\.\d+|\d+(?= %)", results)) == set()


def test_the_readme_begins_with_its_title_and_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert lines[0] == "# capro"
    assert [line.split("#")[0].strip() for line in lines[:8] if line.startswith("make ")] == [
        "make demo",
        "make test",
    ]


# --- docs/paper.md --------------------------------------------------------------------------------

PAPER = Path("/work/shared/paper/capro.tex")
COUNTS = {"Eq.": 9, "Tab.": 12, "Fig.": 8, "Algo.": 1}
WORDS = {"equal", "reading", "not here"}


def paper_rows() -> list[list[str]]:
    """The rows of the page's tables of four columns: what, made by, what to know, one word."""
    text = (ROOT / "docs" / "paper.md").read_text("utf-8").partition("## Readings")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:1] == "|"]
    return [row for row in rows if row[0] != "in the paper" and set(row[0]) != {"-"}]


def test_the_page_of_the_paper_has_every_numbered_piece_once_in_order() -> None:
    named = [found for row in paper_rows() if (found := re.match(r"(Eq\.|Tab\.|Fig\.|Algo\.) (\d+)", row[0]))]
    for kind, count in COUNTS.items():
        numbers = [int(found[2]) for found in named if found[1] == kind]
        assert sorted(set(numbers)) == [*range(1, count + 1)], kind
        assert numbers == sorted(numbers), kind


def test_each_piece_has_what_makes_it_and_one_word() -> None:
    for row in paper_rows():
        assert len(row) == 4, row
        assert row[3] in WORDS, row
        made_by = re.findall(r"`(capro[. ][^`]+|python [^`]+)`|\]\((\w+\.md)\)", row[1])
        assert made_by, row  # check_docs looks each of them up
        assert not re.sub(r"`[^`]+`|\[[^]]*\]\([^)]*\)|[, ]", "", row[1]), row


@pytest.mark.shared
@pytest.mark.skipif(not PAPER.exists(), reason="the paper is not part of the repository")
def test_the_counts_are_the_papers() -> None:
    tex = PAPER.read_text("utf-8")
    tables = "".join(re.findall(r"\\begin{table}.*?\\end{table}", tex, re.DOTALL))
    figures = "".join(re.findall(r"\\begin{figure}.*?\\end{figure}", tex, re.DOTALL))
    algorithms = len(re.findall(r"\\begin{algorithm}", tex))
    counted = {
        "Eq.": len(re.findall(r"\\begin{equation}", tex)),
        "Tab.": len(re.findall(r"\\caption(?:box)?{", tables)) - algorithms,
        "Fig.": len(re.findall(r"\\caption{", figures)),
        "Algo.": algorithms,
    }
    assert counted == COUNTS


def test_the_notation_has_every_symbol_of_the_papers_list() -> None:
    """Tab. 5, as it is written here: hats and tildes as letters, the index i left out."""
    table = (ROOT / "docs" / "notation.md").read_text("utf-8")
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    found = {symbol.strip() for row in rows for symbol in re.split(r", (?![kE]\))|; | = ", row)}
    paper = (
        "x t y y* N C D θ_e θ_c d_v v d_t s t^c s^c p d_p z ṽ q Q k G A d d* V S I_N Ã D̃ Ŝ ŝ K σ_K^c D_K^c D_K ẑ^c z^c "
        "τ α o r γ m_p b w λ"
    ).split()
    assert not [symbol for symbol in paper if symbol not in found]
    assert {"F(θ_e", "N(i, k)", "R(i, k)", "(V, E)"} <= found
