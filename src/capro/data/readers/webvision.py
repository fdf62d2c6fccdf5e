"""WebVision 1.0 as it is published: lists in ``info/``, images by query, texts as JSON.

    info/synsets.txt                  n01440764 tench, Tinca tinca      line = class
    info/queries_{google,flickr}.txt  1 tench                           query id, words
    info/queries_synsets_map.txt      1 1                               query id, class from 1
    info/train_filelist_google.txt    google/q0001/ab12.jpg 0           image, class from 0
    info/train_meta_list_google.txt   google/q0001.json 1               texts, entry from 1
    info/val_filelist.txt             val000001.jpg 0                   in val_images_256/

The authors' validation images are the test split: nothing is chosen by them. Lists are read as
streams, and one JSON at a time: memory does not grow with the number of images.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from capro.config import DataSettings
from capro.data.manifest import Row, Source
from capro.data.readers.base import ClassHint, Format, Reader, guarded
from capro.data.readers.columns import Columns, safe_location, safe_relative
from capro.data.readers.text_files import Line, paired_lines, read_lines
from capro.errors import DataError, did_you_mean
from capro.files import read_regular

MINI = 50  # classes of mini-WebVision: the first ones, Google's images only
VALIDATION = "val_images_256"
INFO = "unpack info.tar of WebVision 1.0 into the folder"
META_FOLDERS = ("", "metadata", "meta")  # where people unpack the archive with the texts
TEXT_FIELDS = Columns(text="title", description="description", tags="tags")
_QUERY = re.compile(r"/q(\d+)/")
_WNID = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Info:
    """The classes by the lists in ``info/``, and which of them are wanted."""

    root: Path
    subset: str = "all"
    class_list: Path | None = None

    @cached_property
    def synsets(self) -> list[tuple[str, str]]:
        """WordNet id and name of each class; a name that two classes share gets its id behind it."""
        names: dict[str, str] = {}
        for line in read_lines(self.root / "info" / "synsets.txt", hint=INFO):
            wnid, _, words = line.text.partition(" ")
            if not _WNID.fullmatch(wnid):
                line.fail(f"{wnid[:80]!r} is not a WordNet id", "each line is 'n01440764 tench, ...'")
            if wnid in names:
                line.fail(f"{wnid} is there twice", "use the list as it was published")
            names[wnid] = words.split(",")[0].strip() or wnid
        if not names:
            raise DataError(f"{self.root / 'info' / 'synsets.txt'}: empty", hint=INFO)
        counts = Counter(names.values())
        return [(wnid, name if counts[name] == 1 else f"{name} ({wnid})") for wnid, name in names.items()]

    @property
    def engines(self) -> list[str]:
        """Where images were searched: the training lists that are read."""
        return ["google", "flickr"] if self.subset == "all" else ["google"]

    @cached_property
    def class_of_query(self) -> dict[int, int]:
        """Class, from 0, of each query id; the file counts classes from 1."""
        classes = {}
        for line in read_lines(self.root / "info" / "queries_synsets_map.txt", hint=INFO):
            cells = line.text.split()
            if len(cells) != 2:
                line.fail(f"{len(cells)} columns", "each line is a query id and a synset id")
            query = line.integer(cells[0], 1, 10**9, "query id")
            classes[query] = line.integer(cells[1], 1, len(self.synsets), "synset id") - 1
        return classes

    @cached_property
    def wanted(self) -> list[int]:
        """The classes of the subset, ascending."""
        if self.class_list is None:
            return list(range(len(self.synsets)))[: MINI if self.subset == "mini" else None]
        known: dict[str, int] = {}
        for number, (wnid, name) in enumerate(self.synsets):
            known |= {str(number): number, wnid: number, name: number}
        chosen = set()
        hint = "give the file of data.class_list: one WordNet id, class name or label per line"
        for line in read_lines(self.class_list, hint=hint):
            text = line.text.partition("#")[0].strip()
            if text:
                index = known.get(text, known.get(named_in(text)))
                if index is None:
                    line.fail(f"no class {text[:80]!r} in synsets.txt", did_you_mean(text, known))
                chosen.add(index)
        if not chosen:
            raise DataError(f"{self.class_list}: names no class", hint=hint)
        return sorted(chosen)

    def classes(self) -> list[ClassHint]:
        """The classes of the subset with their senses and what was searched for."""
        queries: dict[int, dict[str, None]] = {number: {} for number in range(len(self.synsets))}
        for engine in self.engines:
            for line in read_lines(self.root / "info" / f"queries_{engine}.txt", hint=_hint(engine)):
                query, _, text = line.text.partition(" ")
                number = line.integer(query.removeprefix("q"), 1, 10**9, "query id")
                if number in self.class_of_query and text:
                    queries[self.class_of_query[number]][text.strip()] = None
        chosen = [(*self.synsets[number], "; ".join(queries[number])) for number in self.wanted]
        return [ClassHint(name, sense=wnid, query=query or None) for wnid, name, query in chosen]


def named_in(text: str) -> str:
    """What a line of a class list names: a WordNet id anywhere in it, else its first word.

    The authors' files have the id first (ambiguous_classes.txt) or behind their own number (mapping_google_500.txt).

    >>> named_in("0 n04277352"), named_in("17 tench")
    ('n04277352', '17')
    """
    words = text.split()
    return next((word for word in words if _WNID.fullmatch(word)), words[0])


def _hint(part: str) -> str:
    alone = "; with Google's images alone, use --set data.subset=google"
    return INFO + (alone if part == "flickr" else "")


class WebVisionReader(Reader):
    """Reads one list of images: ``google``, ``flickr`` or ``val``."""

    def __init__(self, info: Info, part: str) -> None:
        self.info, self.part = info, part
        self.split = "test" if part == "val" else "train"
        self.source = Source("files", str(info.root.resolve()))
        name = "val_filelist.txt" if part == "val" else f"train_filelist_{part}.txt"
        self._list = info.root / "info" / name
        self._meta = info.root / "info" / f"train_meta_list_{part}.txt"

    def classes(self) -> list[ClassHint]:
        """The classes of the subset, whether or not they have images."""
        return self.info.classes()

    def count(self) -> int:
        """Images of the subset. Reads the lists once and refuses a bad line before any decoding."""
        return self._checked

    @cached_property
    def _checked(self) -> int:
        self.info.classes()
        other = differ = total = 0
        wanted = set(self.info.wanted)
        first: Line | None = None
        for line, name, label, _ in self._entries():
            total += 1
            other += label not in wanted
            query = _QUERY.search(f"/{name}")
            mapped = self.info.class_of_query.get(int(query[1])) if query else None
            if self.part != "val" and mapped is not None and mapped != label:
                first, differ = first or line, differ + 1
        if first is not None and 2 * differ > total:
            first.fail(
                f"label unlike the query's class, as in {differ} of {total} lines",
                "labels in this list count from 0, synset ids in queries_synsets_map.txt from 1",
            )
        self.notes.counts[f"{self.part}_images_of_other_classes"] = other
        if differ:
            self.notes.counts[f"{self.part}_labels_unlike_their_query"] = differ
        return total - other

    def listing(self) -> list[Path]:
        """The published lists, and the one of wanted classes."""
        lists = sorted((self.info.root / "info").glob("*.txt"))
        return [*lists, self.info.class_list] if self.info.class_list else lists

    def rows(self) -> Iterator[Row]:
        """Every image of the subset, in the order of the list."""
        self.count()
        wanted = set(self.info.wanted)
        texts = _Texts(self.info.root)
        for line, name, label, meta in self._entries():
            if label not in wanted:
                continue
            entry = texts.entry(meta) if meta else {}
            stem = name.rpartition("/")[2].rpartition(".")[0]
            if entry.get("id") and str(entry["id"]) != stem:
                self.notes.counts[f"{self.part}_texts_with_another_id"] += 1
            path = f"{VALIDATION}/{name}" if self.part == "val" else name
            location = safe_location(path, f"{line.path.name}:{line.number}")
            bare = Row(f"{self.split}/{path}", split=self.split, **location)
            yield guarded(bare, TEXT_FIELDS.row, entry, labels=(self.info.synsets[label][1],))

    def _entries(self) -> Iterator[tuple[Line, str, int, Line | None]]:
        """Line, image, class from 0, and the line of the meta list that belongs to it."""
        hint = _hint(self.part)
        both: Iterator[tuple[Line, Line | None]]
        if self.part == "val":
            both = ((line, None) for line in read_lines(self._list, hint=hint))
        else:
            both = paired_lines(self._list, self._meta, hint=hint)
        high = len(self.info.synsets) - 1
        for line, meta in both:
            name, _, label = line.text.rpartition(" ")
            if not name:
                line.fail("one column", "each line is an image and its label")
            yield line, name.strip(), line.integer(label, 0, high, "label"), meta


class _Texts:
    """Entries of the JSON files, one file in memory at a time: the list goes query by query."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._name = ""
        self._entries: list[Any] = []

    def entry(self, line: Line) -> dict[str, Any]:
        """What a line of the meta list points at; its number counts from 1."""
        name, _, number = line.text.rpartition(" ")
        if name != self._name:
            self._entries, self._name = self._load(name.strip(), line), name
        index = line.integer(number, 1, len(self._entries), f"entry of {name.strip()}")
        entry = self._entries[index - 1]
        if not isinstance(entry, dict):
            line.fail(f"entry {index} of {name.strip()} is not an object", "download the JSON file again")
        return entry

    def _load(self, name: str, line: Line) -> list[Any]:
        safe = safe_relative(name)
        if safe is None:
            line.fail(f"{name[:80]!r} leaves the folder", "use the list as it was published")
        candidates = [self._root / folder / safe for folder in META_FOLDERS]
        engine, _, rest = safe.partition("/")
        candidates.append(self._root / f"{engine}_json" / rest)
        file = next((path for path in candidates if path.is_file()), None)
        if file is None:
            line.fail(f"{safe} is not there", f"unpack the archive with the texts into {self._root}")
        try:
            entries = json.loads(read_regular(file).decode("utf-8-sig", "replace"))
        except (ValueError, RecursionError, OSError) as error:
            where = getattr(error, "lineno", None)
            shown = f"{file}:{where}" if where else str(file)
            raise DataError(f"{shown}: not valid JSON: {error}", hint="download the file again") from None
        if not isinstance(entries, list):
            raise DataError(f"{file}: holds a {type(entries).__name__}, not a list", hint="download it again")
        return entries


