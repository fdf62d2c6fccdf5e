"""Stages as tasks of Ray on two nodes: the same bytes as one process, also where nodes are lost."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from capro.run.directory import Run
from capro.run.ray_engine import RayEngine, connected
from capro.stages import run_all
from tests import squares
from tests.text.test_encoders import save_bert

pytestmark = pytest.mark.slow


@dataclass
class Nodes:
    """A head with one CPU, and a second node with another one that a test may kill."""

    cluster: Any
    other: Any = None

    def add(self) -> None:
        self.other = self.cluster.add_node(num_cpus=1, object_store_memory=80_000_000)

    def kill(self) -> None:
        self.cluster.remove_node(self.other, allow_graceful=False)
        self.other = None


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    from ray.cluster_utils import Cluster

    quick = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 200,
        "health_check_failure_threshold": 3,
    }
    head = {
        "_system_config": quick,
        "num_cpus": 1,
        "include_dashboard": False,
        "object_store_memory": 80_000_000,
    }
    found = Nodes(Cluster(initialize_head=True, head_node_args=head))
    found.add()
    yield found
    found.cluster.shutdown()


@pytest.fixture(scope="module")
def engine(nodes: Nodes) -> Iterator[RayEngine]:
    with connected(nodes.cluster.address) as found:
        yield found


@dataclass(frozen=True)
class Slowly:
    """Work that takes long enough to be interrupted, and notes which node begins and ends it."""

    work: Callable[[Any], Any]
    notes: Path

    def __call__(self, item: Any) -> Any:
        import ray

        name = f"{ray.get_runtime_context().get_node_id()}-{os.getpid()}-{time.monotonic_ns()}"
        (self.notes / f"begun-{name}").touch()
        time.sleep(0.2)
        found = self.work(item)
        (self.notes / f"ended-{name}").touch()
        return found


@dataclass
class Killing:
    """An engine whose second node is killed while stages are at work."""

    engine: RayEngine
    nodes: Nodes
    notes: Path
    kill_in: list[str]
    killed: list[str] = field(default_factory=list)
    remote = True

    def map(self, work: Any, items: Iterable[Any], *, gpu: bool = False) -> Iterator[Any]:
        items = list(items)
        stage = next((stage for stage in self.kill_in if f"/{stage}/" in str(items)), None)
        if stage is None:
            yield from self.engine.map(work, items, gpu=gpu)
            return
        self.kill_in.remove(stage)
        notes = self.notes / stage
        notes.mkdir()
        doomed = self.nodes.other.node_id
        for result in self.engine.map(Slowly(work, notes), items, gpu=gpu):
            yield result
            begun, ended = (
                {p.name[6:] for p in notes.glob(f"{what}-{doomed}*")} for what in ("begun", "ended")
            )
            if stage not in self.killed and begun - ended and ended:
                self.nodes.kill()
                self.killed.append(stage)
                if self.kill_in:
                    self.nodes.add()


def files(run: Run) -> dict[str, bytes]:
    return {
        str(path.relative_to(run.path)): path.read_bytes()
        for path in sorted(run.path.rglob("*"))
        if path.is_file() and path.name not in ("stage.json", "events.jsonl")
    }


def test_a_run_has_the_same_bytes(
    engine: RayEngine, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from capro.stages import shared_search

    monkeypatch.setattr(shared_search, "QUERIES", 4)
    save_bert(tmp_path / "bert")
    data = squares.write_data(tmp_path / "data")
    settings = squares.settings(
        data, f"embed.text_encoder={tmp_path / 'bert'}", "embed.shard_size=6", "embed.visual=small"
    )
    t = time.time()
    alone = Run.create(tmp_path / "alone", settings)
    run_all(alone)
    print("alone", time.time() - t)
    t = time.time()
    (tmp_path / "notes").mkdir()
    killing = Killing(engine, nodes, tmp_path / "notes", ["features", "graph"])
    shared = Run.create(tmp_path / "shared", settings)
    run_all(shared, engine=killing)
    print("ray", time.time() - t)
    assert killing.killed == ["features", "graph"]
    assert files(shared) == files(alone)
