"""NUS-WIDE in the layout that it is published in."""

from __future__ import annotations

from pathlib import Path

import pytest

from capro.config import DataSettings, ScanSettings
from capro.data import readers
from capro.data.manifest import Manifest
from capro.data.readers.nuswide import FIRST, SENSES, NusWideReader
from capro.data.scan import scan_sources
from capro.errors import DataError
from capro.models import wordnet
from tests.data.published import CONCEPTS, nuswide

# The four cases of each split: (web tags, verified labels).
TRAIN = [(["sky", "clouds"], ["water"]), ([], ["sky"]), (["tiger"], []), ([], []), (["zebra"], ["zebra"])]
TEST = [(["sky"], ["clouds", "water"]), (["sky"], []), ([], ["sky"]), ([], [])]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return nuswide(tmp_path / "nus", TRAIN, TEST)


def scanned(root: Path, out: Path) -> tuple[Manifest, dict[str, object]]:
    found = readers.find(DataSettings(), source=str(root))
    summary = scan_sources(found, out, ScanSettings(workers=1))
    return Manifest.load(out / "manifest.parquet"), summary


@pytest.mark.parametrize("whole", [False, True])
def test_train_has_web_labels_and_test_the_truth(tmp_path: Path, whole: bool) -> None:
    root = nuswide(tmp_path / "nus", TRAIN, TEST, whole=whole)
    manifest, summary = scanned(root, tmp_path / "out")
    assert manifest.task == "multi"
    by_id = manifest.samples.set_index("id")
    assert by_id["labels"].to_dict() == {
        "train/actor/0001_1000.jpg": ("clouds", "sky"),
        "train/actor/0003_1002.jpg": ("tiger",),
        "train/actor/0005_1004.jpg": ("zebra",),
        "test/actor/0001_1005.jpg": ("clouds", "water"),
        "test/actor/0003_1007.jpg": ("sky",),
    }
    assert by_id.loc["train/actor/0001_1000.jpg"]["tags"] == "sky clouds goldengatebridge"
    assert summary["samples"] == 5


def test_images_without_a_label_of_their_split_are_left_out_and_counted(root: Path, tmp_path: Path) -> None:
    manifest, summary = scanned(root, tmp_path / "out")
    assert summary["quarantined_by"] == {"no-concept-tag": 2, "no-verified-label": 2}
    assert summary["notes"]["train_images_without_any_of_the_tags"] == 2
    assert summary["notes"]["test_images_without_a_verified_label"] == 2
    assert summary["rows"] == 9
    bad = manifest.frame[manifest.frame["status"] != "ok"]
    assert dict(zip(bad["id"], bad["reason"], strict=True)) == {
        "train/actor/0002_1001.jpg": "no-concept-tag",
        "train/actor/0004_1003.jpg": "no-concept-tag",
        "test/actor/0002_1006.jpg": "no-verified-label",
        "test/actor/0004_1008.jpg": "no-verified-label",
    }
    assert summary["notes"]["train_web_labels"] == 4
    assert summary["notes"]["train_web_labels_among_the_tags"] == 4


def test_classes_are_the_concepts_in_their_order_with_senses(root: Path) -> None:
    (reader, _) = readers.find(DataSettings(), source=str(root))
    assert isinstance(reader, NusWideReader)
    hints = reader.classes()
    assert [hint.name for hint in hints] == CONCEPTS
    senses = {hint.name: wordnet.resolve(hint.sense or "") for hint in hints}
    assert "feline" in senses["tiger"].definition
    assert "polyp" in senses["coral"].definition
    assert "cetacean" in senses["whales"].definition


def test_every_concept_has_one_sense() -> None:
    assert sorted(SENSES) == CONCEPTS
    for name in FIRST:  # the bare word means its first sense
        assert wordnet.resolve(name) == wordnet.senses(name)[0]


BAD = {
    "columns": ("NUS_WID_Tags/Train_Tags81.txt", "0 0 ", "0 ", r"Train_Tags81.txt:1: got '80 columns'"),
    "cell": ("NUS_WID_Tags/Test_Tags81.txt", "0 0 ", "0 x ", r"Test_Tags81.txt:1: got 'x' in a row"),
    "label": ("Groundtruth/TrainTestLabels/Labels_sky_Test.txt", "0", "2", r"Test.txt:1: label is '2'"),
    "many": ("Groundtruth/TrainTestLabels/Labels_sky_Test.txt", "0", "0\n0", r"Test.txt:5: label 5 of 4"),
    "few": ("Groundtruth/TrainTestLabels/Labels_sky_Test.txt", "0\r\n", "", "3 labels for 4 images"),
    "tags": ("NUS_WID_Tags/All_Tags.txt", "1000 ", "x1000 ", r"All_Tags.txt:1: 'x1000' is not a photo"),
    "images": ("ImageList/TrainImagelist.txt", "actor\\0001_1000.jpg\r\n", "", r"81.txt:5: entry 5"),
    "concepts": ("ConceptsList/Concepts81.txt", "animal", "airport", r"Concepts81.txt:2: 'airport'"),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_files_are_told_by_file_and_line(root: Path, tmp_path: Path, name: str) -> None:
    file, old, new, message = BAD[name]
    data = (root / file).read_bytes()
    assert old.encode() in data
    (root / file).write_bytes(data.replace(old.encode(), new.encode(), 1))
    with pytest.raises(DataError, match=message) as caught:
        scanned(root, tmp_path / "out")
    assert caught.value.hint


@pytest.mark.parametrize(
    "file",
    [
        "ImageList/TestImagelist.txt",
        "NUS_WID_Tags/All_Tags.txt",
        "NUS_WID_Tags/Test_Tags81.txt",
        "Groundtruth/TrainTestLabels/Labels_zebra_Test.txt",
    ],
)
def test_missing_files_are_told(root: Path, tmp_path: Path, file: str) -> None:
    (root / file).unlink()
    with pytest.raises(DataError, match=f"{Path(file).name}: cannot be read"):
        scanned(root, tmp_path / "out")


def test_odd_rows_are_counted_or_quarantined(root: Path, tmp_path: Path) -> None:
    path = root / "ImageList" / "TrainImagelist.txt"
    path.write_bytes(path.read_bytes().replace(b"actor\\0001", b"..\\..\\0001"))
    tags = root / "NUS_WID_Tags" / "All_Tags.txt"
    tags.write_bytes(b"".join(tags.read_bytes().splitlines(keepends=True)[:-1]) + b"7 caf\xe9\n")
    _, summary = scanned(root, tmp_path / "out")
    assert summary["quarantined_by"] == {"no-concept-tag": 2, "no-verified-label": 2, "outside-folder": 1}
    assert summary["notes"]["test_images_not_in_All_Tags"] == 1
