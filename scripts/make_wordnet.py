"""Make src/capro/text/wordnet.txt.xz from Princeton's WordNet 3.0 files (Debian: wordnet-base).

    python scripts/make_wordnet.py [--source /usr/share/wordnet] [--target src/capro/text]

The table is UTF-8 text in seven parts, an empty line between them, items between spaces. The first
five have one line per noun synset, in the order of offsets (columns compress better than rows):

1. offset
2. number of the lexicographer file
3. lemmas
4. offsets of hypernyms and instance hypernyms; hyponyms are the inverse relation, so not stored.
   `-` for none, since an empty line would end the part
5. gloss
6. one word with several senses per line: the word, then its offsets in WordNet's order. The sense
   of every other word follows from part 3.
7. one irregular plural per line: the plural, then its singulars.
"""

from __future__ import annotations

import argparse
import lzma
from collections.abc import Iterator
from pathlib import Path

HYPERNYMS = ("@", "@i")


def records(path: Path) -> Iterator[str]:
    """The lines of a WordNet database file after its licence, whose lines start with a space."""
    with path.open(encoding="utf-8") as file:
        yield from (line.rstrip() for line in file if not line.startswith(" "))


def synset_row(line: str) -> tuple[str, str, str, str, str]:
    """Parts 1 to 5 of one line of data.noun.

    The line is `offset lex n count (lemma id)* count (pointer offset pos source)* | gloss`, the
    count of lemmas being hexadecimal.
    """
    head, gloss = line.split(" | ", 1)
    fields = head.split()
    after_lemmas = 4 + 2 * int(fields[3], 16)
    lemmas = fields[4:after_lemmas:2]
    pointers = fields[after_lemmas + 1 :]
    hypernyms = [pointers[at + 1] for at in range(0, len(pointers), 4) if pointers[at] in HYPERNYMS]
    return fields[0], fields[1], " ".join(lemmas), " ".join(hypernyms) or "-", gloss.strip()


def sense_row(line: str) -> str | None:
    """One line of index.noun as one line of part 6, None for a word with one sense.

    The line is `word n senses pointers (pointer)* senses tagged (offset)*`.
    """
    fields = line.split()
    offsets = fields[6 + int(fields[3]) :]
    return " ".join([fields[0], *offsets]) if len(offsets) > 1 else None


def build(source: Path) -> str:
    """The whole table as text."""
    synsets = sorted(synset_row(line) for line in records(source / "data.noun"))
    senses = sorted(row for line in records(source / "index.noun") if (row := sense_row(line)))
    plurals = sorted(" ".join(line.split()) for line in records(source / "noun.exc"))
    parts = [*zip(*synsets, strict=True), senses, plurals]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def licence(source: Path) -> str:
    """Princeton's licence as it stands, numbered, at the head of data.noun."""
    with (source / "data.noun").open(encoding="utf-8") as file:
        head = [line.strip() for line in file if line.startswith(" ")]
    lines = [line.partition(" ")[2].strip() for line in head]
    return "\n".join(lines).strip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--source", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--target", type=Path, default=Path(__file__).parents[1] / "src" / "capro" / "text")
    args = parser.parse_args()
    table = args.target / "wordnet.txt.xz"
    table.write_bytes(lzma.compress(build(args.source).encode(), preset=9 | lzma.PRESET_EXTREME))
    (args.target / "WORDNET-LICENSE").write_text(licence(args.source), encoding="utf-8")
    print(f"{table}: {table.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
