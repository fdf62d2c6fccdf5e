"""Disks that are full, read-only or broken from the k-th write on, and files that cannot grow.

A command either does its work or stops with a message for its user; when the disk is well again, the same command ends
with the bytes of a run that nobody disturbed.
"""

from __future__ import annotations

import errno
import random
from pathlib import Path

from soak import child
from soak.attack import Attack, Broken, Outcome, Strike
from soak.faults import Fault
from soak.pipeline import KINDS, Step, pipeline, place

CODES = (errno.ENOSPC, errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT)


def _ready(folder: Path) -> Strike:
    def strike(number: int, rng: random.Random, empty: Path) -> Outcome:
        made = pipeline(folder, KINDS[number % 2])
        points = made.points
        if number // 2 < len(points):
            step, at = points[number // 2]
        else:
            step = rng.choice(made.steps)
            at = rng.randint(1, step.moments)
        run = place(step.before, empty)
        if number % 3 == 2:
            limit = rng.choice((4_000, 20_000, 100_000, 1_000_000))
            return _check(
                step, run, child.run(*step.command(run), file_limit=limit), f"files of {limit} bytes"
            )
        code = rng.choice(CODES)
        ended = child.run(*step.command(run), fault=Fault(step.attacked(run), "error", at, code))
        return _check(step, run, ended, f"{errno.errorcode[code]} from write {at} on")

    return strike


def _check(step: Step, run: Path, ended: child.Ended, what: str) -> Outcome:
    if ended.hung or (ended.code and not ended.complained):
        raise Broken(f"capro {step.words[0]}, {what}: exit {ended.code}: {ended.err}")
    if ended.code and str(run.parent) not in ended.err:
        raise Broken(f"capro {step.words[0]}, {what}: the message names no file: {ended.err}")
    again = step.goes_on(run)
    if again and again.code:
        raise Broken(f"capro {step.words[0]} does not go on after {what}: exit {again.code}: {again.err}")
    if said := step.differs(run):
        raise Broken(f"capro {step.words[0]} after {what}: {said}")
    return Outcome(faults=int(ended.code != 0))


ATTACK = Attack("disks", goal=1000, share=3, ready=_ready)
