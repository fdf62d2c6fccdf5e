"""The data-parallel stages as tasks of Ray: time with one and with two workers, and what a lost node costs.

    python benchmarks/ray_cluster.py [--samples 20000] [--classes 50] [--keep FOLDER]

The same run (made-up tars of `million.py`, method plus, the posterior fitted to a part of the rows) is done in this
process, on a Ray cluster of this machine with one worker, with two, and with three nodes of which one is killed in
the middle of `features` and another in the middle of the neighbour search. Everybody has one thread. Workers are
started, with what they import, before the clock; nodes are found dead by Ray's default settings. Tasks that only
wait show what the engine itself costs, also where other programs have the cores. Bounds (exit code 1): every file of
the four runs and of their exports is the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from capro import config
from capro.export.dataset import export_data
from capro.pipeline.engine import THIS_PROCESS, Engine
from capro.pipeline.ray_engine import connected
from capro.pipeline.run import Run
from capro.stages import PLAN, run_all
from million import make_data, place, settings_of

STAGES = ("scan", "features", "embed", "graph", "posterior", "clean", "export")  # those with tasks
MEMORY = 4.0
WAITING = 24  # tasks
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # as workers


def warm_up(_item: int) -> None:
    """Import what tasks need, and stay until every worker has one."""
    for stage in STAGES[:-1]:
        PLAN[stage]
    time.sleep(3)


def wait(_item: int) -> None:
    """A task that needs no core."""
    time.sleep(0.5)


@contextmanager
def cluster(workers: int) -> Iterator[tuple[Any, list[Any], Engine]]:
    """A head without work, and nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    begin = time.monotonic()
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [found.add_node(num_cpus=1) for _ in range(workers)]
        with connected(found.address) as engine:
            list(engine.map(warm_up, range(workers)))
            print(f"{workers} workers started in {time.monotonic() - begin:.1f} s", file=sys.stderr)
            yield found, nodes, engine
    finally:
        found.shutdown()


class Killer(threading.Thread):
    """Kills a node in the middle of a stage, and another in the middle of a later one."""

    def __init__(self, cluster: Any, nodes: list[Any], run: Path) -> None:
        super().__init__(daemon=True)
        self.cluster, self.nodes, self.run_path = cluster, nodes, run
        self.killed: list[str] = []

    def run(self) -> None:
        for stage, shards in (
            ("features", "features/*/shards-*/*.npy"),
            ("graph", "graph/search/shards-*/*.npy"),
        ):
            while not any(self.run_path.glob(shards)):
                time.sleep(0.02)
            self.cluster.remove_node(self.nodes.pop(), allow_graceful=False)
            done = len(list(self.run_path.glob(shards)))
            self.killed.append(f"{stage} after {done} shards")


def settings_for(data: Path) -> list[str]:
    """Settings with which every stage has parts to share."""
    return [
        *settings_of(data, Path("small"), MEMORY), "views.size=48", "views.cache_gb=0", "embed.shard_size=1000",
        "plus.memory_gb=0.02",
    ]  # fmt: skip


def timed_run(folder: Path, overrides: list[str], engine: Engine) -> dict[str, float]:
    """A whole run and its export; returns the seconds of the stages that have tasks."""
    run = Run.create(folder / "run", config.load(preset_name="small", overrides=overrides))
    run_all(run, engine=engine)
    begin = time.monotonic()
    export_data(run, folder / "export", to="webdataset", engine=engine)
    seconds = {stage: float((run.finished(stage) or {})["seconds"]) for stage in STAGES[:-1]}
    return {**seconds, "export": time.monotonic() - begin}


def same_files(left: Path, right: Path) -> list[str]:
    """The files that differ; those that hold times are left out."""
    timed = ("stage.json", "events.jsonl")
    names = {
        path.relative_to(base)
        for base in (left, right)
        for path in base.rglob("*")
        if path.is_file() and path.name not in timed
    }
    return [
        str(name)
        for name in sorted(names)
        if not ((left / name).is_file() and (right / name).is_file())
        or (left / name).read_bytes() != (right / name).read_bytes()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--keep", type=Path, help="a folder for data and runs; else they go")
    a = parser.parse_args()
    if ONE_THREAD.items() - os.environ.items():  # they are read when torch is imported
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    with place(a.keep) as folder:
        data = folder / f"data-{a.samples}-{a.classes}"
        if not data.exists():
            make_data(data, a.samples, classes=a.classes)
        overrides = settings_for(data)
        found, waited = dict[str, dict[str, float]](), dict[str, float]()
        for way, workers in (("process", 0), ("1 worker", 1), ("2 workers", 2), ("2 of 3 killed", 3)):
            place_of = folder / way.replace(" ", "-")
            shutil.rmtree(place_of, ignore_errors=True)
            if not workers:
                found[way] = timed_run(place_of, overrides, THIS_PROCESS)
                continue
            with cluster(workers) as (nodes_of, nodes, engine):
                killer = Killer(nodes_of, nodes, place_of / "run") if workers == 3 else None
                if killer:
                    killer.start()
                found[way] = timed_run(place_of, overrides, engine)
                if not killer:
                    begin = time.monotonic()
                    list(engine.map(wait, range(WAITING)))
                    waited[way] = time.monotonic() - begin
            if killer and len(killer.killed) < 2:
                raise SystemExit("FAIL a stage ended before its node was killed")
            print(f"nodes killed: {', '.join(killer.killed)}" if killer else f"{way}: done", flush=True)
        print(f"{a.samples:,} samples, seconds")
        print(f"| stage | {' | '.join(found)} | 2 workers / 1 |")
        print(f"|---|{'---|' * (len(found) + 1)}")
        for stage in STAGES:
            ratio = found["2 workers"][stage] / found["1 worker"][stage]
            print(
                f"| {stage} | {' | '.join(f'{each[stage]:.1f}' for each in found.values())} | {ratio:.2f} |"
            )
        each = ", ".join(f"{way} {seconds:.1f} s" for way, seconds in waited.items())
        print(f"{WAITING} tasks that wait half a second: {each}")
        different = {
            way: same_files(folder / "process", folder / way.replace(" ", "-")) for way in list(found)[1:]
        }
        for way, names in different.items():
            print(f"{way}: {f'{len(names)} files differ: {names[:5]}' if names else 'the same bytes'}")
        if any(different.values()):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
