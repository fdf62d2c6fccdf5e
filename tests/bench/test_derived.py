"""Derived manifests: rows left out, splits and labels changed, everything else as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from capro.bench.derived import derived_plan, derived_rows
from capro.data.manifest import Manifest, manifest_of
from capro.pipeline.artefacts import KEY_FEATURES, PLAIN_FEATURES, QUERY_FEATURES
from capro.pipeline.run import Run
from capro.stages import PLAN
from tests import squares


def scanned(folder: Path, *, multi: bool = False) -> Run:
    data = squares.write_data(folder / "data", train=4, test=2, noise=1, multi=multi)
    run = Run.create(folder / "base", squares.settings(data, multi=multi))
    PLAN.do(run, "scan")
    return run


def test_rows_left_out_and_splits_changed(tmp_path: Path) -> None:
    source = manifest_of(scanned(tmp_path))
    keep = np.arange(len(source.samples)) % 2 == 0
    split = ["val" if name == "test" else name for name in source.samples["split"]]
    found = Manifest(derived_rows(source, keep, split=split))
    assert found.samples["id"].tolist() == source.samples["id"][keep].tolist()
    assert found.samples["labels"].tolist() == source.samples["labels"][keep].tolist()
    assert set(found.samples["split"]) == {"train", "val"}
    assert (found.task, found.sources) == (source.task, source.sources)
    assert Manifest(derived_rows(source, ~np.zeros_like(keep))).content == source.content


@pytest.mark.parametrize("multi", [False, True])
def test_labels_changed(tmp_path: Path, multi: bool) -> None:
    source = manifest_of(scanned(tmp_path, multi=multi))
    everyone = np.ones(len(source.samples), dtype=bool)
    labels = [("lime", "azure") if multi else ("lime",) for _ in everyone]
    if multi:
        labels[0] = ()
    found = Manifest(derived_rows(source, everyone, labels=labels))
    assert found.task == source.task
    assert found.samples["labels"].tolist() == labels


def test_features_are_taken_by_sample(tmp_path: Path) -> None:
    base = scanned(tmp_path)
    PLAN.do(base, "features")
    source = manifest_of(base)
    train = source.split("train")
    split = source.samples["split"].to_numpy(dtype=object).copy()
    keep = split == "train"
    split[train[:3]] = "test"
    plan = derived_plan(base, derived_rows(source, keep, split=split.tolist()), {"first": 3})
    run = Run.create(tmp_path / "derived", base.settings)
    plan.do(run, "features")
    np.testing.assert_array_equal(run.read(PLAIN_FEATURES), base.read(PLAIN_FEATURES)[train])
    for views in (QUERY_FEATURES, KEY_FEATURES):
        np.testing.assert_array_equal(run.read(views), base.read(views)[:, 3:])
