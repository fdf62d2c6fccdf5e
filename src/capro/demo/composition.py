"""The demo data: a tiny noisy web of emoji, composed on the spot and written as an image folder.

A query word has several meanings: `mouse` brings animals and computer mice. Every class has one
intended sense (WordNet 3.0) and most have another one whose pictures the web mixes in. Some of
those belong to a neighbouring class (`tiger cat` brings tigers, and *tiger* is a class as well), so
wrong labels cost accuracy, and texts can mend them. Others belong nowhere: a search for `dog` brings
hot dogs, and every search brings banners and screenshots. The truth is known, for measuring only.

Costs about 2 ms per picture: five to ten seconds for the default 3,000.
"""

from __future__ import annotations

import csv
import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from capro.demo.emoji import page, scene
from capro.demo.junk import JUNK, junk_page, junk_picture
from capro.errors import ConfigError, DataError
from capro.pipeline import files
from capro.pipeline.files import writing

STAMP = ".capro-demo.json"
DEMO_VERSION = 2  # raise it whenever the bytes change: an older folder is then made anew


class DemoClass(NamedTuple):
    """A query word, the sense that is meant, and what the web shows for it."""

    name: str
    sense: str  # WordNet 3.0 offset of the intended sense
    shows: tuple[str, ...]  # emoji of the intended sense
    other: tuple[str, ...]  # emoji of the other sense
    other_share: float  # of its training images, those that show the other sense
    size: float = 1.0  # relative number of training images
    compound: str = ""  # what pages of the other sense say in place of the query word


DEMO_CLASSES = (
    DemoClass("mouse", "n02330245", ("1f401", "1f42d"), ("1f5b1-fe0f",), 0.36),
    DemoClass("bat", "n02139199", ("1f987",), ("1f3cf", "1f3d3"), 0.12),
    DemoClass("cricket", "n02229544", ("1f997",), ("1f3cf",), 0.14),
    DemoClass("drumstick", "n07647870", ("1f357",), ("1f941",), 0.42, 1.2),  # a drum
    DemoClass("drum", "n03249569", ("1f941", "1fa98"), ("1f6e2-fe0f",), 0.16, 0.7),  # oil drum
    DemoClass("chicken", "n01791625", ("1f414", "1f413"), ("1f357",), 0.34, 1.2),  # its leg
    DemoClass("tiger cat", "n02123159", ("1f408", "1f431"), ("1f405", "1f42f"), 0.46, 1.3),
    DemoClass("tiger", "n02129604", ("1f405", "1f42f"), (), 0.0, 0.7),
    DemoClass("bow", "n02879718", ("1f3f9",), ("1f380",), 0.08),  # of ribbons
    DemoClass("nut", "n13136556", ("1f95c", "1f330"), ("1f529",), 0.08),  # and bolt
    DemoClass("palm", "n12582231", ("1f334",), ("270b", "1faf4"), 0.08),  # of the hand
    DemoClass("glasses", "n04272054", ("1f453", "1f576-fe0f"), ("1f942", "1f377"), 0.08),  # of wine
    DemoClass("ear", "n05320899", ("1f442",), ("1f33d",), 0.46, 1.3),  # of corn
    DemoClass("corn", "n07731952", ("1f33d",), ("1f37f",), 0.10, 0.7),  # popped
    # compounds of the word, which no class wants
    DemoClass("dog", "n02084071", ("1f415", "1f436"), ("1f32d",), 0.25, compound="hot dog"),
    DemoClass("bus", "n02924116", ("1f68c", "1f68d"), ("1f68f",), 0.20, compound="bus stop"),
    DemoClass("bear", "n02131653", ("1f43b",), ("1f9f8",), 0.30, compound="teddy bear"),
)
# Pizza, bicycle, house, car, balloon, apple, cactus, turtle, elephant, camera, rocket, guitar.
# They are in no class: out of distribution, and small beside every other picture.
STRANGERS = (
    *("1f355", "1f6b2", "1f3e0", "1f697", "1f388", "1f34e"),
    *("1f335", "1f422", "1f418", "1f4f7", "1f680", "1f3b8"),
)
# Of every class: pictures of another class, of no class, and of nothing.
NOISE_SHARES = {"flip": 0.075, "ood": 0.075, **dict.fromkeys(JUNK, 0.015)}
EMPTY_TEXT = 0.15  # pages without any text
OTHER_PAGE = 0.10  # pages whose text belongs to something else
MENTIONED = 0.8  # multi-label: how often a second object in the picture is named as well


class Shot(NamedTuple):
    """One picture to be made: its web labels, and what it shows."""

    web: tuple[str, ...]  # labels, the query word first
    truth: tuple[str, ...]
    kind: str  # clean, sense, flip, ood, banner, screenshot; multi-label also missing
    codes: tuple[str, ...]  # emoji in the picture; none of a banner or a screenshot
    named: tuple[str, ...]  # those of them that the page's text is about


