"""Raw web text to words for the language model (docs/paper.md, text encoding).

Every step is linear in the length of the text: no pattern can backtrack over what another one has
already read, and only the first words of a text are looked at for gluing. Case is kept, since some
encoders know it. Symbols go with the punctuation, emoji too: the default encoder does not know
them, and a text of emoji alone is better empty, since the graph then fills it in.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

from capro.data.manifest import Manifest
from capro.models import wordnet

# English function words, but none that also names things: can, will, may, mine, down, well, US.
_FUNCTION_WORDS = """
a about after against all also although am among an and another any are as at be because been
before being between both but by could did do does doing during each either ever every few for
from further had has have having he hence her here hers herself him himself his how however i if
in into is it its itself just me more most much my myself neither no nor not of on once only or
other our ours ourselves own same she should since so some such than that the their theirs them
themselves then there therefore these they this those though through thus to too until upon very
was we were what when where whether which while who whom whose why with within without would yet
you your yours yourself yourselves
"""
STOP_WORDS = frozenset(_FUNCTION_WORDS.split())

# None of these is a word, so they go where the dot is lost as well; the next ones need their dot.
_IMAGES_AND_PAGES = """
jpg jpeg jpe jfif png gif webp avif bmp tif tiff svg heic heif psd pdf html htm xhtml shtml php
asp aspx jsp
"""
_DROPPED = STOP_WORDS.union(_IMAGES_AND_PAGES.split())
_DOTTED = re.compile(r"\.(?:doc|docx|raw|mov|avi|ico|cgi|zip|txt|cr2|nef|mp[34])(?!\w)", re.I)

_MANY_AMPS = re.compile(r"&(?:amp;)++", re.I)
_LONG_NUMBER = re.compile(r"&#x?[0-9a-f]{8,}+;?", re.I)  # no character; int() refuses 4,300 digits
_BLOCKS = [  # opening, closing, what to do where the closing is missing
    (re.compile(r"<!--"), re.compile(r"-->"), "keep"),
    (re.compile(r"<script\b", re.I), re.compile(r"</script\s*+>", re.I), "drop"),
    (re.compile(r"<style\b", re.I), re.compile(r"</style\s*+>", re.I), "drop"),
]
_TAG = re.compile(r"""<[a-z/!?](?:[^<>"']|"[^"<]*+"|'[^'<]*+')*+>|<[a-z/!?][^<>]*+>""", re.I)
_CUT_TAG = re.compile(r"<(?:/|[a-z][a-z0-9]*+\s[^=]*+=)", re.I)  # at the end of a cut-off text
_URL = re.compile(r"(?<![a-z])(?:(?:https?|ftp)://|www\.)[!-~]*+", re.I)
_SITE = re.compile(  # a host without scheme, or a mail address; not `end.In`, where a space lacks
    r"[(\[\"']*+(?:[\w.+-]{1,64}@)?(?:[a-z0-9-]{1,63}\.)+"
    r"(?:com|org|net|edu|gov|info|biz|eu|fr|jp|nl|ru|uk|(?:com?|ac)\.[a-z]{2})"
    r"(?:[:/?#].*)?[.,;:!?)\]\"']*",
    re.I | re.DOTALL,
)
_NEGATION = re.compile(r"\b[a-z]{1,6}n['’]t\b", re.I)  # don't, isn't: function words all
_CLITIC = re.compile(r"(?<=\w)['’](?:s|re|ve|ll|d|m)\b", re.I)

_JOINERS = "\u200c\u200d"  # they shape letters in Persian and Indic scripts

_GLUED_WORDS = 1_000  # of a text that are looked at; encoders read about 256 tokens
_GLUED_LENGTH = range(6, 61)
_COMMON, _COMMON_SHORT = 20_000, 5_000  # ranks in wordninja's list of 126,134 words
_LINKS = {"of", "in", "on", "at", "to", "by", "my", "is", "or", "an", "the", "and", "for", "with"}
_ENDS_OF_WORDS = """
able ably ally ant ante anti arch auto bio cal est ful ian ible ier ing ish ism ist less like
ment most ness non post pre pro sub ted tion ton ville
"""
_AFFIXES = frozenset(_ENDS_OF_WORDS.split())


class _Translation(dict[int, str | None]):
    """A table for str.translate that grows with the characters it meets."""

    def __init__(self, replacement: Callable[[str], str | None]) -> None:
        super().__init__()
        self._replacement = replacement

    def __missing__(self, code: int) -> str | None:
        self[code] = self._replacement(chr(code))
        return self[code]


@_Translation
def _without_invisible(character: str) -> str | None:
    """White space becomes a space; invisible characters go, before letters are composed."""
    if character.isspace() or character == "\u200b":  # zero-width space parts words in Thai
        return " "
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs") and character not in _JOINERS
    selector = "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"
    return None if hidden or selector else character


@_Translation
def _words_only(character: str) -> str | None:
    """Letters and their marks stay; punctuation, digits, symbols part words."""
    kind = unicodedata.category(character)
    return character if kind[0] in "LM" or kind == "Nl" or character in _JOINERS else " "


def clean_text(raw: str) -> str:
    r"""Words of a raw text, one space between them, in any script.

    Drops HTML (also where it was escaped twice), URLs, file extensions, punctuation, digits and
    English stop words, and splits glued tags.

    >>> clean_text("The <b>Tiger&#39;s</b> lair\n&amp;amp; cave_02.JPG http://t.co/x #redfox")
    'Tiger lair cave red fox'
    >>> clean_text("Тигр в лесу, 虎と森!")
    'Тигр в лесу 虎と森'
    """
    text = _CLITIC.sub(" ", _NEGATION.sub(" ", _DOTTED.sub(" ", without_markup(raw))))
    words = [word.strip(_JOINERS) for word in text.translate(_words_only).split()]
    words = [part for at, word in enumerate(words) for part in _parts(word, at)]
    return " ".join(word for word in words if _has_meaning(word))


def without_markup(raw: str) -> str:
    """A raw text without HTML, URLs, sites and invisible characters; one space between words."""
    text = _URL.sub(" ", _strip_markup(raw))
    return " ".join(word for word in text.split() if "." not in word or not _SITE.fullmatch(word[:2048]))


def combine(title: str, description: str, tags: str) -> str:
    r"""All three texts of a sample as one raw text; what repeats an earlier part is left out.

    >>> combine("Red fox", "Red fox", "wildlife, snow")
    'Red fox\nwildlife, snow'
    """
    parts = dict.fromkeys(part.strip() for part in (title, description, tags))
    return "\n".join(part for part in parts if part)


def training_texts(manifest: Manifest) -> list[str]:
    """Cleaned text of every training sample, in order."""
    samples = manifest.samples.iloc[manifest.split("train")]
    columns = [samples[name] for name in ("title", "description", "tags")]
    return [clean_text(combine(*row)) for row in zip(*columns, strict=True)]


def training_fields(manifest: Manifest) -> dict[str, list[str]]:
    """Cleaned text of each field of every training sample, in order; fields that are all empty are left out."""
    samples = manifest.samples.iloc[manifest.split("train")]
    cleaned = {
        name: [clean_text(text) for text in samples[name]] for name in ("title", "description", "tags")
    }
    return {name: texts for name, texts in cleaned.items() if any(texts)}


def _strip_markup(raw: str) -> str:
    """Text without HTML, invisible characters and compatibility forms."""
    text = _MANY_AMPS.sub("&", raw)
    for _ in range(2):  # once for the page, once for a page that was escaped on its way
        text = html.unescape(_LONG_NUMBER.sub(" ", text))
    text = unicodedata.normalize("NFKC", text.translate(_without_invisible))
    for opening, closing, unclosed in _BLOCKS:
        text = _drop_blocks(text, opening, closing, drop_rest=unclosed == "drop")
    text = _TAG.sub(" ", text)
    last = text.rfind("<")
    if last >= 0 and ">" not in text[last:] and _CUT_TAG.match(text, last):
        text = text[:last]
    return text


def _drop_blocks(text: str, opening: re.Pattern[str], closing: re.Pattern[str], *, drop_rest: bool) -> str:
    parts: list[str] = []
    at = 0
    while start := opening.search(text, at):
        end = closing.search(text, start.end())
        if end is None:  # then there is none for any later opening either: stay linear
            if drop_rest:
                return " ".join([*parts, text[at : start.start()]])
            break
        parts.append(text[at : start.start()])
        at = end.end()
    return " ".join([*parts, text[at:]]) if parts else text[at:]


def _parts(word: str, at: int) -> Sequence[str]:
    return split_glued(word).split(" ") if at < _GLUED_WORDS and word.isascii() else (word,)


def _has_meaning(word: str) -> bool:
    """Whether a word is neither a function word nor an extension, and has a letter."""
    lower = word.lower()
    return lower not in _DROPPED and any(character.isalpha() for character in word)


@cache
def _ranks() -> dict[str, int]:
    """Words of wordninja's list by frequency, from 0."""
    import wordninja

    costs: dict[str, float] = wordninja.DEFAULT_LANGUAGE_MODEL._wordcost
    return {word: rank for rank, word in enumerate(sorted(costs, key=lambda word: costs[word]))}


@lru_cache(maxsize=100_000)
def split_glued(word: str) -> str:
    """Words of a tag without delimiters, by unigram frequency; other words as they are.

    Only ASCII letters that are no word themselves (of wordninja's list or WordNet, or the plural
    of one) are split, and only into common words: a rare name is better kept than shredded.

    >>> split_glued("goldengatebridge"), split_glued("Steinway"), split_glued("butterfly")
    ('golden gate bridge', 'Steinway', 'butterfly')
    """
    lower = word.lower()
    letters = len(word) in _GLUED_LENGTH and word.isascii() and word.isalpha()
    if not letters or lower in _ranks() or wordnet.is_lemma(lower):
        return word
    import wordninja

    parts: list[str] = wordninja.split(word)
    # `Steinway`: one capital at the start is a name more often than two glued words.
    named = word[0].isupper() and word[1:].islower() and len(parts) < 3
    return word if named or len(parts) < 2 or not _plausible(parts) else " ".join(parts)


def _plausible(parts: Sequence[str]) -> bool:
    """Whether every part is a common word, and not an ending or a beginning of one."""
    ranks = _ranks()
    for at, part in enumerate(word.lower() for word in parts):
        if part in _LINKS and 0 < at < len(parts) - 1:
            continue
        limit = _COMMON_SHORT if len(part) == 3 else _COMMON
        if len(part) < 3 or part in _AFFIXES or ranks.get(part, limit) >= limit:
            return False
    return True
