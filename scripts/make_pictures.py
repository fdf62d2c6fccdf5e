"""Makes the pictures of docs/ from a finished demo: `python scripts/make_pictures.py runs/demo`.

The anchors and parts of the report go to docs/pictures, the report's summary to docs/report.png, the review to
docs/review.png.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from capro.pipeline.run import Run
from capro.review.serving import Review

DOCS = Path(__file__).resolve().parents[1] / "docs"
ROWS = (0, 9, 12, 15, 16)  # of the contact sheet: bat, drumstick, mouse, tiger, tiger cat
HEIGHT = 68  # of a row, in pixels


def main() -> None:
    """Cut the contact sheet, and take parts of the report with Debian's chromium."""
    run = Path(sys.argv[1]).resolve()
    (DOCS / "pictures").mkdir(exist_ok=True)
    sheet = Image.open(run / "match" / "anchors.png").convert("RGB")
    cut = Image.new("RGB", (sheet.width, HEIGHT * len(ROWS)))
    for at, row in enumerate(ROWS):
        cut.paste(sheet.crop((0, row * HEIGHT, sheet.width, (row + 1) * HEIGHT)), (0, at * HEIGHT))
    save(cut, "pictures/anchors")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 900, "height": 1000})
        page.goto((run / "report" / "report.html").as_uri())
        page.evaluate("document.querySelectorAll('body > header, body > nav').forEach(bar => bar.remove())")
        part(page, "noise", 640)
        part(page, "results", 640)
        part(page, "dropped", 980)
        page.locator("#galleries").get_by_text("relabelled to another class").first.click()
        part(page, "galleries", 700)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto((run / "report" / "report.html").as_uri())
        whole_page(page, "report")
        review(browser, run)
        browser.close()


def review(browser: Browser, run: Path) -> None:
    """The questions after three decisions, in a copy of the run."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(run, Path(folder) / "demo"))
        app = Review(Run.open(copy)).start()
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.goto(app.link)
        page.wait_for_selector("html[data-ready] #grid .tile")
        for key, count in zip("dda", (1, 2, 3), strict=True):
            page.keyboard.press(key)
            page.locator("#decided", has_text=str(count)).wait_for()
        whole_page(page, "review")
        app.stop()


def whole_page(page: Page, name: str) -> None:
    """What the window shows."""
    page.wait_for_timeout(1500)
    save(Image.open(io.BytesIO(page.screenshot())).convert("RGB"), name)


def part(page: Page, name: str, height: int) -> None:
    """A section of the report, cut at a height."""
    section = page.locator(f"#{name}")
    section.scroll_into_view_if_needed()
    page.wait_for_timeout(1500)  # thumbnails are decoded when they are first seen
    picture = Image.open(io.BytesIO(section.screenshot())).convert("RGB")
    save(picture.crop((0, 0, picture.width, min(height, picture.height))), f"pictures/{name}")


def save(picture: Image.Image, name: str) -> None:
    """With 255 colours, which is small and looks the same here."""
    picture.quantize(255).save(DOCS / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
