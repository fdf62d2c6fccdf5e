from __future__ import annotations

import importlib.util
import lzma
import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capro.errors import ConfigError
from capro.models import wordnet
from capro.models.wordnet import TABLE, resolve, sense_text, senses, synset

DEBIAN = Path("/usr/share/wordnet")
SCRIPT = Path(__file__).parents[2] / "scripts" / "make_wordnet.py"
debian = pytest.mark.skipif(
    not (DEBIAN / "data.noun").is_file(), reason="Debian's wordnet-base is not installed"
)

OFFSETS = sorted(wordnet._table().at)
NAMES_A_SENSE = re.compile(r".+\.n\.\d{1,4}|n\d{8}", re.IGNORECASE | re.DOTALL)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_wordnet", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@debian
def test_the_shipped_table_is_what_the_script_makes(script):
    shipped = lzma.decompress(TABLE.read_bytes()).decode()
    # no plain `==`: pytest would take minutes to explain the difference of two books
    assert hash(script.build(DEBIAN)) == hash(shipped)
    assert script.licence(DEBIAN) == TABLE.with_name("WORDNET-LICENSE").read_text()


@debian
def test_hyponyms_and_sense_order_equal_princetons_files():
    hyponyms, words = {}, {}
    for line in (DEBIAN / "data.noun").read_text().splitlines():
        if not line.startswith(" "):
            fields = line.split(" | ")[0].split()
            pointers = fields[4 + 2 * int(fields[3], 16) + 1 :]
            hyponyms[int(fields[0])] = tuple(
                int(pointers[at + 1]) for at in range(0, len(pointers), 4) if pointers[at] in ("~", "~i")
            )
    for line in (DEBIAN / "index.noun").read_text().splitlines():
        if not line.startswith(" "):
            fields = line.split()
            words[fields[0]] = [int(each) for each in fields[-int(fields[2]) :]]
    assert len(hyponyms) == 82_115
    assert sorted(hyponyms) == OFFSETS
    wrong = [offset for offset in OFFSETS if synset(offset).hyponyms != hyponyms[offset]]
    assert not wrong[:5]
    assert len(words) == 117_798
    assert not [word for word, order in words.items() if wordnet._table().offsets(word) != order]


def test_the_table_is_small_and_quick():
    assert TABLE.stat().st_size < 3_000_000
    start = time.process_time()
    lzma.decompress(TABLE.read_bytes())
    unpacking = time.process_time() - start
    start = time.process_time()
    wordnet._table.__wrapped__()
    # a ratio: 0.5 s on a quiet machine, and twice that beside others, is about 4 times unpacking
    assert time.process_time() - start < 10 * unpacking


def test_tiger_cat():
    sense = resolve("n02123159")
    assert sense.name == "tiger_cat.n.02"
    assert sense.kind == "animal"
    assert sense.gloss == "a cat having a striped coat"
    assert [synset(each).name for each in sense.hypernyms] == ["domestic_cat.n.01"]
    assert sense.hyponyms == ()
    assert resolve("Tiger Cat.n.02") == resolve("tiger_cat.n.2") == sense
    assert resolve("tiger cat") != sense  # a plain word is its first sense


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("Watches", "watch.n.01"),
        ("Tops", "top.n.01"),
        ("mice", "mouse.n.01"),
        ("women", "woman.n.01"),
        ("BUTTERFLIES", "butterfly.n.01"),
        ("Tshirts", "jersey.n.03"),
        ("t-shirt", "jersey.n.03"),
        ("tee shirt", "jersey.n.03"),
        ("traffic_lights", "traffic_light.n.01"),
        ("Shorts", "short_pants.n.01"),  # as it is written before the singular `short`
        ("  fire   hydrant ", "fireplug.n.01"),
        ("axes", "ax.n.01"),
    ],
)
def test_words_fold(word, name):
    assert senses(word)[0].name == name


def test_senses_keep_wordnets_order():
    assert [each.wnid for each in senses("tiger")] == ["n10710632", "n02129604"]
    assert len(senses("cat")) == 8
    assert senses("stop sign") == senses("") == senses("-") == senses("\ud800") == []


@given(st.sampled_from(OFFSETS))
def test_ids_and_names_resolve_to_themselves(offset):
    sense = synset(offset)
    assert resolve(sense.wnid) is sense
    assert resolve(sense.name) is sense
    for lemma in sense.lemmas:
        assert sense in senses(lemma)
        assert sense in senses(lemma.replace("_", " ").upper())
    for above in sense.hypernyms:
        assert offset in synset(above).hyponyms


@given(st.text(max_size=30))
@example("PROTEST.N.1")
def test_any_text_resolves_or_is_refused(text):
    found = senses(text)
    if found:
        assert resolve(text) == found[0]
    elif NAMES_A_SENSE.fullmatch(text.strip()):  # which the table has, or not
        try:
            assert resolve(text).definition
        except ConfigError as error:
            assert error.hint  # noqa: PT017 - either outcome is right
    else:
        with pytest.raises(ConfigError) as caught:
            resolve(text)
        assert caught.value.hint


@pytest.mark.parametrize(
    ("reference", "message", "hint"),
    [
        ("n02123158", "no noun sense at n02123158", "WordNet 3.0, as ImageNet has them"),
        ("tiger.n.09", "has 2 noun senses of 'tiger'", "tiger.n.02 (large feline"),
        ("tigerr cat", "'tigerr cat' is not a noun", "did you mean 'tiger_cat'"),
        ("tiger beetel.n.01", "'tiger beetel.n.01' is not a noun", "did you mean 'tiger_beetle'"),
        ("", "'' is not a noun", "give a definition"),
        ("x" * 100_000, "is not a noun", "give a definition"),
    ],
)
def test_errors_say_what_to_do(reference, message, hint):
    with pytest.raises(ConfigError) as caught:
        resolve(reference)
    assert message in str(caught.value)
    assert hint in caught.value.hint


def test_sense_text_starts_with_the_definition_and_goes_on_with_relatives():
    tiger = resolve("n02129604")
    text = sense_text(tiger)
    assert text.startswith(tiger.definition + "; tiger, Panthera tigris; ")
    assert "big cat, cat" in text  # its hypernym
    assert "tigress" in text  # a hyponym
    assert '"' not in sense_text(resolve("dog.n.03"))  # no examples


def test_sense_text_is_bounded_and_broad_hyponyms_come_first(monkeypatch):
    dog = resolve("dog.n.01")
    with monkeypatch.context() as patch:
        patch.setattr(wordnet, "MAX_HYPONYMS", 2)
        text = sense_text(dog)
    broadest = sorted(map(synset, dog.hyponyms), key=lambda each: -len(each.hyponyms))
    assert text.endswith(", ".join(broadest[1].words))
    assert broadest[2].definition not in text
    assert len(sense_text(resolve("person.n.01"))) < 10_000  # it has 400 hyponyms
