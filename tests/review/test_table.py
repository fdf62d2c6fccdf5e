"""The table: the same as the verdicts and the manifest say, row by row."""

from __future__ import annotations

import numpy as np
import pytest

from capro.errors import RunError
from capro.pipeline.artefacts import CLEANED_LABELS
from capro.pipeline.run import Run
from capro.results.store import VERDICT_NAMES
from capro.review.table import load_table
from tests.fakes import rewrite


def test_one_label_equals_the_verdicts(run: Run) -> None:
    table, frame = load_table(run), run.issues()
    for row in range(len(table)):
        said = frame.iloc[row]
        assert table.sample_id(row) == said["id"]
        assert table.labels(row, before=True) == (said["given_label"],)
        after = (said["corrected_label"],) if isinstance(said["corrected_label"], str) else ()
        assert table.labels(row, before=False) == after
        assert VERDICT_NAMES[table.decision[row]] == said["decision"]
        assert table.detail(row)["evidence"] == said["evidence"]
        others = table.rows_of(list(said["near_duplicate_sets"]))
        assert all(table.duplicate_group[other] == table.duplicate_group[row] >= 0 for other in others)
    assert table.rows_of(["nobody", table.sample_id(2)]).tolist() == [-1, 2]


def test_several_labels_equal_the_verdicts(multi_run: Run) -> None:
    table, frame = load_table(multi_run), multi_run.issues()
    for row in range(len(table)):
        assert set(table.labels(row, before=True)) == set(frame["given_labels"][row])
        assert set(table.labels(row, before=False)) == set(frame["corrected_labels"][row])
    assert np.isfinite(table.error).all()


def test_words_are_searched_in_texts_and_ids_in_any_case(run: Run) -> None:
    table = load_table(run)
    assert table.containing("TAG0").sum() == 8
    assert table.containing("tag0 002").sum() == 0
    assert table.containing("000 x.png").sum() == 1
    assert table.text(0)["tags"] == "tag0 web"


def test_verdicts_of_another_scan_are_refused(run: Run) -> None:
    rewrite(run, CLEANED_LABELS, np.zeros(3, np.int64))
    with pytest.raises(RunError, match="belong to another scan"):
        load_table(run)