# --- ImageNet -------------------------------------------------------------------------------------


class ImageNetReader(Reader):
    """ILSVRC 2012's validation images with WebVision's classes: a second test set.

    In folders named by WordNet id, or flat beside ``val.txt`` (image, class from 0 in the order of
    sorted WordNet ids).
    """

    def __init__(self, root: Path, info: Info) -> None:
        self.root, self.info = root, info
        self.source = Source("files", str(root.resolve()))

    def count(self) -> int:
        """Images of the wanted classes."""
        return len(self._wanted)

    def rows(self) -> Iterator[Row]:
        """Every image of a wanted class, in path order; other classes are counted."""
        names = dict(self.info.synsets)
        for path, wnid in self._wanted:
            location = safe_location(path, path)
            yield Row(f"test/{self.root.name}/{path}", split="test", labels=(names[wnid],), **location)

    @cached_property
    def _wanted(self) -> list[tuple[str, str]]:
        """Path and WordNet id of the images of wanted classes."""
        wanted = {self.info.synsets[number][0] for number in self.info.wanted}
        images = list(self._by_folder()) or list(self._by_list())
        self.notes.counts["imagenet_images_of_other_classes"] = sum(wnid not in wanted for _, wnid in images)
        return [(path, wnid) for path, wnid in images if wnid in wanted]

    def _by_folder(self) -> Iterator[tuple[str, str]]:
        for path in sorted(self.root.glob("n*/[!.]*")):
            if _WNID.fullmatch(path.parent.name) and path.is_file():
                yield f"{path.parent.name}/{path.name}", path.parent.name

    def _by_list(self) -> Iterator[tuple[str, str]]:
        order = sorted(wnid for wnid, _ in self.info.synsets)
        hint = "put val.txt of Caffe's ilsvrc_aux beside the images, or sort them into class folders"
        for line in read_lines(self.root / "val.txt", hint=hint):
            name, _, label = line.text.rpartition(" ")
            yield name.strip(), order[line.integer(label, 0, len(order) - 1, "label")]


