"""Settings are chosen on held-out training samples: the test set and the truth stay unread."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import choose
import variants
from capro.bench import Bench
from capro.data.manifest import manifest_of
from tests import squares


def bench_on(folder: Path, *, multi: bool) -> Bench:
    data = squares.write_data(folder / "data", multi=multi)
    (data / "train_truth.csv").unlink()
    return Bench(folder / "bench", squares.settings(data, multi=multi), (0,))


def test_held_out_samples_stand_in_for_the_test_set(tmp_path: Path) -> None:
    bench = bench_on(tmp_path, multi=False)
    base = variants.base_of(bench)
    whole = manifest_of(base)
    train = set(whole.samples["id"].iloc[whole.split("train")])
    pool = choose.pool_of(bench, "agree")
    seen = set()
    for fold in range(3):
        plan = choose.held_out(base, pool, fold)
        found = choose.figures_of(bench, plan, f"fold {fold}", ["train.gamma=0.5"], fold, ["vanilla"])
        assert {"top1", "class-top1"} <= set(found["vanilla"])
        manifest = manifest_of(bench.run_of("choose", f"fold {fold}-train.gamma=0.5", [], fold))
        held = set(manifest.samples["id"].iloc[manifest.split("test")])
        assert len(held) == len(pool) // 3
        assert not held & seen
        assert set(manifest.samples["id"]) == train
        seen |= held


def test_a_tenth_is_held_out_and_the_others_are_thinned(tmp_path: Path) -> None:
    bench = bench_on(tmp_path, multi=True)
    base = variants.base_of(bench)
    plan = choose.held_out(base, None, 1, thin=0.5)
    found = choose.figures_of(bench, plan, "thin", [], 1, ["vanilla", "CAPro"])
    assert all({"C-F1", "O-F1", "mAP"} <= set(found[row]) for row in ("vanilla", "CAPro"))
    manifest, whole = manifest_of(bench.run_of("choose", "thin", [], 1)), manifest_of(base)
    before = dict(zip(whole.samples["id"], whole.samples["labels"], strict=True))
    samples = manifest.samples
    lost = np.array(
        [len(before[i]) - len(left) for i, left in zip(samples["id"], samples["labels"], strict=True)]
    )
    assert not lost[manifest.split("test")].any()
    assert lost[manifest.split("train")].sum() == pytest.approx(0.5 * 64, abs=15)
    assert len(manifest.split("test")) == 4
