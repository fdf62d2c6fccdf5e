"""Ranks share scan, features, embed, graph, posterior and clean; one that fails stops all, and a run goes on.

Ranks are processes that a launcher would start, with its environment; they fork from one process that
has imported everything.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests import tiny

pytestmark = pytest.mark.slow

# stages whose files do not depend on the number of ranks
SHARED = ("scan", "features", "embed", "graph")
PLUS = ("--set", "method=plus", "--set", "plus.memory_gb=0.0001")  # fitted to a part: the others are judged


@dataclass(frozen=True)
class Harm:
    """What happens to one rank: at which call of which function."""

    rank: int
    die: str
    at: int
    error: str = ""  # raised instead of a kill


@dataclass(frozen=True)
class Ended:
    """How a launch ended."""

    codes: list[int | None]
    errors: list[str]  # stderr of each rank


def rank_main(
    rank: int, environment: dict[str, str], arguments: list[str], log: str, harm: Harm | None,
    namespace: str,
) -> None:  # fmt: skip
    """What a rank's process runs: the command line, with small blocks and a toy of an encoder."""
    if namespace:
        enter(namespace)
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    for number in (1, 2):
        os.dup2(os.open(f"{log}.{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    from capro.cli import main
    from capro.data import scan
    from capro.errors import DataError
    from capro.graph import neighbors
    from capro.stages import classes, embed, match, posterior

    torch.set_num_threads(1)
    os.fsync = lambda _descriptor: None  # type: ignore[assignment]
    neighbors.BLOCK = posterior.BLOCK = scan.BLOCK = 4
    for module in (classes, embed, match):
        module.load_text_encoder = lambda *_args, **_options: tiny.WordEncoder()  # type: ignore
    if harm and harm.rank == rank:

        def complain() -> None:
            raise DataError(harm.error, hint="mend it")

        tiny.fatal(harm.die, harm.at, complain if harm.error else None)
    sys.argv = ["capro", *arguments]
    main()


def enter(namespace: str) -> None:
    """Move this process to a network namespace; Python has no call for it before 3.12."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/var/run/netns", namespace).open() as file:
        if libc.setns(file.fileno(), 0x40000000):  # CLONE_NEWNET
            raise OSError(ctypes.get_errno(), f"setns {namespace}")


@pytest.fixture(scope="module")
def processes() -> Any:
    return tiny.processes()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_data(tmp_path_factory.mktemp("data") / "data")


@dataclass(frozen=True)
class Launcher:
    """Starts ranks; unlike torchrun it ends nobody, so that all must end by themselves."""

    processes: Any
    data: Path
    logs: Path

    def __call__(
        self, run: Path, *, ranks: int = 2, harm: Harm | None = None, host: str = "127.0.0.1",
        namespaces: tuple[str, ...] = (), options: tuple[str, ...] = (),
    ) -> Ended:  # fmt: skip
        arguments = ["run", "--data", str(self.data), "--run", str(run), "--preset", "paper"]
        classes = f"data.classes={self.data / 'classes.yaml'}"
        mode = ["net.mode=frozen", "embed.visual=small", "embed.shard_size=2", "finetune.centred=true"]
        for override in (*tiny.FAST, *mode, classes):
            arguments += ["--set", override]
        arguments += options
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        environment = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": host, "MASTER_PORT": str(port)}
        if namespaces:
            environment["GLOO_SOCKET_IFNAME"] = "veth0"
        children = []
        for rank in range(ranks):
            log = str(self.logs / f"{run.name}{rank}")
            place = namespaces[rank] if namespaces else ""
            child = self.processes.Process(
                target=rank_main, args=(rank, environment, arguments, log, harm, place)
            )
            child.start()
            children.append(child)
        for child in children:
            child.join(240)  # a few seconds; more where others have the cores
        codes = [child.exitcode for child in children]
        for child in children:
            child.kill()
        errors = [(self.logs / f"{run.name}{rank}.2").read_text() for rank in range(ranks)]
        return Ended(codes, errors)


@pytest.fixture(scope="module")
def launch(processes: Any, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return Launcher(processes, data, tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def pair(launch: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run of two ranks."""
    run = tmp_path_factory.mktemp("pair") / "run"
    ended = launch(run)
    assert ended.codes == [0, 0], ended.errors
    return run


def files(run: Path, *stages: str) -> dict[str, bytes]:
    """What stages left, to the byte; not the time that they took."""
    return {
        str(path.relative_to(run)): path.read_bytes()
        for stage in stages
        for path in sorted((run / stage).rglob("*"))
        if path.is_file() and path.name != "stage.json"
    }


def assert_tidy(run: Path) -> None:
    left = ("*.tmp*", ".*.tmp*", "*shards*", "checkpoints", "search", "scratch")
    assert [path for pattern in left for path in run.rglob(pattern)] == []


def test_two_ranks_write_what_one_writes(launch: Launcher, pair: Path, tmp_path: Path) -> None:
    one = tmp_path / "one"
    ended = launch(one, ranks=1)
    assert ended.codes == [0], ended.errors
    expected = files(one, *SHARED)
    assert {"features/query.npy", "embed/visual.npy", "graph/graph.npz"} <= expected.keys()
    assert files(pair, *SHARED) == expected  # to the bit
    for stage in ("pretrain", "train", "finetune"):
        left, right = (load_file(run / stage / "model.safetensors") for run in (one, pair))
        for name, tensor in left.items():
            assert torch.allclose(tensor, right[name], atol=1e-4), (stage, name)
    assert np.load(one / "clean/labels.npy").tolist() == np.load(pair / "clean/labels.npy").tolist()
    assert_tidy(one)
    assert_tidy(pair)


def test_a_killed_rank_stops_all_and_the_run_goes_on(launch: Launcher, pair: Path, tmp_path: Path) -> None:
    """Killed while it embeds, searches and trains, each time in a new start; then left in peace."""
    run = tmp_path / "run"
    kills = [
        (Harm(1, "capro.pipeline.shards._write_shard", 32), "embed/visual.npy", "embed/*/shards-*/*.npy"),
        (Harm(0, "capro.stages.graph.enhance after", 1), "graph/graph.npz", "graph/search/*"),
        (Harm(1, "capro.train.loop.learning_rate", 5), "train/model.safetensors", "train/check*/*"),
    ]
    kept: dict[Path, int] = {}
    for harm, absent, resumable in kills:
        ended = launch(run, harm=harm)
        assert ended.codes[harm.rank] == -signal.SIGKILL, ended.errors
        assert ended.codes[1 - harm.rank] == 2
        told = ended.errors[1 - harm.rank]
        assert "error: " in told
        assert "another process of this run has ended or cannot be reached" in told
        assert "hint: " in told
        assert "give the same command again" in told
        assert "Traceback" not in told
        assert not (run / absent).exists()
        assert not (run / absent).with_name("stage.json").exists()
        assert list(run.glob(resumable))
        assert {path: path.stat().st_mtime_ns for path in kept} == kept  # not written again
        finished = [path.parent for path in run.glob("*/stage.json")]
        kept = {path: path.stat().st_mtime_ns for at in finished for path in at.iterdir()}
    ended = launch(run)
    assert ended.codes == [0, 0], ended.errors
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    stages = (*SHARED, "pretrain", "match", "train", "clean", "finetune")
    assert files(run, *stages) == files(pair, *stages)
    assert_tidy(run)


def test_an_error_on_one_rank_stops_all_with_one_message(launch: Launcher, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = launch(run, harm=Harm(1, "capro.pipeline.shards._write_shard", 2, error="image 7 is broken"))
    assert ended.codes == [2, 2]
    assert ended.errors[1].endswith("error: rank 1: image 7 is broken\nhint: mend it\n")
    assert "error" not in ended.errors[0]
    assert list(run.glob("features/*/shards-*/*.npy"))
    assert not (run / "features" / "stage.json").exists()
    # of the main rank, while the others wait; and in a stage that it does alone
    harm = Harm(0, "capro.stages.match.match", 1, error="the disk is full")
    ended = launch(run, harm=harm)
    assert ended.codes == [2, 2]
    assert ended.errors[0].endswith("error: the disk is full\nhint: mend it\n")
    assert "error" not in ended.errors[1]


def test_ranks_judge_in_the_stages_that_the_main_one_leads(launch: Launcher, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for run, ranks in ((one, 1), (two, 2)):
        ended = launch(run, ranks=ranks, options=PLUS)
        assert ended.codes == [0] * ranks, ended.errors
    assert json.loads((one / "posterior/stage.json").read_text())["result"]["fitted_to"] < 27
    led = ("scan", "classes", "match", "posterior", "clean")
    assert files(two, *led) == files(one, *led)  # to the bit
    assert_tidy(two)


@pytest.mark.parametrize(
    "where", ["capro.data.scan._check", "capro.stages.posterior.keep", "capro.stages.clean.keep"]
)
def test_an_error_in_work_that_a_rank_was_given_stops_all(
    launch: Launcher, tmp_path: Path, where: str
) -> None:
    ended = launch(tmp_path / "run", harm=Harm(1, where, 2, error="sample 7 is broken"), options=PLUS)
    assert ended.codes == [2, 2]
    assert ended.errors[1].endswith("error: rank 1: sample 7 is broken\nhint: mend it\n")
    assert "error" not in ended.errors[0]


def _ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them: two hosts, as far as ranks can tell."""
    names = tuple(f"capro-{os.getpid()}-{end}" for end in "ab")
    commands = [f"netns add {name}" for name in names]
    commands.append(f"link add veth0 netns {names[0]} type veth peer name veth0 netns {names[1]}")
    for number, name in enumerate(names, start=1):
        commands += [
            f"-n {name} addr add 10.123.45.{number}/24 dev veth0",
            f"-n {name} link set veth0 up",
            f"-n {name} link set lo up",
        ]
    if shutil.which("ip") is None:
        pytest.skip("no network namespaces here: there is no `ip` command")
    try:
        for command in commands:
            done = _ip(*command.split())
            if done.returncode:
                pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
        yield names  # type: ignore[misc]
    finally:
        for name in names:
            _ip("netns", "delete", name)


def test_two_hosts(launch: Launcher, pair: Path, namespaces: tuple[str, str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = launch(run, host="10.123.45.1", namespaces=namespaces)
    assert ended.codes == [0, 0], ended.errors
    stages = (*SHARED, "pretrain", "match", "train", "clean", "finetune")
    assert files(run, *stages) == files(pair, *stages)
