from __future__ import annotations

import csv
import json
import tarfile

import numpy as np
import pyarrow.parquet as pq
import pytest

from capro.models import wordnet
from capro.models.classes import load_classes
from capro.models.senses import rank_senses
from capro.models.text_cleaning import clean_text
from capro.models.text_encoders import load_text_encoder

WIDTH = 64


def bag_of_words(texts):
    """A cheap stand-in for an encoder: hashed words, unit length."""
    out = np.zeros((len(texts), WIDTH), dtype=np.float32)
    for row, text in zip(out, texts, strict=True):
        for word in text.lower().replace(";", " ").replace(",", " ").split():
            row[sum(word.encode()) % WIDTH] += 1
    return out / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-9)


def texts_like(reference, count=3):
    return [wordnet.sense_text(wordnet.resolve(reference))] * count


def test_texts_decide_between_senses():
    for reference in ("turtle.n.01", "turtle.n.02"):  # the sweater and the reptile
        (found,) = rank_senses({"Turtle": texts_like(reference)}, bag_of_words)
        assert found.best == wordnet.resolve(reference)
        assert found.texts == 3
        assert found.candidates[0].similarity == pytest.approx(1, abs=1e-5)
        assert sorted(each.score for each in found.candidates)[::-1] == [
            each.score for each in found.candidates
        ]


def test_without_texts_what_can_be_seen_and_use_decide():
    found = {each.name: each for each in rank_senses({"tiger": [], "cat": ["", " "]}, bag_of_words)}
    assert found["tiger"].best == wordnet.resolve("tiger.n.02")  # not the fierce person
    assert found["cat"].best == wordnet.resolve("cat.n.01")
    assert found["tiger"].candidates[0].similarity is None
    assert len(found["cat"].candidates) == 8
    assert json.loads(json.dumps(found["tiger"].as_dict()))["sense"] == "n02129604"


def test_ambiguous_where_another_sense_fits_as_well():
    mixed = texts_like("mouse.n.01") + texts_like("mouse.n.04")
    found = rank_senses({"mouse": mixed, "turtle": texts_like("turtle.n.02")}, bag_of_words)
    assert [each.ambiguous for each in found] == [True, False]
    plausible = {each.sense.name for each in found[0].candidates if each.plausible}
    assert {"mouse.n.01", "mouse.n.04"} <= plausible
    assert rank_senses({"hamster": ["hamster"]}, bag_of_words)[0].ambiguous is False  # one sense


def test_names_that_wordnet_lacks():
    shoes, made_up, wnid, imagenet = rank_senses(
        {name: ["x"] for name in ("Casual Shoes", "qwxyz", "n02123159", "tench, Tinca tinca")}, bag_of_words
    )
    assert shoes.best is None
    assert shoes.head == "Shoes"
    assert {each.sense.name for each in shoes.candidates} >= {"shoe.n.01"}
    assert made_up.best is made_up.head is None
    assert made_up.as_dict()["senses"] == []
    assert wnid.best.name == "tiger_cat.n.02"
    assert imagenet.best.name in ("tench.n.01", "tinca.n.01")
    assert rank_senses({}, bag_of_words) == []


def test_only_so_many_texts_are_encoded():
    seen = []

    def encode(texts):
        seen.extend(texts)
        return bag_of_words(texts)

    every = [f"turtle {at}" for at in range(1000)]
    (found,) = rank_senses({"turtle": every}, encode, max_texts=10)
    assert seen[:10] == every[::100]
    assert len(seen) == 10 + 2
    assert found.texts == 10


def test_scores_do_not_depend_on_the_spread_of_an_encoder():
    """An encoder whose similarities are ten times closer ranks the same."""

    def narrow(texts):
        s = bag_of_words(texts)
        offset = np.full((len(s), 1), 3.0, dtype=np.float32)  # all in one corner, as XLNet's are
        return np.hstack([s, offset]) / np.sqrt(10)

    texts = {"tiger": texts_like("tiger.n.02"), "mouse": texts_like("mouse.n.04", 2)}
    wide = [[each.sense.name for each in one.candidates] for one in rank_senses(texts, bag_of_words)]
    assert [[each.sense.name for each in one.candidates] for one in rank_senses(texts, narrow)] == wide


def read_texts(shared, name):
    if name == "queryweb32":
        for path in sorted((shared / name / "train").glob("*.tar")):
            with tarfile.open(path) as shard:
                for member in shard:
                    if member.name.endswith(".json"):
                        row = json.load(shard.extractfile(member))
                        yield row["label"], row["caption"]
    elif name == "shopweb64":
        with (shared / name / "train" / "metadata.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield row["label"], row["title"]
    else:
        path = shared / name / "train-00000-of-00001.parquet"
        for row in pq.read_table(path, columns=["caption", "labels"]).to_pylist():
            for label in row["labels"]:
                yield label, row["caption"]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "count", "classes", "least", "flags"),
    [("queryweb32", 60, 33, 30, 22), ("shopweb64", 15, 20, 18, 0), ("cococap64", 15, 16, 15, 0)],
)
def test_right_senses_on_real_texts(shared, name, count, classes, least, flags):
    """Issue 3: at least 30 of 33 on queryweb32, from its raw class names."""
    truth = {spec.name: spec for spec in load_classes(shared / name / "classes.yaml")}
    texts = {each: [] for each in truth}
    for label, text in read_texts(shared, name):
        if len(texts[label]) < count:
            texts[label].append(clean_text(text))
    tokens = 256 if name == "queryweb32" else 128  # half the time, the same choices
    found = rank_senses(texts, load_text_encoder("minilm", max_tokens=tokens).encode)
    known = [each for each in found if truth[each.name].sense]
    assert len(known) == classes
    right = [each for each in known if each.best.wnid == truth[each.name].sense]
    print(name, len(right), "wrong:", {each.name for each in known} - {each.name for each in right})
    assert len(right) >= least
    agree = [each for each in found if each.ambiguous == truth[each.name].ambiguous]
    print("ambiguous agrees for", len(agree))
    assert len(agree) >= flags
