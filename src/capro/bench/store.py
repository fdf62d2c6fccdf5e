"""Runs that share their stages: a stage lives once in a store, under its fingerprint.

    DIR/store/STAGE/FINGERPRINT/   artefacts of a stage
    DIR/runs/NAME/STAGE            link to one of them

A fingerprint covers a stage's settings and inputs, so two variants that agree on a stage get the
same folder: one scan, one pre-training per seed, one graph. Nothing is copied, and a stage that was
interrupted goes on in the folder where it stopped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from capro.config import Settings
from capro.errors import RunError
from capro.pipeline import files
from capro.pipeline.artefacts import FINISHED
from capro.pipeline.checksums import read_sealed
from capro.pipeline.locks import alone_in
from capro.pipeline.run import Run


@dataclass(frozen=True)
class SharedRun(Run):
    """A run directory whose stage folders are links into a store.

    Args:
        path: Run directory.
        settings: Of this variant.
        store: Where stages live.
        given: Run directories made elsewhere; stages of theirs with a wanted fingerprint are taken.
    """

    store: Path = Path()
    given: tuple[Path, ...] = ()

    @staticmethod
    def make(path: Path, settings: Settings, *, store: Path, given: Sequence[Path] = ()) -> SharedRun:
        """Make or reopen the run directory of a variant."""
        run = SharedRun(path, settings, store, tuple(given))
        path.mkdir(parents=True, exist_ok=True)
        run.save_settings()
        return run

    def prepare_folder(self, stage: str, key: str) -> None:
        """Link the stage's folder to the shelf that the fingerprint names."""
        shelf = self.store / stage / key
        if read_sealed(shelf / FINISHED) is None:
            self._take(stage, shelf)
        files.make_folder(shelf)
        _link(self.path / stage, shelf)

    def workplace(self, stage: str) -> Path:
        """The shelf: it belongs to one fingerprint, so that there is no older result in it."""
        return self.folder(stage)

    def _take(self, name: str, shelf: Path) -> None:
        """Fill a shelf from a given run that has the stage with the same fingerprint."""
        for run in self.given:
            done = read_sealed(run / name / FINISHED)
            if done is not None and done["fingerprint"] == shelf.name:
                shutil.rmtree(shelf, ignore_errors=True)
                partial = shelf.with_name(f".{shelf.name}.tmp")
                shutil.rmtree(partial, ignore_errors=True)
                shutil.copytree(run / name, partial, copy_function=_link_or_copy)
                files.sync_tree(partial)
                files.rename(partial, shelf)
                self.event("taken", stage=name, fingerprint=shelf.name, run=str(run))
                return


def _link_or_copy(source: str, target: str) -> str:
    """A hard link: artefacts are replaced, never changed in place. A copy across file systems."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _link(link: Path, shelf: Path) -> None:
    """Point a link at a shelf."""
    wanted = os.path.relpath(shelf.resolve(), link.parent.resolve())
    if link.is_symlink():
        if os.readlink(link) == wanted:
            return
        link.unlink()
    elif link.exists():
        raise RunError(f"{link}: not a link", hint="give an empty folder to --run")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(wanted)


def only_one(folder: Path) -> AbstractContextManager[None]:
    """One benchmark at a time works in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return alone_in(folder, "capro bench is working there")
