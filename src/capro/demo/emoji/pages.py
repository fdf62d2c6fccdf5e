"""Texts around a picture, in the manner of web pages: CLDR's words, markup, file names, chatter."""

from __future__ import annotations

from typing import Any

import numpy as np

from capro.demo.emoji import emoji_table

# {name}, {a}, {b}: the emoji shown and two of its keywords; {word}: the query; {n}: any number.
TITLES = (
    "{name} | {a}, {b} - image {n}.jpg",
    "{word}: {name}",
    "{name} - free {word} pictures",
    "IMG_{n}.JPG {name}",
    "<b>{name}</b> &amp; {a} | {word}",
    "{word} ({name}, {a})",
    "{word}",
)
DESCRIPTIONS = (
    "A picture of {word}: {name}, {a} and {b}.",
    "<p>Everything about {a}, {b} and {word}.</p>",
    "See https://pictures.example/{n}.html for more of {name} ({a}).",
    "{name}<br/>{a} / {b} / {word}",
    "Our {word} page shows a {name}.\nKeywords:\t{a}, {b}",
    "",
)


def page(rng: np.random.Generator, words: list[str], codes: list[str]) -> dict[str, Any]:
    """Title, description and tags of a page found by `words` that shows the emoji `codes`."""
    emoji = [emoji_table()[code] for code in codes]
    main = emoji[0]
    # Keywords that only repeat the query add nothing; every emoji of the demo has others or a name
    informative = [word for word in main.keywords if word not in words] or [main.name]
    a, b = (informative[i] for i in rng.integers(len(informative), size=2))
    fields = {"name": main.name, "a": a, "b": b, "n": f"{rng.integers(10_000):04d}"}
    title = TITLES[rng.integers(len(TITLES))].format(word=words[0], **fields)
    description = DESCRIPTIONS[rng.integers(len(DESCRIPTIONS))].format(word=words[0], **fields)
    for word, other in zip(words[1:], emoji[1:], strict=False):
        description += f" With {word} ({other.name})."
    tags = [*words, *(one for e in emoji for one in e.keywords if rng.random() < 0.5)]
    if rng.random() < 0.2:
        tags = ["".join(main.name.split()), *tags]  # glued: computermouse
    return {"title": title, "description": description.strip(), "tags": tags[:6]}
