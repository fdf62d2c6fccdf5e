"""Kills: at every write of the commands of two pipelines, at random moments, with SIGTERM and SIGINT; then it goes on.

Whatever was killed, the same command must end with the bytes of a run that nobody disturbed.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path

from soak import child
from soak.attack import Attack, Broken, Outcome, Strike
from soak.faults import Fault
from soak.pipeline import KINDS, Step, pipeline, place

WAYS = ("moment", "moment", "write", "torn", "SIGTERM", "SIGINT")


def _ready(folder: Path) -> Strike:
    def strike(number: int, rng: random.Random, empty: Path) -> Outcome:
        made = pipeline(folder, KINDS[number % 2])
        points, at = made.points, number // 2
        if at < 2 * len(points):  # every write once by a kill, once with a file that is torn
            step, moment = points[at // 2]
            return _case(step, empty, rng, first=("torn" if at % 2 else "write", moment))
        return _case(rng.choice(made.steps), empty, rng)

    return strike


def _case(step: Step, empty: Path, rng: random.Random, first: tuple[str, int] | None = None) -> Outcome:
    run = place(step.before, empty)
    kills = 0
    for number in range(rng.choice((1, 1, 2, 3))):
        if step.is_out(run):
            break
        way, at = first if first and not number else (rng.choice(WAYS), rng.randint(1, step.moments))
        ended = _disturbed(step, run, way, at, rng)
        if ended.hung:
            raise Broken(f"capro {step.words[0]} hangs after {way}")
        if ended.crashed:
            raise Broken(f"capro {step.words[0]}, {way} at write {at}: {ended.err}")
        if ended.code == 0:
            break
        kills += 1
    again = step.goes_on(run)
    if again and again.code:
        raise Broken(f"capro {step.words[0]} does not go on after a kill (exit {again.code}): {again.err}")
    if said := step.differs(run):
        raise Broken(f"capro {step.words[0]} after {kills} kills: {said}")
    return Outcome(faults=kills)


def _disturbed(step: Step, run: Path, way: str, at: int, rng: random.Random) -> child.Ended:
    if way in ("write", "torn"):
        fault = Fault(step.attacked(run), "kill" if way == "write" else "torn", at, seed=rng.randrange(2**30))
        return child.run(*step.command(run), fault=fault)
    number = {"moment": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}[way]
    command = child.Command(step.command(run))
    command.signal_after(rng.uniform(0.05, step.seconds), number)
    return command.wait()


ATTACK = Attack("kills", goal=2000, share=16, ready=_ready)
