"""Versions with known holes are refused; the project's own are without."""

from __future__ import annotations

import doctest

from packaging.requirements import Requirement

from scripts import check_advisories

HOLES = {"Some_Package": {"CVE-1": "2.0", "CVE-2": "1.5"}}


def test_bounds_and_installed_versions_are_compared() -> None:
    asked = [Requirement("some-package>=1.6,<3")]
    found = check_advisories.problems(iter(asked), {"some-package": "1.4"}, HOLES)
    assert [("pyproject" in text, text.split("CVE-")[1][0]) for text in found] == [
        (True, "1"), (False, "1"), (False, "2"),
    ]  # fmt: skip
    assert check_advisories.problems(iter([Requirement("some_package>=2")]), {}, HOLES) == []


def test_a_package_that_nobody_bounds_is_named() -> None:
    (first, _) = check_advisories.problems(iter([]), {}, HOLES)
    assert first.startswith("some-package: nothing in pyproject.toml asks for it")


def test_examples() -> None:
    assert doctest.testmod(check_advisories).failed == 0


def test_the_project_is_without_them() -> None:
    assert check_advisories.main() == 0
