"""Small trees in the layouts that WebVision and NUS-WIDE are published in, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

from tests.data.corpus import jpeg

SYNSETS = [
    "n01440764 tench, Tinca tinca",
    "n01443537 goldfish, Carassius auratus",
    "n02012849 crane",
    "n03126707 crane",
]
NAMES = ["tench", "goldfish", "crane (n02012849)", "crane (n03126707)"]
# query id, words, class from 1: two queries for the last class, as for many classes of WebVision
QUERIES = [
    (1, "tench", 1),
    (2, "goldfish", 2),
    (3, "crane bird", 3),
    (4, "crane", 4),
    (5, "crane machine", 4),
]

CONCEPTS = (
    "airport animal beach bear birds boats book bridge buildings cars castle cat cityscape clouds "
    "computer coral cow dancing dog earthquake elk fire fish flags flowers food fox frost garden "
    "glacier grass harbor horses house lake leaf map military moon mountain nighttime ocean person "
    "plane plants police protest railroad rainbow reflection road rocks running sand sign sky snow "
    "soccer sports statue street sun sunset surf swimmers tattoo temple tiger tower town toy train "
    "tree valley vehicle water waterfall wedding whales window zebra"
).split()


def put(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def webvision(root: Path, *, per_query: int = 2, val: int = 2) -> Path:
    """A tree of WebVision 1.0: per_query images of each query and engine, val of each class."""
    put(root / "info" / "synsets.txt", "".join(f"{line}\n" for line in SYNSETS))
    for engine in ("google", "flickr"):
        put(
            root / "info" / f"queries_{engine}.txt",
            "".join(f"{query} {words}\n" for query, words, _ in QUERIES),
        )
    mapping = "".join(f"{query} {synset}\n" for query, _, synset in QUERIES)
    put(root / "info" / "queries_synsets_map.txt", mapping)
    seed = 0
    for engine in ("google", "flickr"):
        files, metas = [], []
        for query, words, synset in QUERIES:
            entries = []
            for number in range(1, per_query + 1):
                name = f"{engine[0]}{query}x{number}"
                put(root / engine / f"q{query:04d}" / f"{name}.jpg", jpeg(20, 16, seed=seed))
                seed += 1
                files.append(f"{engine}/q{query:04d}/{name}.jpg {synset - 1}\n")
                metas.append(f"{engine}/q{query:04d}.json {number}\n")
                entry = {"id": name, "title": f"{words} {number}", "rank": number}
                if engine == "google":
                    entry |= {"description": f"page of {words}", "site": "x.org"}
                    entry |= {"page_url": "http://x.org/1"}
                else:
                    entry |= {"description": "", "tags": ["photo", words]}
                entries.append(entry)
            put(root / engine / f"q{query:04d}.json", json.dumps(entries))
        put(root / "info" / f"train_filelist_{engine}.txt", "".join(files))
        put(root / "info" / f"train_meta_list_{engine}.txt", "".join(metas))
    listed = []
    for number in range(len(SYNSETS) * val):
        put(root / "val_images_256" / f"val{number + 1:06d}.jpg", jpeg(20, 16, seed=seed + number))
        listed.append(f"val{number + 1:06d}.jpg {number % len(SYNSETS)}\n")
    put(root / "info" / "val_filelist.txt", "".join(listed))
    return root


def nuswide(
    root: Path,
    train: list[tuple[list[str], list[str]]],
    test: list[tuple[list[str], list[str]]],
    *,
    whole: bool = False,
) -> Path:
    """A tree of NUS-WIDE.

    Args:
        root: Where.
        train: Concepts among the tags of each training image, and its verified concepts.
        test: The same of each test image.
        whole: Labels in AllLabels alone, without TrainTestLabels.
    """
    put(root / "ConceptsList" / "Concepts81.txt", "".join(f"{name}\r\n" for name in CONCEPTS))
    everyone, tags, truths = [], [], []
    splits = {"Train": train, "Test": test}
    for part, images in splits.items():
        listed, rows = [], []
        for number, (web, truth) in enumerate(images):
            photo = 1000 + len(everyone)
            name = f"actor\\{number + 1:04d}_{photo}.jpg"
            put(root / "Flickr" / name.replace("\\", "/"), jpeg(20, 16, seed=photo))
            listed.append(f"{name}\r\n")
            everyone.append(f"{name}\r\n")
            rows.append("".join(f"{int(concept in web)} " for concept in CONCEPTS) + "\n")
            tags.append(f"{photo}      {' '.join([*web, 'goldengatebridge'])} \n")
            truths.append(truth)
        put(root / "ImageList" / f"{part}Imagelist.txt", "".join(listed))
        put(root / "NUS_WID_Tags" / f"{part}_Tags81.txt", "".join(rows))
    put(root / "ImageList" / "Imagelist.txt", "".join(reversed(everyone)))
    put(root / "NUS_WID_Tags" / "All_Tags.txt", "".join(tags))
    ground = root / "Groundtruth"
    for concept in CONCEPTS:
        cells = [f"{int(concept in truth)}\r\n" for truth in truths]
        put(ground / "AllLabels" / f"Labels_{concept}.txt", "".join(reversed(cells)))
        if not whole:
            folder = ground / "TrainTestLabels"
            put(folder / f"Labels_{concept}_Train.txt", "".join(cells[: len(train)]))
            put(folder / f"Labels_{concept}_Test.txt", "".join(cells[len(train) :]))
    return root
