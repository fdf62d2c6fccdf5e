"""The demo data: same bytes, exact noise, texts, truth, and a folder that is whole or absent."""

import collections
import csv
import hashlib
import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from capro.demo import composition, junk
from capro.demo.emoji import DESIGNS, emoji_table, picture
from capro.errors import ConfigError, DataError
from capro.models.nouns import ClassNouns

SMALL = {"n_train": 340, "n_test": 51}


NAMES = [c.name for c in composition.DEMO_CLASSES]


SHOWN_BY = {code: c.name for c in composition.DEMO_CLASSES for code in c.shows}


WORDNET = Path("/usr/share/wordnet/data.noun")


def digests(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def rows_of(folder, split="train"):
    lines = (folder / split / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def truth_of(folder):
    with open(folder / "train_truth.csv", encoding="utf-8", newline="") as file:
        return {row["file_name"]: row for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "single"
    composition.write_demo(folder, **SMALL)
    return folder


@pytest.fixture(scope="module")
def multi(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "multi"
    composition.write_demo(folder, multi_label=True, **SMALL)
    return folder


def test_assets_are_small_and_decode():
    root = resources.files("capro.demo.emoji")
    with resources.as_file(root) as folder:
        files = [path for path in Path(folder).rglob("*") if path.suffix in (".png", ".txt", ".json")]
        pictures = {str(path.relative_to(folder).with_suffix("")) for path in files if path.suffix == ".png"}
        assert sum(path.stat().st_size for path in files) <= 1_300_000
    assert pictures == {f"{design}/{code}" for design in DESIGNS for code in composition.codes()}
    for design in DESIGNS:
        for code in composition.codes():
            image = picture(design, code)
            assert (image.size, image.mode) == ((64, 64), "RGBA")
            alpha = np.asarray(image)[..., 3]
            assert 0.05 < (alpha > 128).mean() < 0.99  # neither empty nor without transparency


def test_every_design_brings_its_own_licence():
    root = resources.files("capro.demo.emoji")
    first_words = {
        "noto": "Apache License",
        "twemoji": "Attribution 4.0 International",
        "fluent": "Microsoft Corporation",
        "cldr": "UNICODE LICENSE V3",
    }
    for design, words in first_words.items():
        text = root.joinpath(f"LICENSE-{design}.txt").read_text(encoding="utf-8")
        assert words in text[:400]
    assert "CC-BY 4.0" in root.joinpath("README.md").read_text(encoding="utf-8")


def test_every_emoji_has_a_name():
    assert set(emoji_table()) == set(composition.codes())
    assert emoji_table()["1f3cf"].name == "cricket game"
    assert all(emoji.name and emoji.keywords for emoji in emoji_table().values())


@pytest.mark.skipif(not WORDNET.exists(), reason="Debian's wordnet-base is not installed")
@pytest.mark.parametrize("c", composition.DEMO_CLASSES, ids=lambda c: c.name)
def test_sense_is_a_wordnet_sense_of_the_word(c):
    with open(WORDNET, "rb") as file:
        file.seek(int(c.sense[1:]))
        fields = file.readline().decode().split()
    assert fields[0] == c.sense[1:]
    lemmas = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
    # WordNet lists `glasses` as itself; only `tiger cat` is two words
    assert c.name.replace(" ", "_") in lemmas


def test_emoji_mean_one_class_only():
    shown = [code for c in composition.DEMO_CLASSES for code in c.shows]
    assert len(shown) == len(set(shown))
    assert not {*composition.STRANGERS} & {
        code for c in composition.DEMO_CLASSES for code in (*c.shows, *c.other)
    }
    assert all(not {*c.shows} & {*c.other} for c in composition.DEMO_CLASSES)


def test_classes_file(single):
    rows = yaml.safe_load((single / "classes.yaml").read_text(encoding="utf-8"))
    assert [row["name"] for row in rows] == NAMES
    assert rows[0] == {"name": "mouse", "sense": "n02330245", "ambiguous": True}
    assert len(rows) >= 12
    assert [row["name"] for row in rows if not row["ambiguous"]] == ["tiger"]


def test_same_bytes_twice_and_another_seed_differs(single, tmp_path):
    composition.write_demo(tmp_path / "again", **SMALL)
    assert digests(tmp_path / "again") == digests(single)
    composition.write_demo(tmp_path / "other", seed=1, n_train=34, n_test=17)
    composition.write_demo(tmp_path / "zero", seed=0, n_train=34, n_test=17)
    other, zero = digests(tmp_path / "other"), digests(tmp_path / "zero")
    assert not set(other.values()) & {zero[name] for name in zero if name.endswith((".png", "jsonl"))}


def test_train_and_test_share_no_picture(single):
    images = [value for name, value in digests(single).items() if name.endswith(".png")]
    assert len(images) == len(set(images)) == 340 + 51


def test_counts_and_format(single):
    for split, number in (("train", 340), ("test", 51)):
        rows = rows_of(single, split)
        files = {str(path.relative_to(single / split)) for path in (single / split).glob("*/*.png")}
        assert len(rows) == number
        assert {row["file_name"] for row in rows} == files
        assert all(row["file_name"].split("/")[0] == row["label"] for row in rows)
        assert {row["label"] for row in rows} == set(NAMES)
    per_class = collections.Counter(row["label"] for row in rows_of(single, "test"))
    assert set(per_class.values()) == {3}
    kinds = {name: of["kind"] for name, of in truth_of(single).items()}
    sizes = {"banner": junk.BANNER_SIZE, "screenshot": junk.SCREENSHOT_SIZE}
    for name, kind in kinds.items():
        with Image.open(single / "train" / name) as image:
            assert (image.size, image.mode, image.format) == (sizes.get(kind, (64, 64)), "RGB", "PNG")


def test_default_noise_is_what_the_issue_asks_for():
    shots = composition.plan(np.random.default_rng(0), 2400, noisy=True, multi_label=False)
    kinds = collections.Counter(shot.kind for shot in shots)
    assert 0.38 <= 1 - kinds["clean"] / 2400 <= 0.42
    assert 0.45 <= kinds["sense"] / (2400 - kinds["clean"]) <= 0.6
    assert min(kinds["flip"], kinds["ood"]) >= 0.07 * 2400
    assert min(kinds["banner"], kinds["screenshot"]) >= 0.01 * 2400
    assert kinds["banner"] + kinds["screenshot"] <= 0.04 * 2400
    by_class = collections.Counter((shot.web[0], shot.kind) for shot in shots)
    majority = [name for name in NAMES if by_class[name, "sense"] >= by_class[name, "clean"]]
    assert {"tiger cat", "ear", "drumstick"} <= set(majority)
    assert min(by_class[name, "clean"] for name in NAMES) >= 60  # anchors exist in every class


def test_kinds_agree_with_the_truth():
    for shot in composition.plan(np.random.default_rng(3), 500, noisy=True, multi_label=False):
        (label,) = shot.web
        if shot.kind in junk.JUNK:
            assert (shot.truth, shot.codes, shot.named) == ((), (), ())
            continue
        (code,) = shot.codes
        c = composition.DEMO_CLASSES[NAMES.index(label)]
        assert shot.truth == ((SHOWN_BY[code],) if code in SHOWN_BY else ())
        assert (shot.kind == "clean") == (shot.truth == (label,)) == (code in c.shows)
        assert (shot.kind == "sense") == (code in c.other)
        assert (shot.kind == "ood") == (code in composition.STRANGERS)
        assert (shot.kind == "flip") == (code in SHOWN_BY and code not in (*c.shows, *c.other))


COMPOUNDS = {"dog": "hot dog", "bus": "bus stop", "bear": "teddy bear"}


@pytest.mark.parametrize("multi_label", [False, True])
def test_compounds_show_no_class_and_their_pages_name_them(multi_label):
    shots = composition.plan(np.random.default_rng(0), 2400, noisy=True, multi_label=multi_label)
    for word, compound in COMPOUNDS.items():
        found = [shot for shot in shots if shot.kind == "sense" and shot.web[0] == word]
        assert len(found) >= 25
        assert all(word not in shot.truth for shot in found)
        assert multi_label or all(shot.truth == () for shot in found)
        assert {emoji_table()[shot.codes[0]].name for shot in found} == {compound}
        pages = [composition.page_text(np.random.default_rng(i), shot) for i, shot in enumerate(found * 20)]
        named = [compound in str(text) for text in pages]
        written = [any(text.values()) for text in pages]
        assert sum(named) >= 0.85 * sum(written)  # one in nine is the page of something else
        clean = next(shot for shot in shots if shot.kind == "clean" and shot.web[0] == word)
        assert not any(
            compound in str(composition.page_text(np.random.default_rng(i), clean)) for i in range(200)
        )


def test_the_dictionary_knows_that_a_compound_is_no_kind_of_its_word():
    dictionary = ClassNouns([int(c.sense[1:]) for c in composition.DEMO_CLASSES])
    for word, compound in COMPOUNDS.items():
        assert dictionary.read(word).answer == NAMES.index(word)
        assert dictionary.read(compound).answer == len(NAMES)


def test_test_set_is_clean():
    for multi_label in (False, True):
        rng = np.random.default_rng(0)
        shots = composition.plan(rng, 300, noisy=False, multi_label=multi_label)
        assert {shot.kind for shot in shots} == {"clean"}
        assert all(shot.web == shot.truth for shot in shots)


def test_truth_file(single):
    truth, rows = truth_of(single), rows_of(single)
    assert list(truth) == [row["file_name"] for row in rows]
    for row in rows:
        of = truth[row["file_name"]]
        assert (of["kind"] == "clean") == (of["true_labels"] == row["label"])
        if of["kind"] in ("ood", *junk.JUNK):
            assert of["true_labels"] == ""
        if of["kind"] == "flip":
            assert of["true_labels"] in NAMES
    wrong = [of for of in truth.values() if of["kind"] != "clean"]
    assert 0.36 <= len(wrong) / 340 <= 0.44


def test_multi_label_tree(multi):
    truth = truth_of(multi)
    wrong = missing = 0
    for row in rows_of(multi):
        of = truth[row["file_name"]]
        true = set(of["true_labels"].split("|")) - {""}
        assert row["file_name"].startswith("images/")
        assert "label" not in row
        assert 1 <= len(row["labels"]) == len(set(row["labels"])) <= 3
        assert len(true) <= 3
        assert (of["kind"] == "clean") == (set(row["labels"]) == true)
        assert (of["kind"] in ("ood", *junk.JUNK)) <= (true == set())
        if of["kind"] == "missing":
            assert set(row["labels"]) < true
        wrong += len(set(row["labels"]) - true)
        missing += len(true - set(row["labels"]))
    assert 0.4 <= wrong / (wrong + missing) <= 0.6
    assert {len(row["labels"]) for row in rows_of(multi, "test")} == {1, 2, 3}


def test_multi_label_pictures_show_their_truth():
    for shot in composition.plan(np.random.default_rng(0), 300, noisy=True, multi_label=True):
        assert set(shot.truth) == {SHOWN_BY[code] for code in shot.codes if code in SHOWN_BY}
        assert set(shot.named) <= set(shot.codes)


def test_some_texts_are_missing_and_some_belong_elsewhere():
    shot = composition.single_shot(np.random.default_rng(0), composition.DEMO_CLASSES[0], "sense")
    texts = [composition.page_text(np.random.default_rng(i), shot) for i in range(1500)]
    empty = [text for text in texts if not any(text.values())]
    own = [text for text in texts if "computer" in str(text)]
    elsewhere = [text for text in texts if any(text.values()) and "mouse" not in str(text)]
    assert 0.12 <= len(empty) / 1500 <= 0.18
    assert 0.08 <= len(elsewhere) / 1500 <= 0.12
    assert len(own) / 1500 >= 0.7


def test_missing_share_of_the_tree(single):
    rows = rows_of(single)
    empty = [row for row in rows if not (row["title"] or row["description"] or row["tags"])]
    assert 0.09 <= len(empty) / len(rows) <= 0.21


def test_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def broken(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(composition, "write_classes", broken)
    with pytest.raises(KeyboardInterrupt):
        composition.write_demo(tmp_path / "data" / "demo", n_train=17, n_test=17)
    assert list((tmp_path / "data").iterdir()) == []


def test_complete_folder_is_left_alone_and_others_are_replaced(tmp_path):
    folder = tmp_path / "demo"
    composition.write_demo(folder, n_train=17, n_test=17)
    before, born = digests(folder), folder.stat().st_ino
    composition.write_demo(folder, n_train=17, n_test=17)
    assert folder.stat().st_ino == born
    next(folder.glob("train/*/*.png")).unlink()  # no longer complete
    composition.write_demo(folder, n_train=17, n_test=17)
    assert digests(folder) == before
    composition.write_demo(folder, n_train=18, n_test=17)
    assert len(rows_of(folder)) == 18
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_foreign_folder_is_never_touched(tmp_path):
    (tmp_path / "holiday.txt").write_text("mine")
    with pytest.raises(DataError, match=r"holiday\.txt") as caught:
        composition.write_demo(tmp_path, n_train=17, n_test=17)
    assert "another folder" in caught.value.hint
    with pytest.raises(DataError, match="exists"):
        composition.write_demo(tmp_path / "holiday.txt", n_train=17, n_test=17)
    folder = tmp_path / "demo"
    composition.write_demo(folder, n_train=17, n_test=17)
    (folder / "notes").mkdir()
    with pytest.raises(DataError, match="notes"):
        composition.write_demo(folder, n_train=18, n_test=17)
    assert (folder / "notes").is_dir()


def test_an_empty_folder_may_be_filled(tmp_path):
    composition.write_demo(tmp_path / "demo", n_train=17, n_test=17)
    (tmp_path / "empty").mkdir()
    composition.write_demo(tmp_path / "empty", n_train=17, n_test=17)
    assert digests(tmp_path / "empty") == digests(tmp_path / "demo")


def test_too_few_images(tmp_path):
    with pytest.raises(ConfigError, match="n_test=16: the demo has 17 classes"):
        composition.write_demo(tmp_path / "demo", n_test=16)


@given(st.integers(0, 1000), st.lists(st.floats(0, 10), min_size=1, max_size=8))
def test_apportion_is_exact_and_fair(number, weights):
    weights = [*weights, 1.0]
    counts = composition.apportion(number, weights)
    exact = [number * weight / sum(weights) for weight in weights]
    assert sum(counts) == number
    assert all(abs(count - share) < 1 + 1e-6 for count, share in zip(counts, exact, strict=True))
