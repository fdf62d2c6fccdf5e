from __future__ import annotations

import random
import string
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capro.models.text_cleaning import STOP_WORDS, clean_text, combine, split_glued


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("goldengatebridge sunset", "golden gate bridge sunset"),
        ("tiger\nbeetle\tmacro\r\nshot", "tiger beetle macro shot"),  # white space, never glued
        ("salt &amp; pepper &lt;b&gt;pot&lt;/b&gt;", "salt pepper pot"),
        ("x &amp;lt;i&amp;gt;hi&amp;lt;/i&amp;gt; caf&amp;eacute;", "x hi café"),  # twice
        ("&amp;amp;amp;amp;amp;lt;b&amp;gt; wolf", "wolf"),
        ("<p class='a > b'>fox</p><br/>den", "fox den"),
        ("<script>var a = '<b>';</script>dog<style>p {}</style> <!-- no > no --> pup", "dog pup"),
        ("lion <SCRIPT>never closed", "lion"),
        ("cub <!-- never closed", "cub never closed"),
        ('cat <a href="http://x.y/z', "cat"),  # a description that was cut off
        ("5 < 6, and 7 > 2: i <3 cats", "cats"),
        ("see https://a.b/c?d=e#f now", "see now"),
        ("WWW.EXAMPLE.COM/x bear", "bear"),
        ("visit example.co.uk/page. or me@mail.com, (shop.com)", "visit"),
        ("the end.In the wood", "end wood"),  # a lost space, no address
        ("看这里http://t.co/abc谢谢", "看这里 谢谢"),
        ("IMG_0042.JPG my-photo.jpeg report.doc", "IMG photo report"),
        ("Nike T-Shirt NY8283 3x", "Nike T Shirt NY x"),
        ("women's shoes, don't, it's, they’re", "women shoes"),
        ("the can of the mine", "can mine"),  # things, though also function words
        ("Тигр в лесу, 虎と森! นกฮูก", "Тигр в лесу 虎と森 นกฮูก"),
        ("\u202bשלום עולם\u202c", "שלום עולם"),
        ("می‌خواهم", "می‌خواهم"),
        ("🐯 tiger ❤️ 👨‍👩‍👧 1️⃣", "tiger"),
        ("t\x00i\x00g\x00e\x00r", "tiger"),
        ("lone \ud800 surrogate\udfff", "lone surrogate"),
        ("ﬁne 𝓯𝓸𝔁 １２ ½", "fine fox"),
        ("soft\u00adhyphen", "soft hyphen"),
        ("e\u0301te\u0301", "été"),
        ("", ""),
        ("  \n ", ""),
        ("123 ... !!!", ""),
        ("The of and", ""),
    ],
)
def test_cleaning_by_hand(raw, clean):
    assert clean_text(raw) == clean


ANY = st.text(st.characters(), max_size=200)  # surrogates too
PIECES = (
    "<b> </b> <script> </script> <!-- --> &amp; &lt; &#39; http:// www. .com .jpg ' ’s n't < > "
    'tiger goldengatebridge the a.b @ = " \u200d \u0301 ﷺ e 7'
)
PAGE = st.lists(st.sampled_from(PIECES.split(" ")) | st.text(max_size=3), max_size=30).map("".join)


@given(ANY | PAGE)
def test_output_is_words_of_letters(raw):
    clean = clean_text(raw)
    assert clean == " ".join(clean.split())
    for word in clean.split():
        assert word.lower() not in STOP_WORDS
        assert any(character.isalpha() for character in word)
    kinds = {unicodedata.category(character) for character in clean} - {"Zs"}
    assert all(kind[0] in "LM" or kind in ("Nl", "Cf") for kind in kinds)
    assert set(clean) & set("<>&\x00\n\t") == set()
    clean.encode("utf-8")


@given(ANY | PAGE)
def test_clean_text_stays_as_it_is(raw):
    once = clean_text(raw)
    assert clean_text(once) == once


@given(st.lists(st.sampled_from(["虎", "Тигр", "نمر", "tiger", "été"]), max_size=10))
def test_no_script_is_lost(words):
    assert clean_text(", ".join(words)) == " ".join(words)


N = 1_000_000
LONG = {
    "letters": "a" * N,
    "opening brackets": "<" * N,
    "tags": "<a " * (N // 3),
    "scripts": "<script>" * (N // 8),
    "comments": "<!--" * (N // 4),
    "ampersands": "&" + "amp;" * (N // 4),
    "number": "&#" + "9" * N,
    "quotes": '<a "' * (N // 4),
    "equals": "<a " + "=" * N + "<",
    "URLs": "http://" * (N // 7),
    "hosts": "a." * (N // 2) + "com",
    "addresses": "a@" * (N // 2),
    "spaces in a closing tag": "<script></script" + " " * N,
    "NUL": "\0" * N,
    "marks": "e" + "\u0301" * N,
    "emoji": "🐯\u200d" * (N // 8),
    "Chinese": "虎" * N,
}


@pytest.mark.parametrize("name", LONG)
def test_a_megabyte_takes_seconds_not_hours(name):
    start = time.process_time()
    clean_text(LONG[name])
    assert time.process_time() - start < 10  # about 1 s when quiet; quadratic work takes hours


def test_a_megabyte_of_unknown_words_takes_seconds():
    dice = random.Random(0)
    text = " ".join(
        "".join(dice.choices(string.ascii_lowercase, k=dice.randint(3, 14))) for _ in range(100_000)
    )
    clean_text("warm up")
    start = time.process_time()
    clean_text(text)
    assert time.process_time() - start < 15


WHOLE = """
butterfly butterflies photographers Schnauzer Giordano Steinway DKNY iPhone McDonald Panthera trutta
Fastrack firefighter unbelievable beardless beatable naïveté тигрлес cat redf instagram x
"""


@pytest.mark.parametrize("word", [*WHOLE.split(), "a" * 1000])
def test_words_and_names_are_not_split(word):
    assert split_glued(word) == word


@pytest.mark.parametrize(
    "words", ["golden gate bridge", "san francisco", "red fox", "black and white", "photo of the day"]
)
def test_glued_tags_are_split(words):
    assert split_glued(words.replace(" ", "")) == words
    camel = words.title()
    assert split_glued(camel.replace(" ", "")) == camel


def test_splitting_rates_on_real_words():
    """Nouns of WordNet glued in pairs come apart; its single words stay whole."""
    from capro.models import text_cleaning, wordnet

    dice = random.Random(0)
    ranks = text_cleaning._ranks()
    common = [word for word in ranks if ranks[word] < 5_000 and len(word) > 2]
    common = sorted(word for word in common if wordnet.is_lemma(word))
    pairs = [dice.sample(common, 2) for _ in range(400)]
    apart = [split_glued("".join(pair)) == " ".join(pair) for pair in pairs]
    assert sum(apart) / len(apart) > 0.9
    nouns = [word for word in wordnet._table().single if word.isalpha()]
    assert all(split_glued(word) == word for word in dice.sample(nouns, 2_000))


def test_combine_keeps_all_three_parts_once():
    assert combine("a fox", "in snow", "red, fox") == "a fox\nin snow\nred, fox"
    assert combine("a fox", " a fox ", "a fox") == "a fox"
    assert combine("", " ", "") == ""
