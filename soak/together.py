"""Two processes in one run directory, and run directories that are moved between commands."""

from __future__ import annotations

import random
from pathlib import Path

from soak import child
from soak.attack import Attack, Broken, Outcome, Strike
from soak.pipeline import KINDS, Pipeline, pipeline, place


def _ready(folder: Path) -> Strike:
    def strike(number: int, rng: random.Random, empty: Path) -> Outcome:
        made = pipeline(folder, KINDS[number % 2])
        return _moved(made, rng, empty) if number // 2 % 4 == 0 else _two(made, rng, empty)

    return strike


def _two(made: Pipeline, rng: random.Random, empty: Path) -> Outcome:
    """The same command twice at once: one works, the other is refused or finds the work done."""
    step = rng.choice(made.steps)
    run = place(step.before, empty)
    first = child.Command(step.command(run))
    if rng.random() < 0.7:
        first.signal_after(rng.uniform(0, step.seconds), 0)  # signal 0 asks whether it lives
    second = child.Command(step.command(run))
    ends = [first.wait(), second.wait()]
    for ended in ends:
        if ended.hung or (ended.code and not ended.complained):
            raise Broken(f"two of capro {step.words[0]} at once: exit {ended.code}: {ended.err}")
    if all(ended.code for ended in ends):
        raise Broken(f"two of capro {step.words[0]} at once, both refused: {ends[0].err}{ends[1].err}")
    if said := step.differs(run):
        raise Broken(f"two of capro {step.words[0]} at once: {said}")
    return Outcome(faults=1)


def _moved(made: Pipeline, rng: random.Random, empty: Path) -> Outcome:
    """The directory has another name for each of some commands in a row."""
    inside = [step for step in made.steps if step.out is None]  # the name of the run is in what leaves it
    begin = rng.randrange(1, len(inside))
    steps = inside[begin : begin + 2]
    run = place(steps[0].before, empty)
    for number, step in enumerate(steps):
        moved = empty / f"moved {number}" / "to ü"
        moved.parent.mkdir()
        run = run.rename(moved)
        ended = child.run(*step.command(run))
        if ended.code:
            raise Broken(f"capro {step.words[0]} in a moved directory: exit {ended.code}: {ended.err}")
        if said := step.differs(run):
            raise Broken(f"capro {step.words[0]} in a moved directory: {said}")
    return Outcome(faults=len(steps))


ATTACK = Attack("together", goal=200, share=1, ready=_ready)
