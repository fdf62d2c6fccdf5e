"""Checkpoints: safetensors and JSON in one folder that appears whole; the last two are kept."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from capro.runs import write_json

KEPT = 2


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one stage.

    Args:
        folder: Where they go.
        key: Fingerprint of everything that decides the training; others' checkpoints are ignored.
    """

    folder: Path
    key: str

    def save(self, step: int, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Write a checkpoint of a step: a temporary folder, then one rename."""
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / f"{step:09d}"
        temporary = self.folder / f".{step:09d}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        owned = {
            name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()
        }
        save_file(owned, temporary / "tensors.safetensors")
        write_json(temporary / "state.json", {"key": self.key, **values})
        _sync(temporary)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(temporary, target)
        self._prune()

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest whole checkpoint of this key, or None."""
        for path in reversed(self._found()):
            try:
                values = json.loads((path / "state.json").read_text("utf-8"))
            except (OSError, ValueError):
                continue
            if values.pop("key", None) == self.key:
                return load_file(path / "tensors.safetensors"), values
        return None

    def clear(self) -> None:
        """Remove them all: the stage's result has been written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _found(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("[0-9]*") if path.is_dir())

    def _prune(self) -> None:
        for old in self._found()[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        for left in self.folder.glob(".[0-9]*"):  # of a run that was killed while writing
            shutil.rmtree(left, ignore_errors=True)


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
