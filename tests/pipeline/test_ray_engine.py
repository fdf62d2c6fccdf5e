"""Stages as tasks of Ray on two nodes: the same bytes as one process, also where nodes are lost."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import ray
import torch

from capro import __version__
from capro.config import ScanSettings
from capro.data import scan
from capro.data.manifest import Row, Source
from capro.errors import DataError, RunError
from capro.export.dataset import export_data
from capro.pipeline import ray_engine, shards
from capro.pipeline.engine import THIS_PROCESS, Engine
from capro.pipeline.ray_engine import RayEngine, connected
from capro.pipeline.run import Run
from capro.pipeline.shards import planned, sharded
from capro.stages import PLAN, graph, posterior, run_all
from tests import squares, tiny
from tests.models.test_encoders import save_bert
from tests.pipeline import ray_work

pytestmark = pytest.mark.slow

# a dead node is noticed within a second, not within a quarter of a minute
HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_failure_threshold": 3,
}


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

    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80_000_000}
    found = Nodes(Cluster(initialize_head=True, head_node_args={**head, "_system_config": HEALTH}))
    found.add()
    yield found
    found.cluster.shutdown()


@pytest.fixture(scope="module")
def engine(nodes: Nodes) -> Iterator[RayEngine]:
    with connected(nodes.cluster.address) as found:
        yield found


def tensors_in(item: Any) -> Iterator[torch.Tensor]:
    if isinstance(item, torch.Tensor):
        yield item
    for part in item if isinstance(item, tuple) else ():
        yield from tensors_in(part)


def name_of(work: Any) -> str:
    work = getattr(work, "func", work)  # of a partial
    return getattr(work, "__name__", type(work).__name__)


@dataclass
class Noting(Engine):
    """An engine that notes what it was given."""

    engine: Engine
    given: set[str] = field(default_factory=set)
    remote = True
    threads = 1

    def map(self, work: Any, items: Iterable[Any], *, gpu: bool = False) -> Iterator[Any]:
        self.given.add(name_of(work))
        for item in (items := list(items)):  # a part of a tensor is sent without the rest of it
            for part in tensors_in(item):
                assert part.untyped_storage().nbytes() == part.nbytes
        return self.engine.map(work, items, gpu=gpu)


@dataclass
class Killing(Engine):
    """An engine whose second node is killed while it works for some stages, each time in the middle of a task."""

    engine: RayEngine
    nodes: Nodes
    notes: Path
    stages: list[str]
    remote = True
    threads = 1

    def map(self, work: Any, items: Iterable[Any], *, gpu: bool = False) -> Iterator[Any]:
        items = list(items)
        stage = next((name for name in self.stages if f"/{name}/" in str(items)), "")
        if not stage:
            return self.engine.map(work, items, gpu=gpu)
        self.stages.remove(stage)
        notes = self.notes / stage
        notes.mkdir(parents=True)

        def kill() -> None:
            shards.wait_until((notes / "second").exists, "no task to kill")
            self.nodes.kill()

        thread = threading.Thread(target=kill)
        thread.start()
        doomed = ray_work.Doomed(work, notes, self.nodes.other.node_id)
        found = list(self.engine.map(doomed, items, gpu=gpu))
        thread.join()
        assert self.nodes.other is None
        if self.stages:
            self.nodes.add()
        return iter(found)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray")
    save_bert(folder / "bert")
    return squares.write_data(folder / "data")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tasks of each kind; the workers get the borders from here."""
    for module, name in ((graph, "QUERIES"), (posterior, "BLOCK"), (scan, "BLOCK")):
        monkeypatch.setattr(module, name, 16)
    monkeypatch.setattr(graph, "QUERIES", 4)


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("stage.json", "events.jsonl")  # they hold times
    }


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    bert = data.with_name("bert")
    encoders = (f"embed.text_encoder={bert}", "embed.visual=small", "embed.shard_size=6")
    run = Run.create(tmp_path_factory.mktemp("alone") / "run", squares.settings(data, *encoders))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(posterior, "BLOCK", 16)
        run_all(run)
    return run


@pytest.mark.usefixtures("small_blocks")
def test_a_run_has_the_bytes_of_one_process_though_nodes_die(
    engine: RayEngine, nodes: Nodes, alone: Run, tmp_path: Path
) -> None:
    """One node is killed in the middle of features, the one in its place in the middle of the search."""
    killing = Killing(engine, nodes, tmp_path / "notes", ["features", "graph"])
    noting = Noting(killing)
    run = Run.create(tmp_path / "run", alone.settings)
    run_all(run, engine=noting)
    assert killing.stages == []
    assert noting.given == {"_check_block", "_compute_shard", "_Rule", "single_label"}
    found, expected = files(run.path), files(alone.path)
    assert {
        "features/query.npy",
        "embed/visual.npy",
        "graph/graph.npz",
        "clean/labels.npy",
    } <= expected.keys()
    assert found == expected
    for stage in PLAN.of(run.settings):  # the engine is in no fingerprint
        assert stage.is_fresh(run)


