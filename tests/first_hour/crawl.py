"""A messy crawl, as people have them: an image folder with a table from Excel.

What is wrong with it, on purpose: the columns have names of their own ("Alt Text", "page title"); paths and labels have
umlauts, blanks and capitals; a class occurs in two writings; the table is cp1252 with semicolons; some files
are broken, some have no row, some rows have no file; some texts are missing; some labels are wrong; there is
no test split.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

# class: colour and kind of shape, and what its pages are about
CLASSES = {
    "Vögel": ((200, 60, 40), "ellipse", "small songbird with feathers and a beak"),
    "boat": ((40, 90, 210), "rectangle", "sailing boat on the water"),
    "Track Pants": ((60, 180, 60), "lines", "sports trousers for running"),
    "drumstick": ((210, 180, 40), "polygon", "fried chicken leg on a plate"),
}
BROKEN = {
    "empty.jpg": b"",
    "not found.jpg": b"<html>404 not found</html>",
    "cut.png": b"\x89PNG\r\n\x1a\n\0\0",
}


@dataclass(frozen=True)
class Crawl:
    """Where it lies, and what it holds.

    Attributes:
        folder: Of the pictures and the table.
        pictures: That can be read.
        capitals: Of these, in the folder of the second writing of a class.
        without_row: Of these, not in the table.
        rows_without_file: Rows of the table whose file is not there.
    """

    folder: Path
    pictures: int
    capitals: int
    without_row: int
    rows_without_file: int


def write_crawl(
    folder: Path,
    *,
    per_class: int = 75,
    columns: tuple[str, str] = ("Alt Text", "page title"),
    encoding: str = "cp1252",
    separator: str = ";",
    seed: int = 0,
) -> Crawl:
    """Write the crawl.

    Args:
        folder: A new folder.
        per_class: Pictures of each class.
        columns: Names of the two columns with texts.
        encoding: Of the table.
        separator: Of the table.
        seed: Of pictures and noise.
    """
    rng, names, rows = np.random.default_rng(seed), list(CLASSES), []
    capitals = without_row = 0
    for c, name in enumerate(names):
        for number in range(per_class):
            shown = names[(c + 1) % len(names)] if number % 5 == 4 else name  # a fifth of the labels is wrong
            capital = name == "boat" and number % 15 == 14
            label = "Boat" if capital else name
            ending = ".JPG" if number % 10 == 3 else ".jpg"
            file = f"{label}/größe {number:03d}{ending}"
            _picture(folder / file, shown, rng)
            capitals += capital
            if number % 25 == 24:  # the crawler lost the page
                without_row += 1
                continue
            missing = number % 6 == 5
            alt = "" if missing else f"{CLASSES[shown][2]}, {shown}"
            title = "" if missing or number % 2 else f"Die schönsten Bilder: {shown}"
            rows.append([file, alt, title, f"https://example.org/{c}/{number}"])
    for name, data in BROKEN.items():
        (folder / "boat" / name).write_bytes(data)
    lost = ["Vögel/gelöscht.jpg", "boat/gone.jpg"]
    rows += [[name, "a picture that was deleted", "", "https://example.org"] for name in lost]
    with (folder / "metadata.csv").open("w", newline="", encoding=encoding) as file_:
        csv.writer(file_, delimiter=separator).writerows([["File Name", *columns, "Quelle"], *rows])
    return Crawl(folder, per_class * len(names), capitals, without_row, len(lost))


def _picture(path: Path, shown: str, rng: np.random.Generator) -> None:
    """A shape of the class on a noisy ground, 48 px."""
    path.parent.mkdir(parents=True, exist_ok=True)
    colour, shape, _ = CLASSES[shown]
    ground = Image.fromarray(rng.integers(60, 200, size=(48, 48, 3), dtype=np.uint8))
    draw = ImageDraw.Draw(ground)
    x, y, size = (int(value) for value in (*rng.integers(2, 12, 2), rng.integers(22, 32)))
    box = [x, y, x + size, y + size]
    if shape == "ellipse":
        draw.ellipse(box, fill=colour)
    elif shape == "rectangle":
        draw.rectangle([x, y + size // 2, x + size, y + size], fill=colour)
    elif shape == "lines":
        for step in (0, size // 2):
            draw.rectangle([x + step, y, x + step + size // 4, y + size], fill=colour)
    else:
        draw.polygon([(x, y + size), (x + size // 2, y), (x + size, y + size)], fill=colour)
    ground.save(path, "JPEG")
