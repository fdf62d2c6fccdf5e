"""Why a finished stage is stale: a setting, a stage that it reads, files; or nothing that is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from capro.config import Settings, update
from capro.errors import DataError
from capro.pipeline.plan import DECIDED, FILES, UNKNOWN, Outlook, decides, outdated, outlook
from capro.pipeline.run import Run
from capro.pipeline.stage import Stage, perform
from tests.fakes import as_version_0_1_0
from tests.pipeline.cases import make, stage


def _gamma() -> Stage:
    """A stage that train.gamma decides, and that reads the scan."""
    return Stage(
        "clean", lambda _: None, settings=lambda run: {"g": run.settings.train.gamma}, reads=["scan"]
    )


def _changed(run: Run, *overrides: str) -> Run:
    return run.with_settings(update(run.settings, overrides))


def test_the_setting_that_decides_a_stage_is_named_and_no_other(tmp_path: Path) -> None:
    run = make(tmp_path)
    perform(run, stage("scan"))
    perform(run, _gamma())
    new = _changed(run, "train.gamma=0.4", "train.alpha=0.1", "seed=3")
    assert decides(_gamma(), run, "train.gamma", new.settings)
    assert not decides(_gamma(), run, "train.alpha", new.settings)
    assert outdated(_gamma(), new) == ["train.gamma was 0.6, is 0.4"]
    assert outdated(_gamma(), _changed(run, "seed=3")) == []


def test_a_stage_that_was_done_again_is_named(tmp_path: Path) -> None:
    run = make(tmp_path)
    perform(run, stage("scan", a=1))
    perform(run, _gamma())
    perform(run, stage("scan", a=2))
    assert outdated(_gamma(), run) == ["scan was done again since"]


def test_files_outside_are_looked_at_by_the_outlook_alone(tmp_path: Path) -> None:
    run = make(tmp_path)

    def scan(files: int) -> Stage:
        return replace(stage("scan"), files=lambda _: {"files": files})

    perform(run, scan(1))
    perform(run, _gamma())
    assert outdated(scan(2), run) == []
    assert outlook([scan(2), _gamma(), stage("evaluate", reads=["clean"])], run) == [
        Outlook("scan", "stale", FILES),
        Outlook("clean", "stale", "it reads scan"),
        Outlook("evaluate", "to do"),
    ]


def test_what_reads_a_stage_that_is_known_by_its_content_is_done_again_only_if_that_changes(
    tmp_path: Path,
) -> None:
    run = make(tmp_path)

    def scan(files: int) -> Stage:
        return replace(stage("scan", lambda _: {"content": "x"}), files=lambda _: {"files": files})

    embed, match = stage("embed", reads=["scan"]), stage("match", reads=["scan", "embed"])
    report = stage("report", reads=["match", "clean"])
    for each in (scan(1), embed, match, _gamma(), report):
        perform(run, each)
    found = outlook([scan(2), embed, match, _gamma(), report], _changed(run, "train.gamma=0.4"))
    assert [(each.stage, each.why) for each in found] == [
        ("scan", FILES),
        ("embed", "only if the result of scan is different"),
        ("match", "only if the result of scan, embed is different"),
        ("clean", f"train.gamma was {run.settings.train.gamma}, is 0.4"),
        ("report", "it reads clean"),
    ]


def test_a_stage_of_version_0_1_0_says_only_that_something_changed(tmp_path: Path) -> None:
    run = make(tmp_path, Settings())
    perform(run, stage("scan"))
    perform(run, _gamma())
    as_version_0_1_0(run.folder("clean") / "stage.json", "settings", "reads")
    assert outdated(_gamma(), run) == []
    assert outdated(_gamma(), _changed(run, "train.gamma=0.4")) == [UNKNOWN]

    def gone(_: Run) -> dict[str, str]:
        raise DataError("the source is not there")

    assert outdated(replace(_gamma(), files=gone), run) == []  # what was made of it is still whole


def test_what_a_person_has_decided_since_is_named(tmp_path: Path) -> None:
    run = make(tmp_path, Settings())

    def clean(said: str) -> Stage:
        return replace(_gamma(), decisions=lambda _: said)

    perform(run, stage("scan"))
    perform(run, clean(""))
    assert outdated(clean(""), run) == []
    assert outdated(clean("a"), run) == [DECIDED]
    assert outdated(clean("a").as_applied(), run) == []
    assert outlook([stage("scan"), clean("a")], run)[1] == Outlook("clean", "stale", DECIDED)
    perform(run, clean("a"))
    assert outdated(clean("a"), run) == []
    assert outdated(clean(""), run) == [DECIDED]  # taken back
    file = run.folder("clean") / "stage.json"
    as_version_0_1_0(file, "decisions")  # an earlier version kept them in the fingerprint alone
    assert outdated(clean("a"), run) == []
    assert outdated(clean("b"), run) == [DECIDED]


def test_what_is_decided_while_a_stage_works_is_not_taken_for_part_of_it(tmp_path: Path) -> None:
    run, said = make(tmp_path, Settings()), ["a"]

    def work(_: object) -> None:
        said.append("b")

    clean = Stage("clean", work, decisions=lambda _: said[-1])
    perform(run, clean)
    assert outdated(clean, run) == [DECIDED]
    assert perform(run, replace(clean, work=lambda _: None))
    assert outdated(clean, run) == []


def test_what_reads_a_stage_that_will_be_the_same_again_stays_fresh(tmp_path: Path) -> None:
    """Where a stage.json is damaged, the stages behind it were said to be done again, which they are not."""
    run = make(tmp_path, Settings())
    stages = [stage("scan"), stage("embed", reads=["scan"]), stage("match", reads=["embed"])]
    for each in stages:
        perform(run, each)
    (run.folder("embed") / "stage.json").write_text("{")
    found = [(each.stage, each.state, each.why) for each in outlook(stages, run)]
    assert found == [
        ("scan", "fresh", ""), ("embed", "to do", "its stage.json is damaged"), ("match", "fresh", ""),
    ]  # fmt: skip
    assert [perform(run, each) for each in stages] == [False, True, False]
    other = [stages[0], stage("embed", reads=["scan"], width=3), stages[2]]
    (run.folder("embed") / "stage.json").unlink()
    assert [each.state for each in outlook(other, run)] == ["fresh", "to do", "stale"]
    assert [perform(run, each) for each in other] == [False, True, True]