# --- the format -----------------------------------------------------------------------------------


def _is_webvision(root: Path) -> bool:
    info = root / "info"
    return (info / "synsets.txt").is_file() and any(info.glob("train_filelist_*.txt"))


def _is_imagenet(path: Path, settings: DataSettings) -> bool:
    """Whether a path holds ILSVRC 2012's validation images, and the run's own source is WebVision."""
    source = Path(settings.source) if settings.source else path
    if source == path or not path.is_dir() or not _is_webvision(source):
        return False
    folders = (child for child in path.iterdir() if _WNID.fullmatch(child.name))
    return any(path.glob("ILSVRC2012_val_*.JPEG")) or any(folder.is_dir() for folder in folders)


def _readers(path: Path, settings: DataSettings, split: str | None) -> list[Reader]:
    """Google's and Flickr's training images and the validation images, or those of ImageNet."""
    class_list = Path(settings.class_list) if settings.class_list else None
    if not _is_webvision(path):
        return [ImageNetReader(path, Info(Path(settings.source or ""), settings.subset, class_list))]
    info = Info(path, settings.subset, class_list)
    train = [WebVisionReader(info, engine) for engine in info.engines]
    test = [WebVisionReader(info, "val")]
    return [*{"train": train, "test": test, "val": test}.get(split or "", train + test)]


FORMAT = Format(
    layout="docs/datasets.md shows the files that must be there",
    recognises=lambda path, settings: _is_webvision(path) or _is_imagenet(path, settings),
    readers=_readers,
    own_splits=True,
)
