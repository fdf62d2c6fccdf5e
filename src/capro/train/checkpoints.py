"""Checkpoints: safetensors and JSON in one folder that appears whole; the last two are kept."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from capro.run.artefacts import CHECKPOINT_STATE, CHECKPOINT_TENSORS, read_weights, write_json, write_weights

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
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / f"{step:09d}"
        temporary, replaced = (self.folder / f".{step:09d}.{os.getpid()}.{end}" for end in ("new", "old"))
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        write_weights(temporary / CHECKPOINT_TENSORS, tensors)
        write_json(temporary / CHECKPOINT_STATE, {"key": self.key, **values})
        if target.exists():  # a rename cannot replace a folder that is not empty
            os.replace(target, replaced)
        os.replace(temporary, target)
        self._prune()

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest whole checkpoint of this key, or None."""
        for path in reversed(self._found()):
            values = self._read(path)
            if values is None:
                continue
            try:
                return read_weights(path / CHECKPOINT_TENSORS), values
            except (OSError, SafetensorError):
                continue
        return None

    def clear(self) -> None:
        """Remove them all: the stage's result has been written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _found(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("[0-9]*") if path.is_dir())

    def _read(self, path: Path) -> dict[str, Any] | None:
        """What a checkpoint holds, without its key; None if it is damaged or another training's."""
        try:
            values = json.loads((path / CHECKPOINT_STATE).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(values, dict) or values.pop("key", None) != self.key:
            return None
        return values

    def _prune(self) -> None:
        ours = [path for path in self._found() if self._read(path) is not None]
        for path in self._found():
            if path not in ours[-KEPT_CHECKPOINTS:]:
                shutil.rmtree(path, ignore_errors=True)
        for left in self.folder.glob(".[0-9]*"):  # of a run that was killed while writing
            shutil.rmtree(left, ignore_errors=True)
