"""Runs in an object store: what is fetched and uploaded, what two machines see, and what a kill leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capro.errors import RunError, StoreError
from capro.pipeline import working_copy
from capro.pipeline.artefacts import Artefact, read_json, write_json
from capro.pipeline.run import Run
from capro.pipeline.stage import Job, perform
from capro.pipeline.working_copy import run_folder
from capro.stores import ObjectPath
from tests.pipeline.cases import stage
from tests.stores import RUN, Fault, Flaky, Killed, Machine, flaky, on

__all__ = ["flaky", "on"]
NUMBER = Artefact[Any]("count", "number.json", write_json, read_json)
BIG = Artefact[Any]("count", "big.json", write_json, read_json)
DETAILS = Artefact[Any]("count", "details.json", write_json, read_json)


def count(run: Run, value: int = 1, *, big: bool = True, force: bool = False) -> bool:
    """Do a stage that writes one file or two."""

    def work(job: Job) -> dict[str, int]:
        job.write(NUMBER, value)
        if big:
            job.write(BIG, [value] * 1000)
        return {"value": value}

    return perform(run, stage("count", work, value=value), force=force)


def objects() -> dict[str, bytes]:
    root = ObjectPath("flaky", "bucket/runs/a")
    return {name: each.read_bytes() for name, each in root.below().items()}


def test_a_stage_is_uploaded_with_its_mark_last(on: Machine, flaky: type[Flaky]) -> None:
    run = on("one")
    written: list[str] = []
    put = Flaky._put
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Flaky,
            "_put",
            lambda self, request, path, *rest, **o: (
                written.append(path),
                put(self, request, path, *rest, **o),
            ),
        )
        assert count(run)
    stages = [path.removeprefix("bucket/runs/a/") for path in written if "/count/" in path]
    assert stages == ["count/big.json", "count/number.json", "count/stage.json"]
    assert sorted(objects()) == sorted(["run.yaml", "events.jsonl", *stages])
    assert '"finished"' in objects()["events.jsonl"].decode()
    assert run.place == RUN
    assert not count(run)  # fresh


def test_another_machine_pulls_a_stage_when_it_is_read(on: Machine, flaky: type[Flaky]) -> None:
    run = on("one")
    count(run)
    perform(run, stage("other", lambda job: job.write(NUMBER.of("other"), 2)))
    other = on("two")
    assert other.path != on("one").path
    other = on("two")
    flaky.requests.clear()
    assert other.finished("count") is not None
    assert not other.damaged("count")
    assert other.file(NUMBER).parent.is_dir()
    assert flaky.requests["get_file"] == 0
    assert not other.file(BIG).exists()
    assert other.read(NUMBER) == 1
    assert flaky.requests["get_file"] == 2  # the stage is pulled whole, and no other one
    assert other.read(BIG) == [1] * 1000
    assert flaky.requests["get_file"] == 2
    assert not other.file(NUMBER.of("other")).exists()
    assert not count(other)


def test_a_stage_pulls_what_it_is_declared_to_read(on: Machine) -> None:
    count(on("one"))
    other = on("two")
    seen = []
    reading = replace(
        stage("reader", lambda job: seen.extend(file.name for file in other.folder("count").iterdir())),
        reads=("count",),
    )
    assert perform(other, reading)
    assert {"number.json", "big.json"} <= {*seen}


def test_what_another_machine_has_done_again_replaces_the_copy(on: Machine) -> None:
    count(on("one"), 1)
    assert on("two").read(NUMBER) == 1
    count(on("one"), 2, big=False)
    assert "count/big.json" not in objects()
    other = on("two")
    assert other.read(NUMBER) == 2
    assert other.find(BIG) is None


def test_notes_of_commands_travel_and_end_with_their_stage(on: Machine) -> None:
    run = on("one")
    count(run)
    run.write_sealed(DETAILS, {"accuracy": 0.5})
    assert (on("two").find_sealed(DETAILS) or {})["accuracy"] == 0.5
    count(on("two"), 2)
    assert on("one").find_sealed(DETAILS) is None
    assert on("two").find_sealed(DETAILS) is None


def test_a_kept_stage_is_kept_in_the_store(on: Machine) -> None:
    count(on("one"), 1)
    run = on("two")  # has none of the files
    with run.working("count", "other", keep=True) as (folder, _):
        write_json(folder / NUMBER.file, 2)
    again = on("three")
    assert again.read(NUMBER) == 2
    assert again.read(NUMBER.of("count.1")) == 1
    assert again.read(BIG.of("count.1")) == [1] * 1000


def test_a_run_that_was_deleted_in_the_store_is_gone(on: Machine, flaky: type[Flaky]) -> None:
    count(on("one"))
    flaky.store.clear()
    run = on("one")
    assert run.finished("count") is None
    assert [*objects()] == ["run.yaml"]
    count(run)
    assert on("two").read(NUMBER) == 1


def test_an_address_with_other_objects_is_no_run(on: Machine) -> None:
    ObjectPath("flaky", "bucket/runs/a/photo.jpg").write_bytes(b"x")
    with pytest.raises(RunError, match="flaky://bucket/runs/a: not empty and not a run directory"):
        on("one")


def test_an_address_without_a_run(on: Machine) -> None:
    with pytest.raises(RunError, match=f"{RUN}: no run.yaml") as found:
        Run.open(run_folder(RUN))
    assert f"--run {RUN}" in found.value.hint


def test_a_copy_in_which_a_process_works_is_left_alone(on: Machine, flaky: type[Flaky]) -> None:
    run = on("one")
    count(run)
    with run.alone():
        (run.path / "count" / "stage.json").unlink()  # as while a stage is done in its own folder
        (run.path / "count" / "new.json").write_text("1")
        other = on("one")  # another process: its thread has not the lock
        assert (other.path / "count" / "new.json").exists()
    assert on("one").read(NUMBER) == 1


def test_names_that_leave_the_folder_are_not_followed(
    on: Machine, flaky: type[Flaky], tmp_path: Path
) -> None:
    count(on("one"))
    (tmp_path / "two" / "runs" / "mine").mkdir(parents=True)
    for name in ("../mine", "../../../mine"):
        flaky.store[f"/bucket/runs/a/{name}/stage.json"] = flaky.store["/bucket/runs/a/count/stage.json"]
    run = on("two")
    assert run.read(NUMBER) == 1
    assert [*run.path.rglob("stage.json")] == [run.path / "count" / "stage.json"]
    assert [*(tmp_path / "two" / "runs" / "mine").iterdir()] == []
    assert len([*tmp_path.rglob("stage.json")]) == 2


# --- damage ---------------------------------------------------------------------------------------


def test_an_object_that_was_changed_is_refused_and_its_stage_done_again(on: Machine) -> None:
    count(on("one"))
    ObjectPath("flaky", "bucket/runs/a/count/number.json").write_bytes(b"7\n")  # of the same size
    run = on("two")
    assert not run.damaged("count")  # nothing shows it yet
    with pytest.raises(RunError, match=r"count/number.json: damaged since the count stage wrote it") as found:
        run.read(NUMBER)
    assert f"capro run --run {RUN}" in found.value.hint
    assert [file.name for file in run.damaged("count")] == ["number.json"]
    run = on("two")
    assert count(run)  # done again, and uploaded
    assert on("three").read(NUMBER) == 1


def test_a_stage_that_is_done_again_elsewhere_while_it_is_read(
    on: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    count(on("one"), 1)
    reading = on("two")
    process = working_copy._copies
    count(on("one"), 2)  # files of the same sizes
    monkeypatch.setattr(working_copy, "_copies", process)
    with pytest.raises(RunError, match="the count stage is done again by another process") as found:
        reading.read(NUMBER)
    assert "same command again" in found.value.hint
    count(on("one"), 3, big=False)
    monkeypatch.setattr(working_copy, "_copies", process)
    with pytest.raises(RunError, match="the count stage is done again by another process"):
        reading.read(BIG)
    assert on("two").read(NUMBER) == 3


def test_a_finished_stage_whose_files_are_damaged_is_not_uploaded(on: Machine, flaky: type[Flaky]) -> None:
    run = on("one")
    flaky.faults.append(Fault("put_file", "count/", times=1000))
    with pytest.raises(StoreError):
        count(run)
    flaky.faults.clear()
    (run.path / "count" / "number.json").write_text("9999")
    assert count(on("one"))  # done again
    assert on("two").read(NUMBER) == 1


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"address": "/tmp", "id": 1}'])
def test_a_damaged_state_is_named(on: Machine, content: str) -> None:
    file = on("one").path.parent / ".capro-store.json"
    file.write_text(content)
    with pytest.raises(RunError, match=r"\.capro-store\.json: damaged") as found:
        on("one")
    assert f"delete {file.parent}" in found.value.hint


def test_a_file_that_was_damaged_here_is_fetched_again(on: Machine) -> None:
    run = on("one")
    count(run)
    (run.path / "count" / "number.json").write_text("999")
    assert on("one").read(NUMBER) == 1
    (run.path / "count" / "number.json").unlink()
    assert not count(on("one"))
    assert on("one").read(NUMBER) == 1


@pytest.mark.parametrize("kind", ["fail", "cut"])
def test_a_fetch_that_fails_is_repeated(on: Machine, flaky: type[Flaky], kind: Any) -> None:
    count(on("one"))
    run = on("two")
    flaky.faults.append(Fault("get_file", "number", kind=kind, times=4))
    assert run.read(NUMBER) == 1


def test_a_store_that_cannot_be_reached_leaves_the_result_here(on: Machine, flaky: type[Flaky]) -> None:
    run = on("one")
    flaky.faults.append(Fault("put_file", "count/", times=1000))
    with pytest.raises(StoreError, match="flaky://bucket/runs/a/count"):
        count(run)
    flaky.faults.clear()
    done = []
    run = on("one")
    perform(run, stage("count", lambda job: done.append(1), value=1))  # type: ignore[func-returns-value]
    assert done == []  # the finished stage was uploaded, not done again
    assert on("two").read(NUMBER) == 1


# --- kills ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("redone", [False, True])
def test_a_kill_in_the_middle_of_an_upload(on: Machine, flaky: type[Flaky], redone: bool) -> None:
    """Whichever request is the last: the stage in the store is whole or absent, and both machines go on."""
    at = 0
    while True:
        flaky.reset()
        run = on(f"first-{at}")
        if redone:
            count(run, 1)
        flaky.faults[:] = [
            Fault(name, kind="kill", times=1000, after=at) for name in ("put_file", "rm_file", "pipe_file")
        ]
        killed = False
        try:
            count(run, 2)
        except Killed:
            killed = True
        flaky.faults.clear()
        there = {name: data for name, data in objects().items() if name.startswith("count/")}
        if "count/stage.json" in there:
            done = json.loads(there["count/stage.json"])
            assert {name: record["size"] for name, record in done["files"].items()} == {
                name.removeprefix("count/"): len(data) for name, data in there.items() if "stage" not in name
            }
            assert done["result"]["value"] == json.loads(there["count/number.json"])
        assert not count(on(f"first-{at}"), 2) or at == 0  # under the dead process's lock, which is its own
        assert on(f"second-{at}").read(NUMBER) == 2
        if not killed:
            break
        at += 1
    assert at >= 4


@pytest.mark.parametrize("when", ["stage", "count/number.json"])
def test_whoever_lost_the_lock_uploads_no_mark(
    on: Machine, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Another machine takes the lock during the work, or during the upload."""
    run, put = on("one"), Flaky._put

    def take() -> None:
        ObjectPath("flaky", "bucket/runs/a/.lock.json").write_bytes(b'{"host": "other", "token": "theirs"}')

    def put_and_take(self: Flaky, request: str, path: str, *rest: Any, **options: Any) -> None:
        put(self, request, path, *rest, **options)
        if path.endswith(when):
            take()

    monkeypatch.setattr(Flaky, "_put", put_and_take)

    def work(job: Job) -> None:
        job.write(NUMBER, 1)
        if when == "stage":
            take()

    with pytest.raises(RunError, match=r"the lock was taken by .* on other") as found:
        perform(run, stage("count", work))
    assert "nothing more is uploaded" in str(found.value)
    assert ("count/number.json" in objects()) == (when != "stage")
    assert "count/stage.json" not in objects()


def test_stages_keep_the_order_of_their_times(on: Machine) -> None:
    run = on("one")
    for name in ("second", "first"):  # by name they would be fetched the other way round
        perform(run, stage(name))
    other = on("two")
    assert (other.stamp("second") or 0) < (other.stamp("first") or 0)


def test_another_machine_goes_on_once_the_lock_of_a_dead_one_is_deleted(
    on: Machine, flaky: type[Flaky]
) -> None:
    run = on("one")
    flaky.faults[:] = [
        Fault(name, kind="kill", times=1000, after=1) for name in ("put_file", "rm_file", "pipe_file")
    ]
    with pytest.raises(Killed):
        count(run)
    flaky.faults.clear()
    other = on("two")
    with pytest.raises(RunError, match="another capro is working in this run") as found:
        count(other)
    assert f"delete {RUN}/.lock.json" in found.value.hint
    ObjectPath("flaky", "bucket/runs/a/.lock.json").remove()
    assert count(other)
