"""NUS-WIDE (Web) as it is published: train on what users tagged, test on what people verified.

    ImageList/{Train,Test}Imagelist.txt                  actor\\0001_2124494179.jpg, in Flickr/
    ConceptsList/Concepts81.txt                          one concept per line
    NUS_WID_Tags/{Train,Test}_Tags81.txt                 81 columns of 0 and 1, a row per image
    NUS_WID_Tags/All_Tags.txt                            photo id, then the user's tags
    Groundtruth/TrainTestLabels/Labels_<concept>_Test.txt    0 or 1, a line per image
    Groundtruth/AllLabels/Labels_<concept>.txt           the same for ImageList/Imagelist.txt

Training images have their web labels alone: one without any of the 81 tags is quarantined as
``no-concept-tag``. Test images have their verified labels alone: one without any is quarantined as
``no-verified-label``; its tags decide nothing. Memory: tags and labels of the lists, some 0.1 GB.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capro.config import DataSettings
from capro.data.manifest import Row, Source
from capro.data.readers.base import ClassHint, Format, Reader
from capro.data.readers.columns import safe_location
from capro.data.readers.text_files import Line, paired_lines, read_lines
from capro.errors import DataError

IMAGE_FOLDERS = ("Flickr", "images", "Images")
HINT = "unpack {} of NUS-WIDE into the folder"

# The sense that the concept's pictures show. The first sense of WordNet is another one for these:
# coral is a colour there, a tiger a fierce person, a whale a giant, plants are factories.
OTHER_SENSES = (
    "book=book.n.02 castle=castle.n.02 clouds=cloud.n.02 coral=coral.n.04 fire=fire.n.03 "
    "flowers=flower.n.01 food=food.n.02 plants=plant.n.02 protest=protest.n.02 "
    "railroad=railroad_track.n.01 reflection=reflection.n.05 running=run.n.07 sign=sign.n.02 "
    "snow=snow.n.02 sunset=sunset.n.02 swimmers=swimmer.n.02 tattoo=tattoo.n.02 tiger=tiger.n.02 "
    "water=body_of_water.n.01 whales=whale.n.02"
).split()
FIRST = (
    "airport animal beach bear birds boats bridge buildings cars cat cityscape computer cow dancing "
    "dog earthquake elk fish flags fox frost garden glacier grass harbor horses house lake leaf map "
    "military moon mountain nighttime ocean person plane police rainbow road rocks sand sky soccer "
    "sports statue street sun surf temple tower town toy train tree valley vehicle waterfall wedding "
    "window zebra"
).split()
SENSES = {name: name for name in FIRST} | dict(entry.split("=") for entry in OTHER_SENSES)


class NusWideReader(Reader):
    """Reads one split, ``Train`` or ``Test``."""

    def __init__(self, root: Path, part: str) -> None:
        self.root, self.part, self.split = root, part, part.lower()
        images = next((name for name in IMAGE_FOLDERS if (root / name).is_dir()), IMAGE_FOLDERS[0])
        self.source = Source("files", str((root / images).resolve()))
        self._list = root / "ImageList" / f"{part}Imagelist.txt"
        self._tags81 = root / "NUS_WID_Tags" / f"{part}_Tags81.txt"

    @cached_property
    def concepts(self) -> list[str]:
        """Names of the 81 concepts, in the order of every column."""
        path = self.root / "ConceptsList" / "Concepts81.txt"
        names: list[str] = []
        for line in read_lines(path, hint=HINT.format("ConceptsList.zip")):
            if line.text in names:
                line.fail(f"{line.text!r} is there twice", "use the list as it was published")
            names.append(line.text)
        if not names:
            raise DataError(f"{path}: empty", hint=HINT.format("ConceptsList.zip"))
        return names

    def classes(self) -> list[ClassHint]:
        """The concepts, with the senses that their pictures show where they are the published ones."""
        return [ClassHint(name, sense=SENSES.get(name)) for name in self.concepts]

    def count(self) -> int:
        """Images of the list."""
        return sum(1 for _ in self._images())

    def listing(self) -> list[Path]:
        """The published lists."""
        folders = ["ImageList", "ConceptsList", "NUS_WID_Tags", *(["Groundtruth"] * (self.part == "Test"))]
        return [path for folder in folders for path in sorted((self.root / folder).rglob("*.txt"))]

    def rows(self) -> Iterator[Row]:
        """Every image in the order of the list; those without a label of their split with that problem."""
        tags = self._tags()
        truth = self._truth() if self.part == "Test" else None
        lacking, what = (
            ("no-concept-tag", "any_of_the_tags")
            if truth is None
            else ("no-verified-label", "a_verified_label")
        )
        counts = self.notes.counts
        both = paired_lines(self._list, self._tags81, hint=HINT.format("ImageList.zip and NUS_WID_Tags.zip"))
        for number, (line, row) in enumerate(both):
            location = safe_location(line.text, f"{line.path.name}:{line.number}: {line.text}")
            web = self._web(row)
            photo = line.text.rpartition("_")[2].partition(".")[0]
            text = tags.get(photo, "")
            words = set(text.lower().split())
            labels = web
            if truth is not None:
                labels = tuple(self.concepts[c] for c in np.flatnonzero(truth[:, number]))
            unlabelled = bool(location["path"]) and not labels
            if unlabelled:
                location["problem"] = lacking
            counts[f"{self.split}_images_without_{what}"] += unlabelled
            counts[f"{self.split}_images_not_in_All_Tags"] += photo not in tags
            counts[f"{self.split}_web_labels"] += len(web)
            among = sum(name.lower() in words for name in web)
            counts[f"{self.split}_web_labels_among_the_tags"] += among  # few: columns in another order
            identity = f"{self.split}/{location['path'] or line.number}"
            yield Row(identity, split=self.split, tags=text, labels=labels, multi_label=True, **location)

    def _images(self) -> Iterator[Line]:
        return read_lines(self._list, hint=HINT.format("ImageList.zip"))

    def _web(self, line: Line) -> tuple[str, ...]:
        """The concepts among an image's tags, from its row of 0 and 1."""
        cells = line.text.split()
        if len(cells) != len(self.concepts) or not set(cells) <= {"0", "1"}:
            what = next((cell for cell in cells if cell not in ("0", "1")), f"{len(cells)} columns")
            line.fail(
                f"got {what[:80]!r} in a row of {len(self.concepts)} zeros and ones",
                "use the file as it was published",
            )
        return tuple(name for name, cell in zip(self.concepts, cells, strict=True) if cell == "1")

    def _tags(self) -> dict[str, str]:
        """The user's tags by photo id."""
        path = self.root / "NUS_WID_Tags" / "All_Tags.txt"
        tags = {}
        for line in read_lines(path, hint=HINT.format("NUS_WID_Tags.zip")):
            photo, *words = line.text.split()
            if not photo.isdigit():
                line.fail(f"{photo[:80]!r} is not a photo id", "use the file as it was published")
            tags[photo] = " ".join(words)
        return tags

    def _truth(self) -> NDArray[np.bool_]:
        """Verified labels, (concepts, images of the list)."""
        folder = self.root / "Groundtruth" / "TrainTestLabels"
        number = self.count()
        if folder.is_dir():
            named = [folder / f"Labels_{name}_{self.part}.txt" for name in self.concepts]
            return np.stack([_column(path, number) for path in named])
        whole = self.root / "ImageList" / "Imagelist.txt"
        every = enumerate(read_lines(whole, hint=HINT.format("ImageList.zip")))
        everyone = {line.text: number for number, line in every}
        rows = []
        for line in self._images():
            if line.text not in everyone:
                line.fail("not in Imagelist.txt", "download both lists again")
            rows.append(everyone[line.text])
        named = [self.root / "Groundtruth" / "AllLabels" / f"Labels_{name}.txt" for name in self.concepts]
        return np.stack([_column(path, len(everyone))[rows] for path in named])


def _column(path: Path, number: int) -> NDArray[np.bool_]:
    """A file with 0 or 1 per line, (number,)."""
    labels: list[int] = []
    again = "download labels and image lists again"
    for line in read_lines(path, hint=HINT.format("Groundtruth.zip")):
        if len(labels) == number:
            line.fail(f"label {number + 1} of {number} images", again)
        labels.append(line.integer(line.text, 0, 1, "label"))
    if len(labels) < number:
        raise DataError(f"{path}: {len(labels)} labels for {number} images", hint=again)
    return np.array(labels, np.bool_)


def _readers(root: Path, _: DataSettings, split: str | None) -> list[NusWideReader]:
    names = {"train": ["Train"], "test": ["Test"], "val": ["Test"]}.get(split or "")
    return [NusWideReader(root, name) for name in names or ["Train", "Test"]]


FORMAT = Format(
    layout="docs/datasets.md shows the files that must be there",
    recognises=lambda path, _: (
        (path / "ImageList" / "TrainImagelist.txt").is_file()
        and (path / "ConceptsList" / "Concepts81.txt").is_file()
    ),
    readers=_readers,
    own_splits=True,
)
