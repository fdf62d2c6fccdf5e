"""Checkpoints: safetensors and JSON in one folder that appears whole; the last two are kept.

The JSON holds a hash of the tensors and of itself: a damaged checkpoint is passed over.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from capro.pipeline import files
from capro.pipeline.artefacts import (
    CHECKPOINT_STATE,
    CHECKPOINT_TENSORS,
    read_json,
    read_weights,
    write_json,
    write_weights,
)
from capro.pipeline.checksums import is_sealed, sealed, sha256_of
from capro.pipeline.files import writing

KEPT_CHECKPOINTS = 2


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one stage.

    Args:
        folder: Where they go.
        key: Fingerprint of everything that decides the training; others' checkpoints are ignored,
            and removed as soon as this training has one of its own.
    """

    folder: Path
    key: str

    def save(self, step: int, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Write a checkpoint of a step: a temporary folder, then one rename."""
        with writing(self.folder):
            files.make_folder(self.folder)
        target = self.folder / f"{step:09d}"
        temporary, replaced = (self.folder / f".{step:09d}.{os.getpid()}.{end}" for end in ("new", "old"))
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        write_weights(temporary / CHECKPOINT_TENSORS, tensors)
        tensors_hash = sha256_of(str(temporary / CHECKPOINT_TENSORS))
        state = {"key": self.key, "tensors": tensors_hash, "values": values}
        write_json(temporary / CHECKPOINT_STATE, sealed(state))
        if target.exists():  # a rename cannot replace a folder that is not empty
            files.rename(target, replaced)
        files.rename(temporary, target)
        self._prune()

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest whole checkpoint of this key, or None."""
        for path in reversed(self._found()):
            state, file = self._read(path), path / CHECKPOINT_TENSORS
            if state is None or not file.exists() or sha256_of(str(file)) != state["tensors"]:
                continue
            return read_weights(file), dict(state["values"])
        return None

    def _found(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("[0-9]*") if path.is_dir())

    def _read(self, path: Path) -> dict[str, Any] | None:
        """The state of a checkpoint; None if it is damaged or another training's."""
        try:
            state = read_json(path / CHECKPOINT_STATE)
        except (OSError, ValueError):
            return None
        return state if is_sealed(state) and state["key"] == self.key else None

    def _prune(self) -> None:
        ours = [path for path in self._found() if self._read(path) is not None]
        for path in self._found():
            if path not in ours[-KEPT_CHECKPOINTS:]:
                shutil.rmtree(path, ignore_errors=True)
        for left in self.folder.glob(".[0-9]*"):  # of a run that was killed while writing
            shutil.rmtree(left, ignore_errors=True)
