"""Are the packages that capro asks for, and those that are installed, without known holes?

    python scripts/check_advisories.py

Compares the lower bounds of pyproject.toml and the installed versions with scripts/advisories.toml.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
Holes = Mapping[str, Mapping[str, str]]  # package -> advisory -> first version without it


def requirements(project: Mapping[str, object]) -> Iterator[Requirement]:
    """What a pyproject.toml asks for, extras included; not the project itself."""
    asked = project["project"]
    assert isinstance(asked, dict)
    lines = [
        *asked["dependencies"],
        *(line for extra in asked["optional-dependencies"].values() for line in extra),
    ]
    yield from (found for line in lines if (found := Requirement(line)).name != asked["name"])


def problems(asked: Iterator[Requirement], installed: Mapping[str, str], holes: Holes) -> list[str]:
    """A sentence for each bound or version below the first one without a hole; and for each that nobody asks for.

    >>> holes = {"a": {"CVE-1": "2.0"}}
    >>> problems(iter([Requirement("a>=1.5")]), {}, holes)
    ['a>=1.5 in pyproject.toml allows CVE-1: ask for 2.0 at least']
    >>> problems(iter([Requirement("a>=2")]), {"a": "1.9"}, holes)
    ['a 1.9 is installed and has CVE-1: install 2.0 at least']
    """
    known = {canonicalize_name(name): rows for name, rows in holes.items()}
    bounds = dict[str, tuple[Requirement, Version]]()
    for each in asked:
        lower = [Version(part.version) for part in each.specifier if part.operator in (">=", "==", "~=")]
        bounds[canonicalize_name(each.name)] = each, max(lower, default=Version("0"))
    found = []
    for name, rows in known.items():
        for hole, fixed in rows.items():
            if name not in bounds:
                found.append(
                    f"{name}: nothing in pyproject.toml asks for it, so {hole} can come in: give it a lower bound"
                )
            elif bounds[name][1] < Version(fixed):
                found.append(f"{bounds[name][0]} in pyproject.toml allows {hole}: ask for {fixed} at least")
            if name in installed and Version(installed[name]) < Version(fixed):
                found.append(
                    f"{name} {installed[name]} is installed and has {hole}: install {fixed} at least"
                )
    return found


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    holes: Holes = tomllib.loads((ROOT / "scripts" / "advisories.toml").read_text("utf-8"))
    installed = dict[str, str]()
    for name in holes:
        try:
            installed[canonicalize_name(name)] = version(name)
        except PackageNotFoundError:
            continue
    found = problems(requirements(project), installed, holes)
    print(
        "\n".join(found)
        or f"{sum(map(len, holes.values()))} known holes in {len(holes)} packages are excluded"
    )
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
