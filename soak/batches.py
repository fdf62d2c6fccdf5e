"""Many small cases in one process, watched by another: neither a hang nor a crash of a library ends the attack."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from soak import child
from soak.attack import Attack, Broken, Outcome, choices, keep_failure

ALARM = 30  # seconds that one case may take
STUCK = 90  # seconds after which a case is hung in a library that no alarm reaches


class Hang(BaseException):
    """A case took too long; no handler for ordinary errors catches it."""


def strike_batch(
    attack: Attack, seed: int, numbers: range, folder: Path, failures: Path
) -> Iterator[Outcome | str]:
    """Do cases in a process; yields what each did, or a line about its failure."""
    left = numbers
    while left:
        here = folder / "batches" / f"{attack.name}-{left.start}"
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir(parents=True)
        process = child.processes().Process(
            target=_work, args=(attack.name, seed, left, str(here), str(failures)), daemon=True
        )
        process.start()
        stuck = _watch(process, here)
        rows = _rows(here)
        for row in rows:
            yield row["failure"] if "failure" in row else Outcome(row["faults"], row["inputs"])
        done = left.start + len(rows)
        if done < left.stop:
            reason = "hangs" if stuck else f"the process ended with {process.exitcode}"
            yield keep_failure(failures, attack.name, seed, done, here / "case", reason)
            done += 1
        shutil.rmtree(here, ignore_errors=True)
        left = range(done, left.stop)


def _watch(process: Any, here: Path) -> bool:
    """Wait until a process ends; one that does not get on is killed."""
    seen, since = -1, time.monotonic()
    while process.is_alive():
        process.join(0.2)
        size = (here / "rows").stat().st_size if (here / "rows").exists() else 0
        if size != seen:
            seen, since = size, time.monotonic()
        elif time.monotonic() - since > STUCK:
            process.kill()
            process.join()
            return True
    return False


def _rows(here: Path) -> list[dict[str, Any]]:
    path = here / "rows"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def _work(name: str, seed: int, numbers: range, folder: str, failures: str) -> None:
    """The process: one line for each case."""
    from soak.runner import ATTACKS

    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what libraries print about damaged files
    signal.signal(signal.SIGALRM, _alarm)
    here = Path(folder)
    attack = ATTACKS[name]
    strike = attack.ready(here / "common")
    with (here / "rows").open("w", encoding="utf-8", buffering=1) as rows:
        for number in numbers:
            case = here / "case"
            shutil.rmtree(case, ignore_errors=True)
            case.mkdir()
            signal.setitimer(signal.ITIMER_REAL, ALARM)
            row: dict[str, Any]
            try:
                found = strike(number, choices(name, seed, number), case)
                row = {"faults": found.faults, "inputs": found.inputs}
            except (Exception, Hang) as error:
                signal.setitimer(signal.ITIMER_REAL, 0)
                reason = str(error) if isinstance(error, Broken) else traceback.format_exc()
                first = f"{type(error).__name__}: {error}"
                row = {
                    "failure": keep_failure(
                        Path(failures),
                        name,
                        seed,
                        number,
                        case,
                        reason if isinstance(error, Broken) else f"{first}\n{reason}",
                    )
                }
            signal.setitimer(signal.ITIMER_REAL, 0)
            rows.write(json.dumps(row) + "\n")


def _alarm(*_: Any) -> None:
    raise Hang(f"takes more than {ALARM} s")
