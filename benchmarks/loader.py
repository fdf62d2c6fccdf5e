"""Reading images into two views against bare Pillow decoding, in one run with equal workers.

    python benchmarks/loader.py [--images 2000] [--rounds 5]

Two bounds (exit code 1 if one is broken): decoding 500 x 375 JPEGs into two views of 224 px, on the
path that training takes, reaches at least 60 % of the rate at which Pillow decodes the same files in
draft mode and does nothing else; folder and tar sources are within 10 % of each other. The rounds
alternate and ratios are taken within a round, so that other work on the machine hits all alike; their
median counts.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image

from capro.config import DataSettings, ScanSettings, ViewSettings
from capro.data import readers
from capro.data.manifest import Manifest
from capro.data.pixels import Pixels
from capro.data.scan import scan_sources
from capro.pipeline.artefacts import MANIFEST
from capro.train.batches import BatchPlan, ImageInputs, load_batches, workers

SIZE, WIDTH, HEIGHT = 224, 500, 375
BATCH = 16  # many small batches: the last ones, on which a worker waits, weigh little


class HostPart(ImageInputs):
    """Both views without the device's part (colours and normalisation)."""

    def ready(self, raw: Any, *_: Any, **__: Any) -> torch.Tensor:
        return torch.from_numpy(raw)


def photograph(seed: int) -> bytes:
    """A JPEG with the spectrum of photographs (amplitude 1/f), some 90 kB."""
    rng = np.random.default_rng(seed)
    fy, fx = np.fft.fftfreq(HEIGHT)[:, None], np.fft.fftfreq(WIDTH)[None]
    amplitude = 1 / np.maximum(np.hypot(fy, fx), 1 / WIDTH)
    planes = []
    for _ in range(3):
        phase = np.exp(2j * np.pi * rng.random((HEIGHT, WIDTH)))
        plane = np.fft.ifft2(amplitude * phase).real
        planes.append((plane - plane.mean()) / plane.std())
    colour = [0.8 * planes[0] + 0.2 * plane for plane in planes]
    pixels = np.clip(np.stack(colour, axis=-1) * 50 + 128, 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=87)
    return out.getvalue()


def make(folder: Path, images: int) -> None:
    """The same JPEGs as a folder and as tar shards."""
    kinds = [photograph(seed) for seed in range(min(images, 40))]
    (folder / "files" / "photo").mkdir(parents=True)
    (folder / "tars").mkdir()
    for begin in range(0, images, 200):
        with tarfile.open(folder / "tars" / f"{begin // 200:05d}.tar", "w") as tar:
            for number in range(begin, min(begin + 200, images)):
                data = kinds[number % len(kinds)]
                (folder / "files" / "photo" / f"{number:06d}.jpg").write_bytes(data)
                for name, content in ((f"{number:06d}.jpg", data), (f"{number:06d}.cls", b"photo")):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def views_of(source: Path, out: Path) -> HostPart:
    manifest_folder = out / source.name
    scan_sources(readers.find(DataSettings(), source=str(source)), manifest_folder, ScanSettings())
    manifest = Manifest.load(manifest_folder / MANIFEST.file)
    pixels = Pixels(manifest, ScanSettings(), min_side=2 * SIZE)
    shape: Any = SimpleNamespace(size=SIZE, mean=(0.5,) * 3, std=(0.25,) * 3)
    return HostPart(pixels, shape, ViewSettings(), seed=0)


def read_views(inputs: HostPart, images: int, epoch: int) -> tuple[float, float]:
    begin, cpu = time.perf_counter(), time.process_time()
    batches = load_batches(
        inputs, BatchPlan(images, BATCH, 0), np.arange(images), epoch=epoch, first=0, keys=True,
        rank=0, ranks=1, device=torch.device("cpu"),
    )  # fmt: skip
    done = sum(len(batch.query) for batch in batches)
    return done / (time.perf_counter() - begin), (time.process_time() - cpu) / done


def bare(files: list[Path]) -> tuple[float, float]:
    def one(file: Path) -> None:
        image = Image.open(io.BytesIO(file.read_bytes()))
        image.draft("RGB", (SIZE, SIZE))
        image.load()

    begin, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(workers(1)) as pool:
        list(pool.map(one, files))
    return len(files) / (time.perf_counter() - begin), (time.process_time() - cpu) / len(files)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    a = parser.parse_args()
    torch.set_num_threads(1)  # the workers are the threads
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        make(root, a.images)
        files = sorted((root / "files" / "photo").iterdir())
        sources = {name: views_of(root / name, root / "scans") for name in ("files", "tars")}
        rates: dict[str, list[tuple[float, float]]] = {"bare Pillow": [], **{name: [] for name in sources}}
        for number in range(a.rounds + 1):
            rates["bare Pillow"].append(bare(files))
            for name, inputs in sources.items():
                rates[name].append(read_views(inputs, a.images, number))
    timed = {name: [rate for rate, _ in found[1:]] for name, found in rates.items()}  # after warming up
    print(f"{a.images} JPEGs of {WIDTH} x {HEIGHT}, {workers(1)} workers, median of {a.rounds} rounds")
    for name, found in timed.items():
        spread = ", ".join(f"{value:.0f}" for value in found)
        cpu = statistics.median(seconds for _, seconds in rates[name][1:])
        rate = statistics.median(found)
        print(f"{name:<12}{rate:>8.0f} images/s   {1000 * cpu:.2f} ms of CPU each   ({spread})")
    rounds = list(zip(timed["bare Pillow"], timed["files"], timed["tars"], strict=True))
    share = statistics.median(min(files, tars) / bare for bare, files, tars in rounds)
    apart = abs(statistics.median(tars / files for _, files, tars in rounds) - 1)
    good = [share >= 0.60, apart <= 0.10]
    print(f"{'ok  ' if good[0] else 'FAIL'} two views / bare Pillow: {share:.2f} (at least 0.60)")
    print(f"{'ok  ' if good[1] else 'FAIL'} folder and tar differ by {apart:.1%} (at most 10 %)")
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
