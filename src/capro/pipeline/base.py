"""How a stage runs: skipped when fresh, on one rank or on all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from capro import assemble, launched
from capro.runs import Run, atomic_path
from capro.shards import wait_until
from capro.train.ranks import Ranks

Work = Callable[[Path], Mapping[str, Any] | None]


def stage(
    run: Run,
    name: str,
    work: Work,
    *,
    settings: Mapping[str, Any],
    inputs: Sequence[str] = (),
    force: bool = False,
    ranks: Ranks | None = None,
    training: bool = False,
) -> bool:
    """Run a stage; True if it was done, False if it was fresh.

    Args:
        run: The run.
        name: See ``Run.stage``, as for ``settings``, ``inputs`` and ``force``.
        work: What to do. With several ranks the main one's result counts.
        settings: Everything that decides the result, beside the inputs.
        inputs: Stages it reads.
        force: Do it even if it is fresh.
        ranks: All ranks work; None leaves it to the main one.
        training: The work exchanges tensors, so that a rank that fails cannot tell the others: they
            notice when its process ends. Any other work meets by ``Ranks.meet`` alone.
    """
    if launched.count() == 1:
        return run.stage(name, work, settings=settings, inputs=inputs, force=force)
    here = ranks or assemble.ranks_of(run.settings)

    def do(folder: Path) -> Mapping[str, Any] | None:
        here.exchanging = training
        result = work(folder)
        here.exchanging = False
        here.meet()
        return result

    def lead(folder: Path) -> Mapping[str, Any] | None:
        here.meet(True)  # under the lock: now the others may begin
        return do(folder)

    with here.together():
        if here.main:
            done = run.stage(name, lead, settings=settings, inputs=inputs, force=force)
            if not done:
                here.meet(False)
            here.meet((run.finished(name) or {}).get("fingerprint"))
        else:
            done = bool(here.meet()[0])
            if done and ranks is not None:
                do(run.folder(name))
            elif done:
                here.meet()
            _see(run, name, fingerprint=here.meet()[0])
        here.meet()
    return done


def _see(run: Run, name: str, *, fingerprint: str | None) -> None:
    """Until this rank sees that the main one has finished a stage."""

    def seen() -> bool:
        return (run.finished(name) or {}).get("fingerprint") == fingerprint

    file = run.folder(name) / "stage.json"
    wait_until(seen, f"{file}: rank 0 has written it, but this rank does not see it")


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """Write a Parquet table, whole or not at all."""
    with atomic_path(path) as temporary:
        frame.to_parquet(temporary, index=False)
