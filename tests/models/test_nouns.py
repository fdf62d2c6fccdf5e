"""Nouns of WordNet in texts, and the classes of an encoder's own head."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capro.models import wordnet
from capro.models.nouns import SILENT, ClassNouns, Naming, all_above, below_classes, head_senses, nouns


def finder(*senses):
    return ClassNouns([None if sense is None else wordnet.resolve(sense).offset for sense in senses])


@pytest.mark.parametrize(
    ("text", "answer", "noun"),
    [
        ("King Charles spaniel on a lawn", 0, "king charles spaniel"),
        ("two dogs", 0, "dogs"),
        ("a hot dog with mustard", 2, ""),  # a compound is one noun
        ("a hot, dog", 0, "dog"),  # which does not reach across punctuation
        ("<b>tractor</b> trailer", 1, "tractor trailer"),
        ("http://dog.example.com/dog.jpg", SILENT, ""),
        ("12345 of the", SILENT, ""),
        ("", SILENT, ""),
        ("犬 と 猫", SILENT, ""),
    ],
)
def test_the_class_that_a_text_names(text, answer, noun):
    assert finder("dog.n.01", "truck.n.01").read(text) == Naming(answer, noun)


def test_the_nearest_class_above_is_named():
    animals = finder("animal.n.01", "dog.n.01")
    assert animals.read("beagle").answer == 1
    assert animals.read("sparrow").answer == 0


def test_the_class_that_more_nouns_name_wins():
    assert (
        finder("dog.n.01", "cat.n.01").read("a beagle, a tabby cat and a Siamese cat").answer == 0
    )  # both have one
    assert finder("bat.n.01", "dog.n.01").read("bat and spaniel").answer == 1  # bat has other senses


def test_a_class_without_a_sense_is_never_named():
    assert not finder(None, None).knows_a_class
    assert finder(None, "dog.n.01").read("a cat").answer == 2


@given(
    st.lists(
        st.sampled_from("hot dog bus stop king of beasts the a teddy bear spaniels 12".split()), max_size=12
    )
)
def test_nouns_are_the_longest_phrases_from_the_left(words):
    slow, at = [], 0
    while at < len(words):
        sizes = [n for n in (4, 3, 2, 1) if at + n <= len(words)]
        phrases = [
            " ".join(words[at : at + n]) for n in sizes if all(w.isalpha() for w in words[at : at + n])
        ]
        found = next(
            (p for p in phrases if wordnet.lemma_offsets(p) and (" " in p or p not in {"the", "a", "of"})),
            None,
        )
        slow += [found] if found else []
        at += len(found.split()) if found else 1
    # a number parts nothing in `nouns`: words on both sides are neighbours there
    if "12" not in words:
        assert list(nouns(" ".join(words))) == slow


def test_every_answer_is_one_of_the_column():
    column = finder("dog.n.01").answers(["spaniel", "table", "?"])
    assert column.tolist() == [0, 1, SILENT]


def test_imagenet_has_its_own_order():
    senses = head_senses([])
    assert len(senses) == 1000
    assert senses == sorted(senses)
    assert [wordnet.synset(senses[n]).words[0] for n in (0, 207, 934, 999)] == [
        "tench",
        "golden retriever",
        "hotdog",
        "toilet tissue",
    ]
    assert head_senses(["tench, Tinca tinca", *["x"] * 999]) == senses


def test_other_heads_are_read_by_name():
    crane = head_senses(["crane, lifting device"])[0]
    assert head_senses(["no such thing at all", "n02084071"]) == [None, 2084071]
    assert crane in {sense.offset for sense in wordnet.senses("crane")}


def test_kinds_below_classes_against_a_walk():
    dog, cat, animal = (wordnet.resolve(name).offset for name in ("dog.n.01", "cat.n.01", "animal.n.01"))
    senses = [*head_senses([])[:400], None]
    below = below_classes(senses, [[dog], [cat, dog], [animal], []])

    def walk(offset, target):
        return offset == target or any(walk(above, target) for above in wordnet.synset(offset).hypernyms)

    for row, sense in enumerate(senses):
        wanted = (
            [0.0] * 4
            if sense is None
            else [walk(sense, dog), walk(sense, cat) or walk(sense, dog), walk(sense, animal), 0]
        )
        assert below[row].tolist() == [float(each) for each in wanted]
    assert below[:, 0].sum() > 100
    assert np.isin(below, [0, 1]).all()
    assert dog in all_above(wordnet.resolve("beagle").offset)
