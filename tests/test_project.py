"""What pyproject.toml, CITATION.cff and CHANGELOG.md say of the project: the same, and what the code needs."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import capro

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_there_is_one_version() -> None:
    assert PROJECT["version"] == capro.__version__ == str(CITATION["version"])


def test_the_changelog_begins_with_this_version() -> None:
    released = re.findall(r"^## \[?(\d+\.\d+\.\d+)", CHANGELOG, re.MULTILINE)
    in_the_making = re.findall(r"^Version (\d+\.\d+\.\d+) in the making", CHANGELOG, re.MULTILINE)
    assert len(in_the_making) <= 1
    known = [*in_the_making, *released]
    assert known == sorted(known, key=Version, reverse=True)
    assert known[0] == capro.__version__


def test_the_page_on_pypi_leads_nowhere_that_only_the_repository_has() -> None:
    page, readme = PROJECT["readme"]["text"], (ROOT / "README.md").read_text("utf-8")
    targets = re.findall(r"\]\(([^)]*)\)", page)
    assert [each for each in targets if not each.startswith("https://")] == []
    blocks = re.findall(r"```sh\n.*?```", page, re.DOTALL)
    assert blocks
    assert [
        block for block in blocks if block not in readme
    ] == []  # tests/test_pages.py runs those of README.md
    assert PROJECT["urls"]["Paper"] == CITATION["preferred-citation"]["url"]
    assert PROJECT["urls"]["Paper"] in targets


# --- what is imported is asked for ------------------------------------------------------------------

DISTRIBUTIONS = packages_distributions()  # of each top-level module
PARTS = {"pydantic-core": "pydantic"}  # packages that another one fixes to a version of its own


class Import(NamedTuple):
    """A package or a module of ours that a module imports; ``late`` inside a function."""

    by: str
    name: str
    late: bool


def imports_of(tree: ast.AST, by: str, *, late: bool = False) -> Iterator[Import]:
    """All imports of a module but those for types alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(by, each.name, late) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, by
            yield from (Import(by, f"{node.module}.{each.name}", late) for each in node.names)
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            inside = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports_of(node, by, late=inside)


def asked(lines: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in lines} - {"capro"}


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    source = ROOT / "src"
    files = {path.relative_to(source).with_suffix(""): path for path in source.rglob("*.py")}
    names = {name: ".".join(name.parts).removesuffix(".__init__") for name in files}
    return [
        each
        for name, path in files.items()
        for each in imports_of(ast.parse(path.read_text("utf-8")), names[name])
    ]


def package_of(name: str) -> str | None:
    """The package that an import needs; None for Python's own modules and ours."""
    top = name.partition(".")[0]
    if top == "capro" or top in sys.stdlib_module_names:
        return None
    found = {canonicalize_name(each) for each in DISTRIBUTIONS.get(top, [top])}
    assert len(found) == 1, f"{top} is in {sorted(found)}"
    (package,) = found
    return PARTS.get(package, package)


def test_every_imported_package_is_asked_for(imports: list[Import]) -> None:
    always = asked(PROJECT["dependencies"])
    extras = {name: asked(lines) for name, lines in PROJECT["optional-dependencies"].items() if name != "dev"}
    sometimes = set().union(*extras.values()) - always
    at_once: dict[str, set[str]] = {}  # module -> packages of extras that it imports when it is imported
    for each in imports:
        package = package_of(each.name)
        assert package is None or package in always | sometimes, (
            f"{each.by} imports {each.name}: not in pyproject.toml"
        )
        if package in sometimes and not each.late:
            at_once.setdefault(each.by, set()).add(package)
    assert at_once.keys() >= {"capro.pipeline.ray_engine", "capro.review.server"}
    for each in imports:  # such a module is itself imported inside a function, or by one that needs the same
        needed = at_once.get(each.name) or at_once.get(each.name.rpartition(".")[0], set())
        assert each.late or needed <= at_once.get(each.by, set()), (
            f"{each.by} imports {each.name}, which needs an extra"
        )


def test_imports_are_found_where_they_stand() -> None:
    text = (
        "import a.b\nif TYPE_CHECKING:\n    import c\nclass X:\n    def f(self):\n        from d import e\n"
    )
    assert [*imports_of(ast.parse(text), "m")] == [Import("m", "a.b", False), Import("m", "d.e", True)]
