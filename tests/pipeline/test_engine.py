from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capro.errors import ConfigError
from capro.pipeline import engine as module
from capro.pipeline.engine import THIS_PROCESS, Engine, Portable, RankEngine, engine_of
from tests.commands import Capro, capro  # noqa: F401
from tests.thread_ranks import led_by_threads, thread_ranks


@dataclass(frozen=True)
class Letters(Portable):
    word: str
    step: list[int] = field(default_factory=list, compare=False)

    @cached_property
    def loaded(self) -> list[str]:
        return [*self.word]


@dataclass(frozen=True)
class Pair(Portable):
    letters: Letters
    number: int


def test_fields_are_sent_and_a_process_loads_once() -> None:
    module._received.cache_clear()
    letters = Letters("cat", [1])
    assert letters.loaded == ["c", "a", "t"]
    first, again = (pickle.loads(pickle.dumps(letters)) for _ in range(2))
    assert first is again
    assert first is not letters
    assert (first.word, first.step) == ("cat", [])
    assert "loaded" not in vars(first)
    parts = [pickle.loads(pickle.dumps(Pair(letters, number))) for number in range(4)]
    assert [part.number for part in parts] == [0, 1, 2, 3]
    assert all(part.letters is first for part in parts)


def test_this_process_works_item_by_item() -> None:
    taken = []
    found = THIS_PROCESS.map(lambda item: taken.append(item) or -item, iter(range(3)))
    assert next(found) == 0
    assert taken == [0]
    assert list(found) == [-1, -2]


# --- ranks, which are threads here ----------------------------------------------------------------


@given(count=st.integers(2, 4), sizes=st.lists(st.integers(0, 9), max_size=3))
@settings(deadline=None, max_examples=25)
def test_all_ranks_together_do_what_one_does(count: int, sizes: list[int]) -> None:
    def work(engine: Engine) -> list[list[str]]:
        return [list(engine.map(lambda part, n=n: f"{n}:{part}", range(n))) for n in sizes]

    assert led_by_threads(count, work) == [[f"{n}:{part}" for part in range(n)] for n in sizes]


def test_each_rank_does_its_share_and_parts_are_taken_as_needed() -> None:
    by: dict[int, str] = {}
    taken: list[int] = []

    def parts() -> Iterator[int]:
        for part in range(7):
            taken.append(part)
            yield part

    def negative(part: int) -> int:
        by[part] = threading.current_thread().name
        return -part

    def work(engine: Engine) -> list[int]:
        found = engine.map(negative, parts())
        assert next(found) == 0
        assert taken == [0, 1, 2, 3, 4, 5]  # those of the next round, which the others have begun
        return list(found)

    assert led_by_threads(3, work) == [-1, -2, -3, -4, -5, -6]
    workers = [{by[part] for part in (start, start + 3)} for start in range(3)]
    assert all(len(each) == 1 for each in workers)
    assert len(set.union(*workers)) == 3
    assert by[6] == by[0]


@pytest.mark.parametrize(("cores", "local", "threads"), [(8, "2", 4), (2, "4", 1), (8, None, 4)])
def test_a_rank_has_its_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, local: str | None, threads: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if local:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    assert RankEngine(thread_ranks(2)[0]).threads == threads


# --- the command line -----------------------------------------------------------------------------


def test_engines_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def message(*given: str | None) -> tuple[str, str]:
        with pytest.raises(ConfigError) as caught, engine_of(*given):
            pass
        return str(caught.value), caught.value.hint

    assert message("rya", None) == ("--engine 'rya'", "did you mean 'ray'?")
    assert message("process", "auto") == (
        "--address auto: only the engine ray has one",
        "add --engine ray, or leave --address out",
    )
    with monkeypatch.context() as patch:
        patch.setattr(module, "find_spec", lambda _: None)
        assert message("ray", None) == ("--engine ray needs the package 'ray'", 'pip install "capro[ray]"')
    with monkeypatch.context() as patch:
        for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2")):
            patch.setenv(name, value)
        assert message("ray", None)[0] == "--engine ray in one of 2 launched processes"
    for address in ("here", "ray://host:1", "host:"):
        assert message("ray", address)[0].startswith(f"--address {address}: ")
    text, hint = message("ray", "127.0.0.1:9")
    assert text.startswith("--address 127.0.0.1:9: ")
    assert "ray start --head" in hint


@pytest.mark.parametrize("command", ["run", "export"])
def test_the_command_line_refuses_them(capro: Capro, command: str, tmp_path) -> None:  # noqa: F811
    words = ["--out", tmp_path / "out"] if command == "export" else ["--data", tmp_path, "--run"]
    code, _, said = capro(command, *words, tmp_path / "run", "--address", "auto")
    assert code == 2
    assert (
        said
        == "error: --address auto: only the engine ray has one\nhint: add --engine ray, or leave --address out\n"
    )
    assert not (tmp_path / "run").exists()
