"""Artefacts of a finished run with a flipped bit, cut off or emptied, and the commands that read them.

A command must either stop with a message, or end with exactly what it gives undisturbed. After a message the way out
must work: `capro run` again, at worst after the stage's folder was deleted by hand. The log of decisions is what a
person made: its way out is a copy.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from soak import child
from soak.attack import Attack, Broken, Outcome, Strike
from soak.pipeline import KINDS, LOG, VOLATILE, Kind, Pipeline, difference, filled, pipeline, place, plain


@dataclass(frozen=True)
class Reader:
    """A command that reads a finished run, and what it gave undisturbed."""

    words: tuple[str, ...]  # RUN and OUT stand for folders
    out: Path | None  # the folder that it wrote
    printed: str


READERS = (
    ("run", "--run", "RUN", "--json"),
    ("evaluate", "RUN", "--json"),
    ("export", "RUN", "--out", "OUT", "--to", "csv"),
    ("export", "RUN", "--out", "OUT", "--to", "webdataset"),
    ("export-model", "RUN", "--out", "OUT", "--json"),
    ("report", "RUN", "--out", "OUT"),
    ("doctor", "RUN"),
)
ANSWER = "evaluate/details.json"  # of `capro evaluate`: `capro run` neither reads it nor makes it again
THRESHOLD = "threshold/"  # of `capro export-model`: it may be there or not


def _ready(folder: Path) -> Strike:
    lock, known = threading.Lock(), dict[Kind, list[Reader]]()

    def strike(number: int, rng: random.Random, empty: Path) -> Outcome:
        kind = KINDS[number % 2]
        made = pipeline(folder, kind)
        with lock:
            if kind not in known:
                known[kind] = _undisturbed(made, folder / kind / "undisturbed")
        readers, number = known[kind], number // 2
        # the first cases damage nothing: what differs then could not be compared
        how = rng.choice(sorted(DAMAGE)) if number >= len(readers) else "undamaged"
        return _case(made, readers[number % len(readers)], how, rng, empty)

    return strike


def _undisturbed(made: Pipeline, base: Path) -> list[Reader]:
    """What each command gives of a finished run."""
    base.mkdir()
    readers = []
    for number, words in enumerate(READERS):
        run = base / f"{number}" / "run"  # as long as the cases' names: both are in no result
        shutil.copytree(made.finished, run)
        ended = child.run(*filled(words, run))
        if ended.code:
            raise Broken(f"undisturbed, capro {words[0]} ended with {ended.code}: {ended.err}")
        readers.append(Reader(words, run.parent / "out", plain(ended.out, run.parent)))
    return readers


def _case(made: Pipeline, reader: Reader, how: str, rng: random.Random, empty: Path) -> Outcome:
    run = place(made.finished, empty)
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.name not in VOLATILE]
    log = run / LOG
    file = log if log.exists() and rng.random() < 0.2 else rng.choice(files)
    if how in DAMAGE:
        DAMAGE[how](file, rng)
    what = f"{file.relative_to(run)} {how}, capro {reader.words[0]}"
    ended = child.run(*filled(reader.words, run))
    if ended.hung or (ended.code and not ended.complained):
        raise Broken(f"{what}: exit {ended.code}: {ended.err}")
    if ended.code:
        _way_out(made, run, file, what, ended.err)
    elif reader.words[0] == "run":
        if said := difference(made.finished, run, leave_out=(ANSWER, THRESHOLD, LOG)):
            raise Broken(f"{what}: a wrong result in silence: {said}")
    else:
        _same(reader, empty, ended.out, what)
    return Outcome(faults=int(how in DAMAGE))


def _same(reader: Reader, empty: Path, printed: str, what: str) -> None:
    """Whether a command gave what it gives undisturbed; its own path is no difference."""
    out = empty / "out"
    if reader.out is not None and reader.out.exists():
        if not out.exists():
            raise Broken(f"{what}: wrote nothing")
        first, second = (_texts(folder) for folder in (reader.out, out))
        other = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
        if other:
            raise Broken(f"{what}: a wrong result in silence: {', '.join(other[:5])}")
    if plain(printed, empty) != reader.printed:
        raise Broken(f"{what}: a wrong result in silence: printed {printed[:300]}")


def _texts(out: Path) -> dict[str, bytes]:
    paths = [out] if out.is_file() else [path for path in sorted(out.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(out)): plain(path.read_bytes().decode("latin-1"), out.parent).encode("latin-1")
        for path in paths
    }


def _way_out(made: Pipeline, run: Path, file: Path, what: str, said: str) -> None:
    """After the message: the run becomes whole again."""
    if file == run / LOG:
        shutil.copyfile(made.finished / LOG, file)  # no stage makes it again
    again = child.run("run", "--run", run)
    if again.code == 2 and again.complained and file.parent != run:
        shutil.rmtree(run / file.relative_to(run).parts[0])
        again = child.run("run", "--run", run)
    if again.code and file.parent == run and again.complained:
        return  # run.yaml: its settings are in no other place, and the message says so
    if again.code:
        raise Broken(f"{what}: no way out: exit {again.code}: {again.err}\nfirst it said: {said}")
    answer = file == run / ANSWER
    if answer:
        child.run("evaluate", run)
    if differs := difference(made.finished, run, leave_out=(THRESHOLD,) if answer else (ANSWER, THRESHOLD)):
        raise Broken(f"{what}: after its way out: {differs}")


def _flip(file: Path, rng: random.Random) -> None:
    content = bytearray(file.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def _cut(file: Path, rng: random.Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content))] if content else b"")


DAMAGE: dict[str, Callable[[Path, random.Random], object]] = {
    "with a flipped bit": _flip,
    "cut off": _cut,
    "emptied": lambda file, _: file.write_bytes(b""),
    "with more bytes": lambda file, rng: file.write_bytes(file.read_bytes() + rng.randbytes(9)),
    "overwritten with zeros": lambda file, _: file.write_bytes(bytes(file.stat().st_size)),
}

ATTACK = Attack("damage", goal=500, share=3, ready=_ready)
