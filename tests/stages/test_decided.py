"""What a person decided, through the stages: fixed in the method, and only what depends on it is done again."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from capro.core.kept_scores import KeptScores
from capro.errors import DataError
from capro.pipeline.artefacts import ANCHORS, CLEANED_LABELS, FUSED_SCORES, POSTERIOR, SOFT_LABELS, VERDICTS
from capro.pipeline.run import Run
from capro.review.answers import Decision
from capro.review.log import open_log
from capro.stages import PLAN, run_all
from capro.stages.decided import decided_set
from capro.train.setup import anchored_of, training_set
from tests import squares

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("words")]


def made(folder: Path, *overrides: str, multi: bool = False) -> Run:
    source = squares.write_data(folder / "data", multi=multi)
    run = Run.create(folder / "run", squares.settings(source, *overrides, multi=multi))
    run_all(run)
    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made(tmp_path_factory.mktemp("decided"), "method=plus")


def copied(run: Run, tmp_path: Path) -> Run:
    shutil.copytree(run.path, tmp_path / "run")
    return Run.open(tmp_path / "run")


def fresh(run: Run) -> set[str]:
    """Stages that a run would skip; asked in order, as a stage behind a stale one is stale with it."""
    return {stage.name for stage in PLAN.of(run.settings) if stage.is_fresh(run)}


def test_decisions_are_fixed_and_only_what_depends_on_them_is_done_again(
    finished: Run, tmp_path: Path
) -> None:
    run = copied(finished, tmp_path)
    everything = fresh(run)
    assert everything == {stage.name for stage in PLAN.of(run.settings)}
    training = training_set(run)
    ids, names = training.row_ids, training.classes
    labels = training.labels.numpy()
    other = names[(int(labels[0]) + 1) % len(names)]
    chosen = set(run.read(ANCHORS)["row"])
    picked = next(row for row in range(3, len(ids)) if row not in chosen)
    dropped = next(row for row in sorted(chosen) if row not in (0, 2, picked))
    log = open_log(run)
    log.decide([Decision(ids[0], "labels", yes=(other,))], person="me")
    log.decide([Decision(ids[dropped], "out")], person="me")
    log.decide([Decision(ids[2], "copy")], person="me")
    own = names[int(labels[picked])]
    log.decide([Decision(ids[picked], "labels", yes=(own,), anchor=True)], person="me")
    log.close()
    assert everything - fresh(run) == {"match", "posterior", "clean"}
    before = run.stamp("pretrain"), run.stamp("embed")
    run_all(run)
    assert (run.stamp("pretrain"), run.stamp("embed")) == before
    cleaned = np.array(run.read(CLEANED_LABELS))
    assert names[cleaned[0]] == other
    assert cleaned[dropped] == cleaned[2] == -1
    assert names[cleaned[picked]] == own
    q = KeptScores(run.read(POSTERIOR), "posterior", 4)[:]
    assert q[0, names.index(other)] == q[dropped, -1] == 1
    assert q[2].max() < 1  # a copy shows what it shows
    anchors = run.read(ANCHORS)
    assert picked in set(anchors["row"])
    assert dropped not in set(anchors["row"])
    verdicts = run.read(VERDICTS)
    people = verdicts["decided_by"] == "person"
    assert set(np.flatnonzero(people)) == {0, 2, dropped, picked}
    assert verdicts["evidence"][0].startswith("Decided by a person. ")
    assert fresh(run) == everything


def test_undoing_everything_brings_the_old_fingerprints_back(finished: Run, tmp_path: Path) -> None:
    run = copied(finished, tmp_path)
    log = open_log(run)
    log.decide([Decision(training_set(run).row_ids[0], "out")], person="me")
    assert "clean" not in fresh(run)
    log.append("undo", "me", {})
    assert "clean" in fresh(run)
    log.decide([Decision(training_set(run).row_ids[0], "unsure")], person="me")
    assert "clean" in fresh(run)  # not sure decides nothing
    log.close()


def test_several_labels(tmp_path: Path) -> None:
    run = made(tmp_path, "method=plus", multi=True)
    training = training_set(run)
    ids, names = training.row_ids, training.classes
    given = training.labels.numpy()
    add = names[int(np.flatnonzero(given[0] == 0)[0])]
    log = open_log(run)
    log.decide([Decision(ids[0], "labels", yes=(add,), whole=False)], person="me")
    log.decide([Decision(ids[1], "labels", yes=(names[0],))], person="me")
    log.decide([Decision(ids[2], "out")], person="me")
    log.close()
    run_all(run)
    cleaned = np.array(run.read(CLEANED_LABELS))
    fused = KeptScores(run.read(FUSED_SCORES), "fused", cleaned.shape[1])[:]
    assert cleaned[0, names.index(add)] == fused[0, names.index(add)] == 1
    assert cleaned[1].tolist() == [1, *[0] * (len(names) - 1)]
    assert (cleaned[2] == -1).all()
    assert np.array(run.read(SOFT_LABELS))[1].tolist() == cleaned[1].tolist()
    table = run.read(VERDICTS)
    mine = table[(table["id"] == ids[0]) & (table["decided_by"] == "person")]
    assert mine["class"].tolist() == [add]


def test_capro_as_published_keeps_decided_labels(tmp_path: Path) -> None:
    run = made(tmp_path, "method=paper")
    training = training_set(run)
    ids, names, labels = training.row_ids, training.classes, training.labels.numpy()
    other = (int(labels[0]) + 1) % len(names)
    log = open_log(run)
    log.decide([Decision(ids[0], "labels", yes=(names[other],)), Decision(ids[1], "out")], person="me")
    log.close()
    run_all(run)
    assert np.array(run.read(CLEANED_LABELS))[:2].tolist() == [other, -1]
    settled, anchored = decided_set(run, training, anchored_of(run, training))
    assert ids[1] not in settled.row_ids  # step 2 does not see it
    assert settled.row_ids == [ids[0], *ids[2:]]
    assert int(settled.labels[0]) == other
    assert bool(anchored[0])
    log = open_log(run)
    log.decide([Decision(sample, "out") for sample in ids], person="me")
    log.close()
    with pytest.raises(DataError, match="dropped every training sample"):
        decided_set(run, training, anchored_of(run, training))