def codes() -> list[str]:
    """Every emoji that the demo draws, once, in a fixed order.

    >>> len(codes())
    52
    """
    shown = [code for c in DEMO_CLASSES for code in (*c.shows, *c.other)]
    return list(dict.fromkeys([*shown, *STRANGERS]))


def write_demo(
    folder: Path, *, seed: int = 0, multi_label: bool = False, n_train: int = 2400, n_test: int = 600
) -> None:
    """Write the demo data as a Hugging Face image folder; the same arguments give the same bytes.

    The folder appears whole or not at all, and one that is there already with these arguments is
    left alone:

        train/LABEL/00001.png, train/metadata.jsonl     (multi-label: train/images/00001.png)
        test/...                                        the same, clean
        classes.yaml                                    name, sense, ambiguous
        train_truth.csv                                 file_name, true_labels (by |), kind

    Raises:
        ConfigError: fewer images than classes.
        DataError: the folder exists and is not a demo of ours.
    """
    sizes = {"n_train": n_train, "n_test": n_test}
    for name, number in sizes.items():
        if number < len(DEMO_CLASSES):
            raise ConfigError(
                f"{name}={number}: the demo has {len(DEMO_CLASSES)} classes",
                hint=f"ask for at least {len(DEMO_CLASSES)} images",
            )
    wanted = {"version": DEMO_VERSION, "seed": seed, "multi_label": multi_label, **sizes}
    if is_complete(folder, wanted):
        return
    with writing(folder):
        _compose(folder, wanted)


def _compose(folder: Path, wanted: dict[str, Any]) -> None:
    """The whole folder, in the place of an older one."""
    files.make_folder(folder.parent)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        tree = Path(scratch) / "new"  # its own folder: a temporary one is closed to other users
        seed, multi_label = wanted["seed"], wanted["multi_label"]
        for split, number in (("train", wanted["n_train"]), ("test", wanted["n_test"])):
            rng = np.random.default_rng([seed, split == "test"])
            shots = plan(rng, number, noisy=split == "train", multi_label=multi_label)
            write_split(tree / split, shots, seed=[seed, split == "test"], multi_label=multi_label)
            if split == "train":
                write_truth(tree / "train_truth.csv", shots, multi_label=multi_label)
        write_classes(tree / "classes.yaml")
        (tree / STAMP).write_text(json.dumps(wanted), encoding="utf-8")
        if folder.exists():
            os.replace(folder, Path(scratch) / "old")  # goes with the scratch folder
        files.sync_tree(tree)
        files.rename(tree, folder)


def is_complete(folder: Path, wanted: dict[str, Any]) -> bool:
    """Whether the demo is there with these arguments; raises where it must not be replaced."""
    found = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    if not found and not folder.is_file():
        return False
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        stamp = None
    if stamp == wanted and len([*folder.glob("*/*/*.png")]) == wanted["n_train"] + wanted["n_test"]:
        return True
    strange = sorted(found - {"train", "test", "classes.yaml", "train_truth.csv", STAMP})
    if stamp is None or strange:
        raise DataError(
            f"{folder}: exists and holds {strange[0] if strange else 'other data'}",
            hint="name another folder, or remove this one",
        )
    return False


def plan(rng: np.random.Generator, number: int, *, noisy: bool, multi_label: bool) -> list[Shot]:
    """Decide what each picture shows and what the web calls it, in random order.

    The counts of classes and kinds are exact, not drawn: small demos have the same noise.
    """
    shots = []
    sizes = apportion(number, [c.size if noisy else 1 for c in DEMO_CLASSES])
    for c, size in zip(DEMO_CLASSES, sizes, strict=True):
        noise = {"sense": c.other_share, **NOISE_SHARES} if noisy else {}
        counts = apportion(size, [1 - sum(noise.values()), *noise.values()])
        for kind, count in zip(("clean", *noise), counts, strict=True):
            shots += [single_shot(rng, c, kind) for _ in range(count)]
    if multi_label:
        shots = [with_company(rng, shot, mentioned=MENTIONED if noisy else 1.0) for shot in shots]
    return [shots[i] for i in rng.permutation(number)]


def apportion(number: int, weights: list[float]) -> list[int]:
    """Split a number in proportion to weights, the largest remainders rounded up.

    >>> apportion(10, [0.5, 0.25, 0.25])
    [5, 3, 2]
    """
    exact = number * np.asarray(weights) / np.sum(weights)
    counts = np.floor(exact).astype(int)
    up = np.argsort(counts - exact, kind="stable")[: number - counts.sum()]
    counts[up] += 1
    return [int(count) for count in counts]


