"""Kills: at every write of every command, at random moments, with SIGTERM and SIGINT; then the command goes on.

Whatever was killed, the same command must end with the bytes of a run that nobody disturbed.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path

from soak import child
from soak.attack import Attack, Broken, Outcome, Strike
from soak.faults import Fault
from soak.pipeline import Step, difference, pipeline, place

WAYS = ("moment", "moment", "write", "torn", "SIGTERM", "SIGINT")


def _ready(folder: Path) -> Strike:
    made = pipeline(folder)
    points = made.points

    def strike(number: int, rng: random.Random, empty: Path) -> Outcome:
        if number < 2 * len(points):  # every write once by a kill, once with a file that is torn
            step, at = points[number // 2]
            return _case(step, empty, rng, first=("torn" if number % 2 else "write", at))
        return _case(rng.choice(made.steps), empty, rng)

    return strike


def _case(step: Step, empty: Path, rng: random.Random, first: tuple[str, int] | None = None) -> Outcome:
    run = place(step.before, empty)
    kills = 0
    for number in range(rng.choice((1, 1, 2, 3))):
        way, at = first if first and not number else (rng.choice(WAYS), rng.randint(1, step.moments))
        ended = _disturbed(step, run, way, at, rng)
        if ended.hung:
            raise Broken(f"capro {step.words[0]} hangs after {way}")
        if ended.crashed:
            raise Broken(f"capro {step.words[0]}, {way} at write {at}: {ended.err}")
        if ended.code == 0:
            break
        kills += 1
    ended = child.run(*step.command(run))
    if ended.code:
        raise Broken(f"capro {step.words[0]} does not go on after a kill (exit {ended.code}): {ended.err}")
    if said := difference(step.after, run):
        raise Broken(f"capro {step.words[0]} after {kills} kills: {said}")
    return Outcome(faults=kills)


def _disturbed(step: Step, run: Path, way: str, at: int, rng: random.Random) -> child.Ended:
    if way in ("write", "torn"):
        fault = Fault(str(run), "kill" if way == "write" else "torn", at, seed=rng.randrange(2**30))
        return child.run(*step.command(run), fault=fault)
    number = {"moment": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}[way]
    command = child.Command(step.command(run))
    command.signal_after(rng.uniform(0.05, step.seconds), number)
    return command.wait()


ATTACK = Attack("kills", goal=2000, share=16, ready=_ready)
