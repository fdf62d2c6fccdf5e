"""The verdict store: the same as the verdicts and the manifest say, row by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from capro.data.labels import labels_of
from capro.data.manifest import manifest_of
from capro.errors import RunError
from capro.pipeline.artefacts import ANCHORS, CLEANED_LABELS, VERDICTS
from capro.pipeline.run import Run
from capro.results.store import VERDICT_NAMES, VerdictStore
from tests.fakes import rewrite
from tests.made_up import CLASSES
from tests.report import made as report_run
from tests.review.made import make_run


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("single"))


@pytest.fixture(scope="module")
def multi(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("multi"), multi=True)


def test_single_label_rows_equal_the_verdicts(single: Run) -> None:
    store, frame = VerdictStore(single), single.issues()
    assert len(store) == len(frame)
    for row, verdict in enumerate(frame.to_dict("records")):
        assert store.sample_id(row) == verdict["id"]
        assert store.labels(row, before=True) == (verdict["given_label"],)
        after = (verdict["corrected_label"],) if isinstance(verdict["corrected_label"], str) else ()
        assert store.labels(row, before=False) == after
        assert VERDICT_NAMES[store.decision[row]] == verdict["decision"]
        assert store.evidence(row) == store.detail(row)["evidence"] == verdict["evidence"]
        assert store.label_score[row] == pytest.approx(verdict["label_score"])
        others = store.rows_of(list(verdict["near_duplicate_sets"]))
        assert all(store.duplicate_group[other] == store.duplicate_group[row] >= 0 for other in others)
        assert set(others.tolist()) <= set(store.group_of(row).tolist())
    assert store.rows_of(["nobody", store.sample_id(2)]).tolist() == [-1, 2]
    assert store.none_score is None


def test_multi_label_rows_equal_the_verdicts(multi: Run) -> None:
    store, frame = VerdictStore(multi), multi.issues()
    assert store.multi_label
    for row in range(len(store)):
        assert set(store.labels(row, before=True)) == set(frame["given_labels"][row])
        assert set(store.labels(row, before=False)) == set(frame["corrected_labels"][row])


@pytest.mark.parametrize("name", ["single", "multi"])
def test_labels_positions_and_anchors_are_those_of_the_manifest(
    name: str, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(name)
    store, manifest = VerdictStore(run), manifest_of(run)
    train = manifest.split("train")
    assert store.positions.tolist() == train.tolist()
    assert store.given.tolist() == labels_of(manifest, train, CLASSES).tolist()
    anchors = run.read(ANCHORS)
    for c in range(len(CLASSES)):
        assert store.anchors_of(c).tolist() == anchors.loc[anchors["class_index"] == c, "row"].tolist()
    texts = manifest.samples.iloc[train][["title", "description", "tags"]].sum(axis=1)
    assert store.without_text.tolist() == (texts.str.strip() == "").tolist()


def test_words_are_searched_in_texts_and_ids_in_any_case(single: Run) -> None:
    store = VerdictStore(single)
    assert store.containing("TAG0").sum() == 8
    assert store.containing("tag0 002").sum() == 0
    assert store.containing("000 x.png").sum() == 1
    assert store.text(0)["tags"] == "tag0 web"


def test_before_cleaning_there_are_classes_and_labels_of_the_data(tmp_path: Path) -> None:
    store = VerdictStore(report_run.make_run(tmp_path, upto="scan"))
    assert store.names == sorted(report_run.NAMES)
    assert store.kind.counts(store.given, len(store.names)).tolist() == [12] * 4
    assert not store.has_verdicts
    assert not len(store.anchors)
    assert store.visual is None
    with pytest.raises(RunError, match="the clean stage has not finished"):
        _ = store.corrected


def test_the_share_of_none_and_what_a_person_decided(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    store = VerdictStore(run)
    assert store.none_share is None
    assert store.drop_levels == []
    n, labels = len(store), np.array(store.corrected)
    labels[:2] = -1, 0
    none = np.linspace(0, 0.95, n).astype(np.float32)
    rewrite(run, CLEANED_LABELS, labels)
    rewrite(run, VERDICTS, run.issues().assign(none_score=none, fused_score=1 - none))
    store = VerdictStore(run)
    assert store.none_share is not None
    np.testing.assert_allclose(store.none_share, none, atol=1e-6)
    by = ["person"] * 2 + ["method"] * (n - 2)
    rewrite(run, VERDICTS, run.issues().assign(decided_by=by))
    store = VerdictStore(run)
    assert store.none_share is not None
    assert store.none_share[:2].tolist() == [np.inf, -np.inf]
    half = next(level for level in store.drop_levels if level.value == 0.5)
    assert half.dropped == 1 + (none[2:] > 0.5).sum()


def test_verdicts_of_another_scan_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    rewrite(run, VERDICTS, run.issues().iloc[:-1])
    with pytest.raises(RunError, match="belong to another scan"):
        _ = VerdictStore(run).decision
    rewrite(run, CLEANED_LABELS, np.zeros(3, np.int64))
    assert not VerdictStore(run).has_verdicts
    with pytest.raises(RunError, match="belong to another scan"):
        _ = VerdictStore(run).corrected
