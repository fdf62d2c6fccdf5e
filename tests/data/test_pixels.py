"""Both views of a batch: an image is decoded once, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from capro.config import DataSettings, ScanSettings, ViewSettings
from capro.data import readers
from capro.data.manifest import Manifest
from capro.data.pixels import ImageStore, Pixels
from capro.data.scan import scan_sources
from capro.data.views import KEY, QUERY
from capro.errors import DataError
from capro.train.batches import PLAIN, BatchPlan, ImageInputs, load_batches
from tests.data.corpus import jpeg, png
from tests.data.scanning import put, scan_it


@pytest.fixture
def pixels(tmp_path: Path) -> Pixels:
    for seed in range(5):
        path = tmp_path / "data" / "a" / f"{seed}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(40, 30, seed=seed))
    found = readers.find(DataSettings(), source=str(tmp_path / "data"))
    scan_sources(found, tmp_path / "scan", ScanSettings(workers=1))
    manifest = Manifest.load(tmp_path / "scan" / "manifest.parquet")
    return Pixels(manifest, ScanSettings(), min_side=64)


def test_several_views_are_those_of_one_at_a_time_with_fewer_decodings(
    pixels: Pixels, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape: Any = SimpleNamespace(size=16, mean=(0.5,) * 3, std=(0.25,) * 3)
    inputs = ImageInputs(pixels, shape, ViewSettings(), seed=3)
    query, key = np.array([3, 0, 1]), np.array([1, 4, 0])
    apart = [
        inputs.raw(query, epoch=2, view=QUERY),
        inputs.raw(key, epoch=2, view=KEY),
        inputs.raw(key, epoch=2, view=PLAIN),
    ]
    decoded: list[int] = []
    whole = pixels.pixels

    def counted(position: int) -> Any:
        decoded.append(position)
        return whole(position)

    monkeypatch.setattr(pixels, "pixels", counted)
    together = inputs.raws([(query, QUERY), (key, KEY), (key, PLAIN)], epoch=2)
    for one, other in zip(apart, together, strict=True):
        assert np.array_equal(one, other)
    assert sorted(decoded) == [0, 1, 3, 4]
    assert not np.array_equal(together[1], inputs.raw(key, epoch=3, view=KEY))


def test_cached_and_decoded_images_give_the_same_views(pixels: Pixels, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    pixels.build(tmp_path / "cache")
    manifest = Manifest.load(tmp_path / "scan" / "manifest.parquet")
    cached = Pixels(manifest, ScanSettings(), min_side=64, cache=tmp_path / "cache")
    assert np.array_equal(pixels.pixels(2)[..., :3], np.asarray(cached.image(2)))
    shape: Any = SimpleNamespace(size=16, mean=(0.5,) * 3, std=(0.25,) * 3)
    at, cpu = np.arange(5), torch.device("cpu")
    for view in (QUERY, KEY, PLAIN):
        one, other = (
            inputs.ready(inputs.raw(at, epoch=1, view=view), at, epoch=1, view=view, device=cpu)
            for inputs in (ImageInputs(source, shape, ViewSettings(), seed=3) for source in (pixels, cached))
        )
        assert torch.equal(one, other)


def test_few_images_are_on_their_way_at_once(
    pixels: Pixels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million that wait take two gigabytes."""
    monkeypatch.setattr("capro.data.pixels.AHEAD", 2)
    begun, done = [], []
    real = Pixels.image

    def decode(self: Pixels, position: int) -> Any:
        begun.append(position)
        assert len(begun) - len(done) <= 2
        return real(self, position)

    monkeypatch.setattr(Pixels, "image", decode)
    pixels.build(tmp_path / "cache", progress=done.append)
    assert sorted(begun) == [*range(5)]


def test_reused_buffers_change_no_batch(pixels: Pixels) -> None:
    shape: Any = SimpleNamespace(size=16, mean=(0.5,) * 3, std=(0.25,) * 3)
    inputs = ImageInputs(pixels, shape, ViewSettings(), seed=3)
    rows, cpu = np.tile(np.arange(5), 6), torch.device("cpu")
    batches = load_batches(
        inputs, BatchPlan(30, 4, 0), rows, epoch=1, first=0, keys=True, rank=0, ranks=1, device=cpu
    )
    for batch in list(batches):  # all of them are made before the first is looked at
        at, key_at = rows[batch.everyone], rows[batch.everyone[batch.key_order]]
        query = inputs.ready(inputs.raw(at, epoch=1, view=QUERY), at, epoch=1, view=QUERY, device=cpu)
        key = inputs.ready(inputs.raw(key_at, epoch=1, view=KEY), key_at, epoch=1, view=KEY, device=cpu)
        assert torch.equal(batch.query, query)
        assert batch.key is not None
        assert torch.equal(batch.key, key)


def test_a_vanished_image_is_reported_with_its_sample(tmp_path: Path) -> None:
    put(tmp_path / "d" / "a" / "1.png", png())
    manifest, _ = scan_it(tmp_path / "d", tmp_path / "out")
    (tmp_path / "d" / "a" / "1.png").unlink()
    with pytest.raises(DataError, match=r"train/a/1\.png"):
        ImageStore(manifest).read(0)
