"""The plan: why a stage is done, what is done before it, and what is asked first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from capro.config import Settings, update
from capro.errors import ConfigError, DataError
from capro.pipeline import checksums, plan
from capro.pipeline.artefacts import FINISHED
from capro.pipeline.plan import DECIDED, FILES, MISSING, OTHERWISE, Outlook, Plan
from capro.pipeline.progress import Lines
from capro.pipeline.run import Run
from capro.pipeline.stage import Stage, perform
from tests.pipeline.cases import make, stage

STAGES = 12


@dataclass
class Files:
    """Stands for a source whose files have a state."""

    fingerprint: str


def _gamma() -> Stage:
    """A stage that train.gamma decides, and that reads the scan."""
    return Stage(
        "clean", lambda _: None, settings=lambda run: {"g": run.settings.train.gamma}, reads=["scan"]
    )


def _scan(state: str, **options: Any) -> Stage:
    """A scan of files in a state, which finds the same in them always."""
    return replace(stage("scan", lambda _: {"content": "x"}), sources=lambda _: Files(state), **options)


def _changed(run: Run, *overrides: str) -> Run:
    return run.with_settings(update(run.settings, overrides))


def _why(stages: Sequence[Stage], run: Run, **options: bool) -> str:
    """Why the last of some stages is done; empty where it is fresh."""
    return Plan(stages).look(run, stages[-1].name, **options)[-1].why


# --- why ------------------------------------------------------------------------------------------


def test_the_setting_that_decides_a_stage_is_named_and_no_other(tmp_path: Path) -> None:
    run, stages = make(tmp_path), [stage("scan"), _gamma()]
    Plan(stages).do(run, "clean")
    new = _changed(run, "train.gamma=0.4", "train.alpha=0.1", "seed=3")
    assert _why(stages, new) == "train.gamma changed 0.6 -> 0.4"
    assert _why(stages, _changed(run, "seed=3")) == ""


def test_an_input_that_was_done_again_is_named(tmp_path: Path) -> None:
    run, stages = make(tmp_path), [stage("scan", a=1), _gamma()]
    Plan(stages).do(run, "clean")
    perform(run, stage("scan", a=2))
    assert _why([stage("scan", a=2), _gamma()], run) == "it reads scan"


def test_a_stage_that_the_program_makes_in_another_way_is_done_again(tmp_path: Path) -> None:
    run = make(tmp_path)
    perform(run, stage("scan", version=1))
    assert _why([stage("scan", version=2)], run) == OTHERWISE


def test_files_outside_are_looked_at_for_the_stage_that_is_named_alone(tmp_path: Path) -> None:
    run = make(tmp_path)
    Plan([_scan("a"), _gamma()]).do(run, "clean")
    stages = [_scan("b"), _gamma(), stage("evaluate", reads=["clean"])]
    made = Plan(stages)
    assert [each.state for each in made.look(run, "evaluate")] == ["fresh", "fresh", "to do"]
    assert [each.state for each in made.look(run, "scan", outside=False)] == ["fresh"]
    assert made.look(run, "scan", "evaluate") == [
        Outlook("scan", "stale", FILES),
        Outlook("clean", "stale", "only if the result of scan is different", certain=False),
        Outlook("evaluate", "to do", MISSING),
    ]

    def gone(_: Run) -> Files:
        raise DataError("no such folder")

    lost = Plan([replace(_scan("a"), sources=gone), _gamma()])
    assert [each.state for each in lost.look(run, "clean")] == ["fresh", "fresh"]
    with pytest.raises(DataError, match="no such folder"):
        lost.look(run, "scan")


def test_what_reads_a_stage_that_is_known_by_its_content_is_done_again_only_if_that_changes(
    tmp_path: Path,
) -> None:
    run = make(tmp_path)
    embed, match = stage("embed", reads=["scan"]), stage("match", reads=["scan", "embed"])
    report = stage("report", reads=["match", "clean"])
    Plan([_scan("a"), embed, match, _gamma(), report]).do(run, "report")
    made = Plan([_scan("b"), embed, match, _gamma(), report])
    found = made.look(_changed(run, "train.gamma=0.4"), *made.names)
    assert [(each.stage, each.why) for each in found] == [
        ("scan", FILES),
        ("embed", "only if the result of scan is different"),
        ("match", "only if the result of scan, embed is different"),
        ("clean", f"train.gamma changed {run.settings.train.gamma} -> 0.4"),
        ("report", "only if the result of match, clean is different"),
    ]


def test_what_a_person_has_decided_since_is_named(tmp_path: Path) -> None:
    run = make(tmp_path)

    def stages(decisions: str) -> list[Stage]:
        return [stage("scan"), replace(_gamma(), decisions=lambda _: decisions)]

    Plan(stages("")).do(run, "clean")
    assert _why(stages(""), run) == ""
    assert _why(stages("a"), run) == DECIDED
    assert _why(stages("a"), run, decisions=False) == ""
    Plan(stages("a")).do(run, "clean")
    assert _why(stages("a"), run) == ""
    assert _why(stages(""), run) == DECIDED  # taken back


def test_what_is_decided_while_a_stage_works_is_not_taken_for_part_of_it(tmp_path: Path) -> None:
    run, decisions = make(tmp_path, Settings()), ["a"]

    def work(_: object) -> None:
        decisions.append("b")

    clean = Stage("clean", work, decisions=lambda _: decisions[-1])
    perform(run, clean)
    assert _why([clean], run) == DECIDED
    assert perform(run, replace(clean, work=lambda _: None))
    assert _why([clean], run) == ""


def test_what_reads_a_stage_that_will_be_the_same_again_stays_fresh(tmp_path: Path) -> None:
    """Where a stage.json is damaged, the stages behind it were said to be done again, which they are not."""
    run = make(tmp_path, Settings())
    stages = [stage("scan"), stage("embed", reads=["scan"]), stage("match", reads=["embed"])]
    for each in stages:
        perform(run, each)
    (run.folder("embed") / "stage.json").write_text("{")
    found = [(each.stage, each.state, each.why) for each in Plan(stages).look(run, "match")]
    assert found == [
        ("scan", "fresh", ""), ("embed", "to do", "its stage.json is damaged"), ("match", "fresh", ""),
    ]  # fmt: skip
    assert [perform(run, each) for each in stages] == [False, True, False]
    other = [stages[0], stage("embed", reads=["scan"], width=3), stages[2]]
    (run.folder("embed") / "stage.json").unlink()
    assert [each.state for each in Plan(other).look(run, "match")] == ["fresh", "to do", "stale"]
    assert [perform(run, each) for each in other] == [False, True, True]


# --- doing it -------------------------------------------------------------------------------------


def test_what_is_missing_or_out_of_date_is_done_first_and_said_before(tmp_path: Path) -> None:
    run, done, lines = make(tmp_path), list[str](), list[str]()

    def noting(name: str, *reads: str) -> Stage:
        return Stage(
            name, lambda _: done.append(name), settings=lambda run: {"seed": run.settings.seed}, reads=reads
        )

    made = Plan([noting("scan"), noting("embed", "scan"), noting("match", "embed"), noting("clean", "match")])
    made.do(run, "match", watch=Lines(lines.append))
    assert done == ["scan", "embed", "match"]
    assert lines[0] == "to do: scan, embed, match (missing)"
    done.clear()
    lines.clear()
    (run.folder("embed") / FINISHED).unlink()
    made.do(run, "match", watch=Lines(lines.append))
    assert done == ["embed"]  # it came out the same, so match is fresh
    assert lines == ["to do: embed (missing)", "embed: done in 0 s", "match: fresh, nothing to do"]
    done.clear()
    lines.clear()
    made.do(_changed(run, "seed=3"), "embed", watch=Lines(lines.append))
    assert lines[:2] == ["to do: scan (seed changed 0 -> 3)", "to do: embed (seed changed 0 -> 3)"]
    assert Run.open(run.path).settings.seed == 3
    assert (done, run.finished("clean")) == (["scan", "embed"], None)
    made.refresh(Run.open(run.path), watch=Lines(lines.append))  # of what has finished, match is out of date
    assert done == ["scan", "embed", "match"]


def test_what_only_makes_a_stage_quicker_is_not_done_for_one_that_is_fresh(tmp_path: Path) -> None:
    run = make(tmp_path)
    made = Plan(
        [stage("pixels"), replace(stage("features"), uses=["pixels"]), stage("embed", reads=["features"])]
    )
    made.do(run, "embed")
    (run.folder("pixels") / FINISHED).unlink()
    made.do(run, "embed")
    assert run.finished("pixels") is None
    made.do(run, "features", force=True)
    assert run.finished("pixels")


def test_settings_are_written_before_the_work_and_after_all_checks(tmp_path: Path) -> None:
    run = make(tmp_path)

    def gone(_: Run) -> Files:
        raise DataError("no such folder")

    with pytest.raises(DataError):
        Plan([replace(_scan("a"), sources=gone)]).do(_changed(run, "seed=3"), "scan")
    assert Run.open(run.path).settings.seed == 0
    new = Run(tmp_path / "new", Settings())
    with pytest.raises(DataError):
        Plan([replace(_scan("a"), sources=gone)]).do(new, "scan")
    assert not new.path.exists()

    def broken(_: object) -> None:
        assert Run.open(run.path).settings.seed == 3
        raise DataError("no image can be used")

    with pytest.raises(DataError, match="no image"):
        Plan([replace(_scan("a"), work=broken)]).do(_changed(run, "seed=3"), "scan")
    assert Run.open(run.path).settings.seed == 3


def test_each_stage_is_looked_at_once_and_each_stage_json_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stage reads all before it: by the paths between them there would be 2 ** 11 looks."""
    names = [f"s{number:02d}" for number in range(STAGES)]
    stages = [stage(name, reads=names[:at]) for at, name in enumerate(names)]
    run, looked = make(tmp_path), list[str]()
    Plan(stages).do(run, *names)
    real = plan._look_at

    def look_at(stage: Stage, *arguments: Any, **options: Any) -> Any:
        looked.append(stage.name)
        return real(stage, *arguments, **options)

    monkeypatch.setattr(plan, "_look_at", look_at)
    checksums._parsed.cache_clear()
    Plan(stages).do(run, names[-1])
    assert looked == names
    assert checksums._parsed.cache_info().misses == STAGES


