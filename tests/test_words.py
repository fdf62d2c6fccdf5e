"""One word for each thing: pages and messages do without the words in this list.

The list has only words that are always wrong where a user reads them. Code, in backticks or blocks, is not looked at:
settings, options, columns and files keep their names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "capro"
GLOSSARY = ROOT / "docs" / "glossary.md"
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / f"{n}.md" for n in ("README", "CONTRIBUTING", "SECURITY")),
]

# a pattern, and the words of the glossary to use instead
TERMS = {
    r"beliefs?|believed": "label score",
    r"class's text|text of (?:the|a|its|each) class": "class text",
    r"doubted|called noise": "judge",  # "judged wrong"
    r"(?<!near )(?<!near-)duplicates?(?! across splits)": "near duplicate",  # or copy, with the same bytes
    r"ground truth|truth tables?": "true label",
    r"held back": "threshold",  # which rejects
    r"likeness": "similar pictures",  # "similarity"
    r"multi-label": "several labels",
    r"quarantined? samples?": "row",  # a quarantined row never became a sample
    r"run folders?": "run directory",
}
# a pattern, and plain words to use instead
PLAIN = {
    r"anew": "again",
    r"ctrl\+c": "Ctrl-C",
    r"dataset": "data set",
    r"fetch(?:ed|es|ing)?": "download",
    r"goes on where": "continues where",
    r"mend(?:s|ed|ing)?": "correct, or repair",
}
AVOID = {re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): word for pattern, word in (TERMS | PLAIN).items()}


def found_in(text: str) -> list[str]:
    """What to change in a text.

    >>> found_in("likeness to a picture; `likeness.py`")
    ["'likeness': say 'similar pictures'"]
    """
    prose = " ".join(re.sub(r"`[^`]*`", "`", text).split())
    return [
        f"'{match[0]}': say '{word}'" for pattern, word in AVOID.items() for match in pattern.finditer(prose)
    ]


def prose_of(page: str) -> str:
    """A page of Markdown without blocks of code, comments and the targets of links."""
    page = re.sub(r"^ *```.*?^ *```", "", page, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"<!--.*?-->|\]\([^)]*\)", "]", page, flags=re.DOTALL)


def messages(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of the string literals of a module that have several words; docstrings are for developers."""
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in docstrings:
            continue
        if isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value


def strings(script: str) -> Iterator[tuple[int, str]]:
    """(line, text) of the string literals of a script in JavaScript that have several words."""
    for number, line in enumerate(script.splitlines(), 1):
        for match in re.finditer(r"\"([^\"]*)\"|`([^`]*)`", line):
            text = match[1] or re.sub(r"\$\{[^}]*\}", "", match[2] or "")
            if " " in text:
                yield number, text


def shown(template: str) -> str:
    """The text of a template, without tags and expressions."""
    return re.sub(r"<[^<>]*>|\{[%{].*?[%}]\}", " ", re.sub(r"<[^<>]*\{[{%].*?[%}]\}[^<>]*>", " ", template))


@cache
def glossary() -> list[str]:
    """The words that the glossary explains, in its order."""
    rows = re.findall(r"^\| ([^|]+) \|", GLOSSARY.read_text("utf-8"), re.MULTILINE)
    return [word.strip() for row in rows if row not in ("word", "---") for word in row.split(",")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_uses_the_words_of_the_glossary(page: Path) -> None:
    assert found_in(prose_of(page.read_text("utf-8"))) == []


def test_messages_use_the_words_of_the_glossary() -> None:
    wrong = []
    for file in sorted(SOURCE.rglob("*")):
        if file.suffix in (".py", ".js"):
            read = messages if file.suffix == ".py" else strings
            for line, text in read(file.read_text("utf-8")):
                wrong += [f"{file.relative_to(ROOT)}:{line}: {each}" for each in found_in(text)]
        elif file.suffix == ".j2":
            text = shown(file.read_text("utf-8"))
            wrong += [f"{file.relative_to(ROOT)}: {each}" for each in found_in(text)]
    assert wrong == []


def test_the_glossary_has_every_word_once_and_those_to_use_instead() -> None:
    words = glossary()
    assert len(words) > 100
    assert sorted({word for word in words if words.count(word) > 1}) == []
    assert sorted(set(TERMS.values()) - set(words)) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Near duplicates, near-duplicate score, duplicates across splits", []),
        ("two\nduplicates", ["duplicates"]),
        ("the `--multi-label` of `fetch`", []),
        ("A quarantined sample is mended.", ["quarantined sample", "mended"]),
        ("![likeness](likeness.md)", ["likeness"]),
        ("```sh\nfetch\n```\n<!-- anew -->\n", []),
    ],
)
def test_the_check_notices_words_but_not_code(text: str, wrong: list[str]) -> None:
    assert [each.split("'")[1] for each in found_in(prose_of(text))] == wrong


def test_messages_are_literals_that_are_not_docstrings() -> None:
    source = 'def f():\n    """Fetch it."""\n    raise E(f"{x}: fetch it", hint="a" "b c")\n'
    assert [text for _, text in messages(source)] == [": fetch it", "ab c"]
    assert [*strings('news("Go on", `${a} more`); t("one")')] == [(1, "Go on"), (1, " more")]
    assert shown('<p title="{{ x }}">Hello {% if a %}you{% endif %}</p>').split() == ["Hello", "you"]
