"""Runs attacks within a time and counts what capro survived."""

from __future__ import annotations

import datetime
import itertools
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

from soak.attack import Attack, Broken, Outcome, Strike, Tally, choices, keep_failure
from soak.batches import strike_batch

MODULES = (
    "kills",
    "together",
    "disks",
    "damage",
    "images",
    "tables",
    "tars",
    "configs",
    "model_folders",
    "texts",
)
ATTACKS: dict[str, Attack] = {
    attack.name: attack for name in MODULES for attack in [import_module(f"soak.{name}").ATTACK]
}
MOST_FAILURES = 50  # of one attack: more say nothing new


def soak(
    names: Sequence[str],
    *,
    minutes: float,
    seed: int,
    jobs: int,
    failures: Path,
    at: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Tally]:
    """Run attacks one after the other; each has its share of the time and stops at its goal."""
    chosen = [ATTACKS[name] for name in names]
    tallies = []
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        left, begin = minutes * 60, time.monotonic()
        for number, attack in enumerate(chosen):
            share = attack.share / sum(each.share for each in chosen[number:])
            limit = share * (left - (time.monotonic() - begin))
            say(f"{attack.name}: {limit / 60:.1f} minutes")
            tally = _attack(attack, Path(temporary), limit, seed, jobs, failures, at)
            say(
                f"{attack.name}: {tally.faults} faults, {tally.inputs} inputs, {len(tally.failures)} failures"
            )
            tallies.append(tally)
    return tallies


def _attack(
    attack: Attack, folder: Path, seconds: float, seed: int, jobs: int, failures: Path, at: int | None
) -> Tally:
    tally, begin = Tally(attack.name), time.monotonic()

    def enough() -> bool:
        late = time.monotonic() - begin > seconds
        return late or tally.done >= attack.goal or len(tally.failures) >= MOST_FAILURES

    def batches(starts: Iterator[int]) -> None:
        for start in starts:
            numbers = range(start, start + (1 if at is not None else attack.batch))
            for found in strike_batch(attack, seed, numbers, folder, failures):
                tally.add(found) if isinstance(found, Outcome) else tally.failures.append(found)
            if enough():
                return

    def cases(starts: Iterator[int]) -> None:
        for number in starts:
            _case(attack, strike, tally, folder, seed, number, failures)
            if enough():
                return

    work = batches if attack.batch else cases
    strike = attack.ready(folder) if not attack.batch else None
    starts = iter([at]) if at is not None else itertools.count(0, attack.batch or 1)
    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(work, starts) for _ in range(jobs)]:
            done.result()
    tally.seconds = time.monotonic() - begin
    return tally


def _case(
    attack: Attack, strike: Strike, tally: Tally, folder: Path, seed: int, number: int, failures: Path
) -> None:
    place = folder / "cases" / f"{attack.name}-{number}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        tally.add(strike(number, choices(attack.name, seed, number), place))
    except Broken as broken:
        tally.failures.append(keep_failure(failures, attack.name, seed, number, place, str(broken)))
    except Exception:  # an attack that breaks is a failure too
        tally.failures.append(
            keep_failure(failures, attack.name, seed, number, place, traceback.format_exc())
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)


def table(tallies: Sequence[Tally], seed: int) -> str:
    """The result as a table in Markdown."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    rows = [f"{now}, seed {seed}", "", "| attack | cases | faults | inputs | failures | minutes |"]
    rows.append("|---|---:|---:|---:|---:|---:|")
    for tally in tallies:
        counts = f"{tally.cases:,} | {tally.faults:,} | {tally.inputs:,} | {len(tally.failures):,}"
        rows.append(f"| {tally.name} | {counts} | {tally.seconds / 60:.1f} |")
    return "\n".join(rows)
