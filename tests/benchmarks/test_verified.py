"""The draw of verified samples: a share of the truth, the same for the same seed, and a table that baselines read."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import verified
from capro import config
from capro.data.manifest import manifest_of
from capro.pipeline.run import Run
from capro.results.truth import read_truth
from capro.stages import PLAN
from tests import squares


def test_a_share_is_drawn_by_the_seed_and_can_be_read(tmp_path: Path) -> None:
    data = squares.write_data(tmp_path / "data")
    files = [
        verified.write_verified(data / "train_truth.csv", tmp_path / f"{number}.csv", share=0.25, seed=seed)
        for number, seed in enumerate((0, 0, 1))
    ]
    texts = [file.read_text() for file in files]
    assert texts[0] == texts[1] != texts[2]
    whole = (data / "train_truth.csv").read_text().splitlines()
    assert set(texts[0].splitlines()) < set(whole)
    run = Run.create(
        tmp_path / "run", config.update(squares.settings(data), [f"baselines.verified={files[0]}"])
    )
    PLAN.do(run, "scan")
    known = read_truth(files[0], manifest_of(run)).labels
    assert (len(known), sum(names is not None for names in known)) == (48, 12)


def test_lists_of_labels_stay_lists(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": [str(i) for i in range(50)], "true_labels": [["a", "b"], []] * 25})
    frame.to_parquet(tmp_path / "train_truth.parquet")
    found = verified.write_verified(
        tmp_path / "train_truth.parquet", tmp_path / "v.parquet", share=0.1, seed=3
    )
    drawn = pd.read_parquet(found)
    assert len(drawn) == 5
    for row in drawn.itertuples():
        assert list(row.true_labels) == list(frame.set_index("id").true_labels[row.id])


def test_a_share_that_draws_nobody_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("file_name,true_labels\na.png,cat\n")
    with pytest.raises(SystemExit, match="none of 1 samples"):
        verified.write_verified(tmp_path / "t.csv", tmp_path / "v.csv", share=0.1, seed=0)
