"""Every stage with one launched process and with several: time, ratio, and whether the files are the same.

    python benchmarks/ranks.py [--samples 20000] [--classes 50] [--ranks 2] [--keep FOLDER]

The same run as `ray_cluster.py` does, and its export to tars, by `torchrun`: once with one rank and once with several,
every rank with one thread. To be run on as many quiet cores as ranks. "main" in the table are stages whose work the
main rank does alone. Bounds (exit code 1): every other stage takes at most 0.65 of one rank's time with two ranks
(a stage below two seconds is not judged; the export counts with its start); every file is the same, but for what
trainings make, whose sums two ranks add up in another order: numbers differ by 1e-3 at most.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from capro.pipeline.run import Run
from capro.stages import PLAN
from million import make_data, place
from ray_cluster import ONE_THREAD, same_files, settings_for

ALONE = ("classes", "pixels", "match", "evaluate")  # on the main rank
BOUND, LEAST, CLOSE = 0.65, 2.0, 1e-3


def launched(ranks: int, *command: str) -> float:
    """Seconds of a command of capro by so many ranks."""
    begin = time.monotonic()
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "--", "capro", *command],
        env={**os.environ, **ONE_THREAD}, stdout=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"FAIL capro {command[0]} with {ranks} ranks: exit code {done.returncode}")
    return time.monotonic() - begin


def whole_run(folder: Path, overrides: list[str], ranks: int) -> dict[str, float]:
    """Seconds of each stage and of the export."""
    shutil.rmtree(folder, ignore_errors=True)
    options = [part for one in overrides for part in ("--set", one)]
    launched(ranks, "run", "--run", str(folder / "run"), "--preset", "small", *options)
    run = Run.open(folder / "run")
    seconds = {
        stage.name: float(done["seconds"]) for stage in PLAN if (done := run.finished(stage.name)) is not None
    }
    export = launched(
        ranks, "export", str(folder / "run"), "--to", "webdataset", "--out", str(folder / "export")
    )
    return {**seconds, "export": export}


def numbers(path: Path) -> NDArray[Any]:
    """All numbers of a file that a training makes: weights, losses by epoch, scores of test samples."""
    if path.suffix == ".safetensors":
        return np.concatenate([each.ravel() for _, each in sorted(load_file(path).items())])
    if path.suffix == ".json":
        return np.array([value for row in json.loads(path.read_text()) for _, value in sorted(row.items())])
    found: NDArray[Any] = np.load(path)
    return found


def far(one: Path, other: Path, names: list[str]) -> list[str]:
    """Of files that differ, those that no training made, and those whose numbers are not close."""
    made = ("run/pretrain/", "run/finetune/", "run/evaluate/")
    return [
        name
        for name in names
        if not name.startswith(made) or abs(numbers(one / name) - numbers(other / name)).max() > CLOSE
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a folder for data and runs; else they go")
    a = parser.parse_args()
    with place(a.keep) as folder:
        data = folder / f"data-{a.samples}-{a.classes}"
        if not data.exists():
            make_data(data, a.samples, classes=a.classes)
        overrides = [*settings_for(data), "scan.workers=1"]
        one = whole_run(folder / "one", overrides, 1)
        several = whole_run(folder / "several", overrides, a.ranks)
        late = []
        print(f"{a.samples:,} samples, {a.classes} classes\n")
        print(f"| stage | one rank, s | {a.ranks} ranks, s | ratio |\n|---|---:|---:|---:|")
        for stage, seconds in one.items():
            ratio = several[stage] / max(seconds, 0.01)
            shared = stage not in ALONE
            if shared and seconds >= LEAST and ratio > BOUND:
                late.append(stage)
            print(
                f"| {stage}{'' if shared else ', main'} | {seconds:.1f} | {several[stage]:.1f} | {ratio:.2f} |"
            )
        different = same_files(folder / "one", folder / "several")
        wrong = far(folder / "one", folder / "several", different)
    print(f"\n{len(different)} files differ, {len(wrong)} of them by more than rounding: {wrong}")
    print(f"{'FAIL' if late else 'ok  '} above {BOUND}: {', '.join(late) or 'no stage'}")
    return int(bool(late or wrong))


if __name__ == "__main__":
    sys.exit(main())