def test_a_source_is_opened_once(tmp_path: Path) -> None:
    opened = list[str]()

    def sources(_: Run) -> Files:
        opened.append("now")
        return Files("a")

    scan = replace(_scan("a"), sources=sources)
    Plan([scan]).do(make(tmp_path), "scan")
    assert len(opened) == 1


# --- asking ---------------------------------------------------------------------------------------


def _refuse(lines: Sequence[str]) -> None:
    raise ConfigError("; ".join(lines))


def test_long_work_is_not_replaced_without_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, made = make(tmp_path), Plan([stage("scan"), _gamma(), stage("finetune", reads=["clean"])])
    made.do(run, "finetune", agree=_refuse)  # nothing is replaced
    monkeypatch.setattr(plan, "LONG", 0)
    changed = _changed(run, "train.gamma=0.4")
    with pytest.raises(
        ConfigError, match=r"clean took 0 s and is replaced \(train.gamma changed 0.6 -> 0.4\)"
    ):
        made.do(changed, "finetune", agree=_refuse)
    assert Run.open(run.path).settings.train.gamma == 0.6
    asked = list[str]()
    made.do(changed, "finetune", agree=asked.extend)
    assert len(asked) == 2
    made.do(_changed(changed, "train.gamma=0.5"), "finetune")  # nobody is asked


