"""The site: every page is in its navigation, it builds without a warning, and it works from the disk alone."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.browsing import MARKS, WatchedPage, browser

__all__ = ["browser"]
ROOT = Path(__file__).resolve().parents[1]
SETTINGS = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))


def in_navigation(part: Any) -> list[str]:
    if isinstance(part, str):
        return [part]
    return [
        page for each in (part.values() if isinstance(part, dict) else part) for page in in_navigation(each)
    ]


def test_every_page_is_in_the_navigation_once() -> None:
    listed = [page for page in in_navigation(SETTINGS["nav"]) if not page.startswith("project/")]
    docs = ROOT / "docs"
    there = [path.relative_to(docs).as_posix() for path in docs.rglob("*.md")]
    assert sorted(listed) == sorted(there), "add the page to `nav` in mkdocs.yml, under tutorial, how-to ..."


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return out


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    loads = re.compile(r'<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="?(?:https?:)?//[^">]*')
    for page in sorted(site.rglob("*.html")):
        assert loads.findall(page.read_text("utf-8")) == [], page
    for sheet in sorted(site.rglob("*.css")):
        assert not re.search(r"url\([\"']?(?:https?:)?//", sheet.read_text("utf-8")), sheet


@pytest.mark.slow
def test_links_of_the_repository_become_links_of_the_site(site: Path) -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    assert doctest.testmod(importlib.import_module("site_pages")).attempted == 2
    assert 'href="project/readme.html#install"' in (site / "guide.html").read_text("utf-8")
    readme = (site / "project" / "readme.html").read_text("utf-8")
    assert 'href="../classes.html"' in readme
    assert 'src="../report.png"' in readme


class TestInABrowser:
    pytestmark = MARKS

    def test_search_works_from_the_disk(self, browser: Any, site: Path) -> None:
        watched = WatchedPage(browser)
        page = watched.page
        page.goto((site / "index.html").as_uri())
        page.locator("input.md-search__input").click()
        page.keyboard.type("quarantine", delay=20)
        found = page.locator(".md-search-result__item")
        found.first.wait_for(timeout=10_000)
        assert "uarantine" in found.first.inner_text()
        assert all(url.startswith(("file:", "data:", "blob:")) for url in watched.requests)
        watched.context.close()

    # 12 s of CPU each, so `make test` looks at one width
    @pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.package)])
    def test_no_page_is_wider_than_the_window(self, browser: Any, site: Path, width: int) -> None:
        watched = WatchedPage(browser, viewport={"width": width, "height": 800})
        wide = []
        for file in sorted(set(site.rglob("*.html")) - {site / "404.html"}):  # which is for servers
            watched.page.goto(file.as_uri())
            if watched.page.evaluate("document.documentElement.scrollWidth") > width:
                wide.append(file.name)
        assert wide == []
        assert watched.complaints == []
        watched.context.close()