@pytest.mark.usefixtures("small_blocks")
def test_posterior_and_export_have_the_bytes_of_one_process(
    engine: RayEngine, alone: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        posterior, "fitted_rows", lambda *_: np.arange(0, 48, 2)
    )  # the others are judged in tasks
    runs, noting = dict[str, Run](), Noting(engine)
    for name, worker in (("alone", THIS_PROCESS), ("ray", noting)):
        runs[name] = tiny.copied(alone, tmp_path / name, "method=plus")
        PLAN.on(worker).do(runs[name], "embed", "match", "posterior", "clean")
        for to in ("webdataset", "hf", "folder"):
            export_data(runs[name], tmp_path / f"{name}-{to}", to=to, engine=worker)
    assert noting.given == {
        "_compute_shard",
        "_JudgeRows",
        "_decide",
        "single_label",
        "_write_part",
        "_write_shard",
    }
    assert runs["ray"].result("posterior")["fitted_to"] == 24
    assert files(runs["ray"].path) == files(runs["alone"].path)
    for to in ("webdataset", "hf", "folder"):
        found, expected = (files(tmp_path / f"{name}-{to}") for name in ("ray", "alone"))
        assert len(expected) > 2
        export = {"export.json"}  # it holds the name of the run
        assert {k: v for k, v in found.items() if k not in export} == {
            k: v for k, v in expected.items() if k not in export
        }


# --- what goes wrong ------------------------------------------------------------------------------


def test_an_error_of_a_task_arrives_as_it_was_raised(engine: RayEngine) -> None:
    with pytest.raises(DataError, match=r"^image 7 is broken$") as caught:
        list(engine.map(ray_work.refuse, [0, 1, 2]))
    assert caught.value.hint == "mend it"
    with pytest.raises(ZeroDivisionError):
        list(engine.map((1).__truediv__, [0]))


def test_a_node_without_the_package_is_named(engine: RayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("only_here")
    exec("def work(item, *_): return item", module.__dict__)
    module.work.__module__ = module.__name__
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for lacking in ("what is sent", "capro itself"):
        with pytest.raises(
            RunError, match=r"^a node of .* cannot do the work: No module named 'only_here'$"
        ) as caught:
            list(engine.map(module.work, [0]))
        assert "install the same version of capro" in caught.value.hint, lacking
        monkeypatch.setattr(ray_engine, "_task", ray.remote(module.work))


def test_another_version_on_a_node_is_refused(engine: RayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "__version__", "99.0")
    with pytest.raises(RunError, match=rf"has capro {re.escape(__version__)}, this run 99\.0"):
        list(engine.map(abs, [1]))


@dataclass
class Elsewhere(Engine):
    """An engine whose nodes do not see a folder: it is gone when they begin."""

    engine: Engine
    gone: Path
    remote = True
    threads = 1

    def map(self, work: Any, items: Iterable[Any], *, gpu: bool = False) -> Iterator[Any]:
        items = list(items)
        self.gone.rename(self.gone.with_name("away"))
        return self.engine.map(partial(ray_work.impatient, work), items, gpu=gpu)


def test_a_node_that_does_not_see_the_files_is_an_error(engine: RayEngine, tmp_path: Path) -> None:
    wanted = planned(tmp_path / "run", 4, key="k", size=2)
    with pytest.raises(RunError, match=r"shards-k-2: host .* does not see it") as caught:
        sharded(wanted, ray_work.ones, engine=Elsewhere(engine, wanted.folder))
    assert "a file system that all hosts share" in caught.value.hint
    source = Source("files", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    check = partial(
        scan._check_block, [source], ScanSettings(), 1
    )  # images that are not seen are not missing
    with pytest.raises(RunError, match=r"data: host .* does not see it"):
        list(Elsewhere(engine, tmp_path / "data").map(check, [[Row("a", "a.png")]]))


def test_a_task_whose_process_is_gone_is_repeated(
    engine: RayEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "RETRIES", 1)
    assert list(engine.map(ray_work.DieOnce(tmp_path / "died"), [1])) == [1]
    monkeypatch.setattr(ray_engine, "RETRIES", 0)
    with pytest.raises(RunError, match="Ray cannot do a task: WorkerCrashedError") as caught:
        list(engine.map(ray_work.DieOnce(tmp_path / "again"), [0]))
    assert "continues where it stopped" in caught.value.hint


def test_ctrl_c_ends_the_tasks(nodes: Nodes, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from capro.pipeline.engine import engine_of\n"
        "from tests.pipeline import ray_work\n"
        "with engine_of('ray', sys.argv[1]) as engine:\n"
        "    list(engine.map(ray_work.Begin(Path(sys.argv[2])), range(20)))\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", script, nodes.cluster.address, tmp_path], stderr=subprocess.PIPE, text=True
    )
    shards.wait_until(lambda: any(tmp_path.iterdir()), "no task began")
    driver.send_signal(signal.SIGINT)
    said = driver.communicate(timeout=60)[1]
    assert "KeyboardInterrupt" in said
    workers = [int(path.name) for path in tmp_path.iterdir()]
    shards.wait_until(lambda: not any(is_alive(worker) for worker in workers), "a task goes on")
    assert len([*tmp_path.iterdir()]) == len(workers) <= 2  # no other task began


def is_alive(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