def single_shot(rng: np.random.Generator, c: DemoClass, kind: str) -> Shot:
    """A picture that a search for one class brings."""
    if kind in JUNK:
        return Shot((c.name,), (), kind, (), ())
    if kind == "flip":
        unlike = [k for k in DEMO_CLASSES if not {*k.shows} & {*c.shows, *c.other}]
        choices = unlike[rng.integers(len(unlike))].shows
    else:
        choices = {"clean": c.shows, "sense": c.other, "ood": STRANGERS}[kind]
    code = choices[rng.integers(len(choices))]
    truth = tuple(k.name for k in DEMO_CLASSES if code in k.shows)
    return Shot((c.name,), truth, kind, (code,), (code,))


def with_company(rng: np.random.Generator, shot: Shot, *, mentioned: float) -> Shot:
    """Multi-label: put up to two objects of other classes beside the first.

    Their words are labels when the page mentions them, with probability `mentioned`.
    """
    if shot.kind in ("ood", *JUNK):
        return shot
    absent = [c for c in DEMO_CLASSES if c.name not in {*shot.web, *shot.truth}]
    web, truth, codes, named = (list(field) for field in (shot.web, shot.truth, *shot[3:]))
    for i in rng.choice(len(absent), size=rng.integers(3), replace=False):
        code = absent[i].shows[rng.integers(len(absent[i].shows))]
        truth.append(absent[i].name)
        codes.append(code)
        if rng.random() < mentioned:
            web.append(absent[i].name)
            named.append(code)
    kind = "missing" if shot.kind == "clean" and len(web) < len(truth) else shot.kind
    return Shot(tuple(web), tuple(truth), kind, tuple(codes), tuple(named))


def file_name(number: int, shot: Shot, *, multi_label: bool) -> str:
    """Where a picture lies below its split's folder."""
    return f"{'images' if multi_label else shot.web[0]}/{number:05d}.png"


def write_split(folder: Path, shots: list[Shot], *, seed: list[int], multi_label: bool) -> None:
    """Compose and save the pictures, and metadata.jsonl with their texts and labels."""
    for name in {file_name(0, shot, multi_label=multi_label) for shot in shots}:
        (folder / name).parent.mkdir(parents=True)
    with open(folder / "metadata.jsonl", "w", encoding="utf-8", newline="\n") as metadata:
        for number, shot in enumerate(shots, start=1):
            rng = np.random.default_rng([*seed, number])  # a picture does not depend on the others
            name = file_name(number, shot, multi_label=multi_label)
            distractors = [STRANGERS[i] for i in rng.integers(len(STRANGERS), size=rng.integers(3))]
            if shot.kind in JUNK:
                image = junk_picture(rng, shot.kind, shot.web[0])
            else:
                image = scene(rng, list(shot.codes), distractors)
            image.save(folder / name, compress_level=3)
            labels = {"labels": shot.web} if multi_label else {"label": shot.web[0]}
            row = {"file_name": name, **page_text(rng, shot), **labels}
            metadata.write(json.dumps(row, ensure_ascii=False) + "\n")


def page_text(rng: np.random.Generator, shot: Shot) -> dict[str, Any]:
    """Title, description and tags: of this page, of another one, or none."""
    draw = rng.random()
    if draw < EMPTY_TEXT:
        return {"title": "", "description": "", "tags": []}
    if draw < EMPTY_TEXT + OTHER_PAGE:
        others = [c for c in DEMO_CLASSES if c.name not in {*shot.web, *shot.truth}]
        c = others[rng.integers(len(others))]
        choices = c.shows + c.other
        return page(rng, [c.name], [choices[rng.integers(len(choices))]])
    if shot.kind in JUNK:
        return junk_page(rng, shot.kind, shot.web[0])
    compounds = {c.name: c.compound for c in DEMO_CLASSES if c.compound and shot.kind == "sense"}
    words = [compounds.get(shot.web[0], shot.web[0]), *shot.web[1:]]
    return page(rng, words, list(shot.named))


def write_truth(path: Path, shots: list[Shot], *, multi_label: bool) -> None:
    """The ground truth of the training pictures."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["file_name", "true_labels", "kind"])
        for number, shot in enumerate(shots, start=1):
            name = file_name(number, shot, multi_label=multi_label)
            writer.writerow([name, "|".join(shot.truth), shot.kind])


def write_classes(path: Path) -> None:
    """classes.yaml of the demo."""
    entries = [(c.name, c.sense, str(bool(c.other)).lower()) for c in DEMO_CLASSES]
    rows = [f"- {{name: {name}, sense: {sense}, ambiguous: {other}}}\n" for name, sense, other in entries]
    path.write_text("".join(rows), encoding="utf-8")
