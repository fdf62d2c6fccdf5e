"""WebVision 1.0 and ImageNet's validation images, in the layout that they are published in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capro.config import DataSettings, ScanSettings
from capro.data import readers
from capro.data.manifest import Manifest
from capro.data.readers.webvision import Info, WebVisionReader
from capro.data.scan import scan_sources
from capro.errors import CaproError, ConfigError, DataError
from tests.data.corpus import jpeg, png
from tests.data.published import NAMES, SYNSETS, put, webvision


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return webvision(tmp_path / "wv")


def scanned(root: Path, out: Path, **data: object) -> tuple[Manifest, dict[str, object]]:
    settings = DataSettings(source=str(root), **data)
    found = readers.find(settings, source=str(root))
    if settings.test:
        found += readers.find(settings, source=settings.test, split="test")
    summary = scan_sources(found, out, ScanSettings(workers=1))
    manifest = Manifest.load(out / "manifest.parquet")
    assert summary["samples"] + summary["quarantined"] == len(manifest.frame)
    return manifest, summary


def test_a_tree_is_recognised_and_read_whole(root: Path, tmp_path: Path) -> None:
    manifest, summary = scanned(root, tmp_path / "out")
    assert summary["splits"] == {"train": 20, "test": 8}
    assert summary["quarantined"] == 0
    samples = manifest.samples
    assert sorted({labels[0] for labels in samples["labels"]}) == sorted(NAMES)
    assert samples["id"][0] == "train/google/q0001/g1x1.jpg"
    assert samples["path"].tolist()[-1] == "val_images_256/val000008.jpg"


def test_labels_count_from_0_and_entries_of_texts_from_1(root: Path, tmp_path: Path) -> None:
    manifest, _ = scanned(root, tmp_path / "out")
    by_id = manifest.samples.set_index("id")
    crane = by_id.loc["train/google/q0005/g5x2.jpg"]
    assert crane["labels"] == ("crane (n03126707)",)  # label 3 of the list, synset 4 of the map
    assert crane["title"] == "crane machine 2"  # entry 2: index 1 of the JSON list
    assert crane["description"] == "page of crane machine"
    photo = by_id.loc["train/flickr/q0003/f3x1.jpg"]
    assert photo["tags"] == "photo crane bird"
    assert by_id.loc["test/val_images_256/val000003.jpg"]["labels"] == ("crane (n02012849)",)
    assert by_id.loc["test/val_images_256/val000003.jpg"]["title"] == ""


def test_classes_come_with_senses_and_queries(root: Path) -> None:
    (reader, *_) = readers.find(DataSettings(), source=str(root))
    assert isinstance(reader, WebVisionReader)
    hints = reader.classes()
    assert [hint.name for hint in hints] == NAMES
    assert [hint.sense for hint in hints] == [line.split()[0] for line in SYNSETS]
    assert hints[3].query == "crane; crane machine"


@pytest.mark.parametrize(
    ("data", "train", "test", "classes"),
    [
        ({}, 20, 8, 4),
        ({"subset": "google"}, 10, 8, 4),
        ({"subset": "mini"}, 10, 8, 4),  # all four are among the first fifty
        ({"class_list": "n01443537\n3 # by label\n"}, 12, 4, 2),
        ({"subset": "google", "class_list": "tench\nn02012849 crane\n"}, 4, 4, 2),
        (
            {"class_list": "0 n01443537\n1 n03126707\n"},
            12,
            4,
            2,
        ),  # as the authors' file: numbers of their own
    ],
)
def test_subsets(
    root: Path, tmp_path: Path, data: dict[str, str], train: int, test: int, classes: int
) -> None:
    if "class_list" in data:
        put(tmp_path / "list.txt", data["class_list"])
        data = data | {"class_list": str(tmp_path / "list.txt")}
    manifest, summary = scanned(root, tmp_path / "out", **data)
    assert summary["splits"] == {"train": train, "test": test}
    assert len(manifest.label_names()) == classes
    left_out = sum(count for name, count in summary["notes"].items() if name.endswith("other_classes"))
    read = 20 if data.get("subset", "all") == "all" else 10
    assert left_out == read + 8 - train - test


def test_google_alone_needs_no_file_of_flickr(root: Path, tmp_path: Path) -> None:
    for path in (root / "info").glob("*flickr*"):
        path.unlink()
    with pytest.raises(DataError, match=r"flickr.txt: cannot be read") as caught:
        scanned(root, tmp_path / "out")
    assert "data.subset=google" in caught.value.hint
    assert scanned(root, tmp_path / "out", subset="google")[1]["samples"] == 18


def test_mini_is_the_first_fifty_classes_of_google(tmp_path: Path) -> None:
    synsets = "".join(f"n{number:08d} thing{number}\n" for number in range(60))
    put(tmp_path / "info" / "synsets.txt", synsets)
    assert Info(tmp_path, "mini").wanted == list(range(50))
    assert Info(tmp_path, "mini").engines == ["google"]
    assert len(Info(tmp_path, "all").wanted) == 60


@pytest.mark.parametrize("flat", [False, True])
def test_imagenet_is_a_second_test_set_with_the_same_classes(root: Path, tmp_path: Path, flat: bool) -> None:
    imagenet = tmp_path / "imagenet"
    for number, line in enumerate(SYNSETS):
        name = f"ILSVRC2012_val_{number + 1:08d}.JPEG"
        folder = imagenet if flat else imagenet / line.split()[0]
        put(folder / name, jpeg(20, 16, seed=900 + number))
    if flat:
        text = "".join(f"ILSVRC2012_val_{n + 1:08d}.JPEG {n}\n" for n in range(len(SYNSETS)))
        put(imagenet / "val.txt", text)
    put(tmp_path / "list.txt", "tench\nn03126707\n")
    manifest, summary = scanned(
        root, tmp_path / "out", test=str(imagenet), class_list=str(tmp_path / "list.txt")
    )
    own = manifest.frame[manifest.frame["source"] == 3]
    assert [labels[0] for labels in own["labels"]] == ["tench", "crane (n03126707)"]
    assert set(own["split"]) == {"test"}
    assert own["id"].str.startswith("test/imagenet/").all()
    assert summary["notes"]["imagenet_images_of_other_classes"] == 2


def test_an_image_that_is_not_there_is_quarantined(root: Path, tmp_path: Path) -> None:
    (root / "google" / "q0001" / "g1x2.jpg").unlink()
    (root / "flickr" / "q0002" / "f2x1.jpg").write_bytes(png()[:20])
    _, summary = scanned(root, tmp_path / "out")
    assert summary["quarantined_by"] == {"missing-file": 1, "truncated": 1}
    assert summary["samples"] == 26


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


BAD = {
    "synset": ("synsets.txt", "n01443537 goldfish", "x01443537 goldfish", r"synsets.txt:2: 'x0144"),
    "twice": ("synsets.txt", "n01443537", "n01440764", r"synsets.txt:2: n01440764 is there twice"),
    "label": ("train_filelist_google.txt", "g1x2.jpg 0", "g1x2.jpg 4", r"google.txt:2: label is '4'"),
    "no label": ("train_filelist_google.txt", "g1x2.jpg 0", "g1x2.jpg", r"google.txt:2: one column"),
    "word": ("val_filelist.txt", "val000002.jpg 1", "val000002.jpg cat", r"list.txt:2: label is 'cat'"),
    "entry 0": ("train_meta_list_google.txt", "q0001.json 2", "q0001.json 0", r"google.txt:2: entry"),
    "entry 3": ("train_meta_list_google.txt", "q0001.json 2", "q0001.json 3", r"from 1 to 2"),
    "no json": ("train_meta_list_google.txt", "q0001.json 1", "q0099.json 1", r"google.txt:1: .* not"),
    "short": ("train_meta_list_google.txt", "google/q0005.json 2\n", "", r"google.txt:10: entry 10"),
    "map": ("queries_synsets_map.txt", "4 4", "4 5", r"map.txt:4: synset id is '5'"),
    "map columns": ("queries_synsets_map.txt", "4 4", "4", r"map.txt:4: 1 columns"),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_lists_are_told_by_file_and_line(root: Path, tmp_path: Path, name: str) -> None:
    file, old, new, message = BAD[name]
    replace(root / "info" / file, old, new)
    with pytest.raises(DataError, match=message) as caught:
        scanned(root, tmp_path / "out")
    assert caught.value.hint


@pytest.mark.parametrize("file", ["val_filelist.txt", "queries_synsets_map.txt", "queries_google.txt"])
def test_missing_lists_are_told(root: Path, tmp_path: Path, file: str) -> None:
    (root / "info" / file).unlink()
    with pytest.raises(DataError, match=f"{file}: cannot be read"):
        scanned(root, tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "message"),
    [("[{}\n, ", r"q0001.json:2: not valid JSON"), ('{"a": 1}', "holds a dict, not a list")],
)
def test_malformed_texts_are_told(root: Path, tmp_path: Path, content: str, message: str) -> None:
    put(root / "google" / "q0001.json", content)
    with pytest.raises(DataError, match=message):
        scanned(root, tmp_path / "out")


def test_texts_may_lie_in_a_folder_of_their_own(root: Path, tmp_path: Path) -> None:
    for engine, folder in (("google", root / "metadata" / "google"), ("flickr", root / "flickr_json")):
        folder.mkdir(parents=True)
        for path in (root / engine).glob("*.json"):
            path.rename(folder / path.name)
    manifest, _ = scanned(root, tmp_path / "out")
    assert (manifest.samples["title"] != "").sum() == 20


def test_a_list_that_counts_from_1_is_refused(root: Path, tmp_path: Path) -> None:
    path = root / "info" / "train_filelist_google.txt"
    shifted = [line.rsplit(" ", 1) for line in path.read_text().splitlines()]
    path.write_text("".join(f"{name} {(int(label) + 1) % 4}\n" for name, label in shifted))
    with pytest.raises(DataError, match=r"google.txt:1: .* 10 of 10 lines"):
        scanned(root, tmp_path / "out")


def test_odd_rows_are_counted(root: Path, tmp_path: Path) -> None:
    replace(root / "info" / "train_filelist_google.txt", "g2x1.jpg 1", "g2x1.jpg 2")
    entries = json.loads((root / "google" / "q0001.json").read_text())
    entries[0]["id"] = "other"
    put(root / "google" / "q0001.json", json.dumps(entries))
    replace(root / "info" / "train_filelist_flickr.txt", "flickr/q0001/f1x1.jpg", "../f1x1.jpg")
    _, summary = scanned(root, tmp_path / "out")
    assert summary["notes"]["google_labels_unlike_their_query"] == 1
    assert summary["notes"]["google_texts_with_another_id"] == 1
    assert summary["quarantined_by"] == {"outside-folder": 1}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"format": "webvision"}, "does not have the layout of webvision"),
        ({"format": "nuswide"}, "does not have the layout of nuswide"),
        ({"subset": "mini"}, "data.subset is for WebVision"),
        ({"class_list": "x.txt"}, "data.class_list is for WebVision"),
    ],
)
def test_other_folders_are_not_taken_for_it(tmp_path: Path, data: dict[str, str], message: str) -> None:
    put(tmp_path / "cat" / "1.png", png())
    with pytest.raises((DataError, ConfigError), match=message):
        readers.find(DataSettings(**data), source=str(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [("tench\ntunch\n", r"list.txt:2: no class 'tunch'"), ("# none\n", "names no class")],
)
def test_class_lists_are_checked(root: Path, tmp_path: Path, content: str, message: str) -> None:
    put(tmp_path / "list.txt", content)
    with pytest.raises(CaproError, match=message):
        scanned(root, tmp_path / "out", class_list=str(tmp_path / "list.txt"))
