"""How a stage runs: skipped when fresh, on one rank or on all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from capro import assemble, launched
from capro.runs import Run, atomic_path
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
) -> bool:
    """Run a stage. With several ranks the main one alone works, unless ``ranks`` says all do."""
    if launched.count() == 1:
        return run.stage(name, work, settings=settings, inputs=inputs, force=force)
    here = ranks or assemble.ranks_of(run.settings)
    fresh = torch.tensor([run.is_fresh(name, settings=settings, inputs=inputs) and not force])
    done = not bool(here.gather(fresh.to(here.accelerator.device), [1] * here.count)[0])
    if here.main:
        run.stage(name, work, settings=settings, inputs=inputs, force=force)
    elif done and ranks is not None:
        work(run.folder(name))
    here.wait()
    return done


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """Write a Parquet table, whole or not at all."""
    with atomic_path(path) as temporary:
        frame.to_parquet(temporary, index=False)