def test_long_work_behind_data_that_were_moved_is_asked_for_only_if_they_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path)
    Plan([_scan("a"), _gamma()]).do(run, "clean")
    monkeypatch.setattr(plan, "LONG", 0)
    monkeypatch.setattr(Plan, "_ask", lambda _plan, _run, outlooks, _watch, _agree: asked.extend(outlooks))
    asked = list[Outlook]()
    Plan([_scan("b"), _gamma()]).do(run, "scan", "clean")
    assert [each.stage for each in asked if each.state != "fresh"] == ["scan"]
    asked.clear()
    other = replace(_scan("c"), work=lambda _: {"content": "y"})
    Plan([other, _gamma()]).do(run, "scan", "clean")
    assert [each.stage for each in asked if each.state != "fresh"] == ["scan", "clean"]


def test_data_that_a_person_has_decided_on_are_not_replaced_without_asking(tmp_path: Path) -> None:
    run = make(tmp_path)

    def seed(run: Run) -> dict[str, int]:
        return {"seed": run.settings.seed}

    def made(state: str, decisions: str) -> Plan:
        return Plan(
            [_scan(state, settings=seed, subject=True), replace(_gamma(), decisions=lambda _: decisions)]
        )

    made("a", "").do(run, "clean")
    made("a", "").do(_changed(run, "seed=1"), "scan", agree=_refuse)  # nobody has decided anything
    made("b", "me").do(Run.open(run.path), "scan", agree=_refuse)  # files were added
    with pytest.raises(ConfigError, match="decisions on what is gone are not used"):
        made("b", "me").do(_changed(run, "seed=2"), "scan", agree=_refuse)
    made("b", "me").do(_changed(run, "seed=1", "train.gamma=0.4"), "clean", agree=_refuse)
