"""What each rank runs in test_distributed: toys trained together, their ends written to a folder.

torchrun --nproc_per_node 2 tests/train/two_ranks.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from capro.config import Settings
from capro.errors import CaproError
from capro.pipeline.ranks import Ranks, leave, ranks_of
from capro.train.checkpoints import Checkpoints
from tests.train.toys import Toy

# n is odd, so that ranks have different numbers of samples; drop and relabel happen
TOYS = {
    "features": Toy(n=23, settings={"gamma": 0.55, "epochs": 4}),
    "several": Toy(n=23, multi=True, settings={"gamma": 0.55, "update_every": 0}),
    "scc": Toy(n=23, settings={"gamma": 0.55, "reference": "scc", "policy": "mopro"}),
    "images": Toy("full", n=15, batch_norm=False, settings={"frozen_epochs": 1, "epochs": 2}),
}
STATISTICS = Toy("full", n=14, settings={"frozen_epochs": 0, "epochs": 2, "update_every": 0})


def write(path: Path, found: dict[str, Any]) -> None:
    history = found.pop("history")
    save_file({name: value.contiguous() for name, value in found.items()}, path)
    path.with_suffix(".json").write_text(json.dumps(history))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = ranks_of(Settings())
    for name, toy in TOYS.items():
        write(folder / f"{name}{ranks.index}.safetensors", toy.trained(ranks))
    write(folder / f"statistics{ranks.index}.safetensors", STATISTICS.trained(ranks))
    resume(folder, ranks)
    gathered = ranks.gather(torch.full((1 + ranks.index, 2), float(ranks.index)), [1, 2])
    told: dict[str, Any] = {"ranks": ranks.count, "gathered": gathered.tolist()}
    told["files"] = sorted(path.name for path in (folder / f"only{ranks.index}").glob("*"))
    try:
        Toy(n=1, classes=1).trained(ranks)
    except CaproError as error:
        told["error"] = str(error)
    (folder / f"told{ranks.index}.json").write_text(json.dumps(told))
    ranks.exchange()


def resume(folder: Path, ranks: Ranks) -> None:
    """Both ranks stop within an epoch, at once, and go on; checkpoints are due on one rank only."""
    toy = TOYS["features"]
    # each rank is given a folder of its own to write to: only the main one's may exist
    mine = folder / f"only{ranks.index}"
    toy.trained(ranks, checkpoints=Checkpoints(mine, "key"), checkpoint_minutes=1e-9)
    minutes = 1e-9 if ranks.main else 1e9
    store = Checkpoints(folder / "shared", "key")

    def log(_row: Any, step: int) -> None:
        if step == 6:
            raise InterruptedError

    try:
        toy.trained(ranks, checkpoints=store, checkpoint_minutes=minutes, log=log)
    except InterruptedError:
        ranks.exchange()
        found = toy.trained(ranks, checkpoints=store, checkpoint_minutes=minutes)
        write(folder / f"resumed{ranks.index}.safetensors", found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave(0)
