"""How quick is the review with many samples? Pages, decisions, memory; a key press in Chromium.

    python benchmarks/review_load.py [--samples 100000] [--classes 100] [--pages 60]

A made-up run (manifest, verdicts, scores, features; pictures are 500 JPEGs of 256 px used again and again) is
served by `capro review` in a process of its own. Printed are p50 and p95 of the first page, of later pages by
key, of filtered views, of one sample, of decisions, and the peak of the server's resident memory. Bounds, on
two quiet cores and 100,000 samples: p95 of a page 150 ms, a key press to the next picture 50 ms, 500 MB. A
broken one gives exit code 1. Beyond 100,000 samples figures are only printed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from capro import config
from capro.core.kept_scores import keep
from capro.data.manifest import schema
from capro.pipeline.artefacts import (
    ANCHORS,
    CLASSES,
    CLEANED_LABELS,
    FUSED_SCORES,
    MANIFEST,
    VERDICTS,
    VISUAL,
)
from capro.pipeline.run import Run

PICTURES, WIDTH = 500, 128
BOUNDS = {"first page": 150.0, "later page": 150.0, "key to next picture": 50.0}  # ms, p95
MOST_MB = 500.0
BOUND_SAMPLES = 100_000  # beyond it figures are only printed


def make_run(folder: Path, n: int, classes: int, seed: int) -> Run:
    """A run directory as the stages would leave it, as far as the review reads it."""
    rng = np.random.default_rng(seed)
    images = folder / "images"
    images.mkdir()
    for number in range(PICTURES):
        pixels = rng.integers(0, 255, (16, 16, 3)).astype(np.uint8)
        Image.fromarray(pixels).resize((256, 256)).save(images / f"{number}.jpg", quality=85)
    run = Run.create(folder / "run", config.load(overrides=[f"data.source={images}"]))
    names = [f"class {number:03d}" for number in range(classes)]
    given = rng.integers(0, classes, n)
    fused = rng.dirichlet(np.full(min(classes, 20), 0.3), n).astype(np.float32)
    fused = np.pad(fused, ((0, 0), (0, classes - fused.shape[1])))
    shift = (given - fused.argmax(1)) % classes
    fused = np.take_along_axis(fused, (np.arange(classes)[None] - shift[:, None]) % classes, 1)
    after = np.where(rng.random(n) < 0.2, rng.integers(0, classes, n), given)
    after[rng.random(n) < 0.05] = -1
    ids = [f"{number:08d}" for number in range(n)]
    words = np.array(["wireless", "mouse", "garden", "photo", "stock", "old", "small", "red"])
    titles = [" ".join(row) for row in words[rng.integers(0, len(words), (n, 6))]]
    columns: dict[str, Any] = {
        "id": ids, "path": [f"{number % PICTURES}.jpg" for number in range(n)], "split": ["train"] * n,
        "status": ["ok"] * n, "title": titles, "description": [""] * n, "tags": [""] * n,
        "label": [names[c] for c in given], "width": [256] * n, "height": [256] * n, "source": [0] * n,
    }  # fmt: skip
    form = schema(multi_label=False, sources=[])
    sources = json.dumps([{"kind": "files", "root": str(images), "image_column": None}]).encode()
    form = form.with_metadata({**(form.metadata or {}), b"capro.sources": sources})
    arrays = [pa.array(columns.get(field.name, [None] * n), field.type) for field in form]
    with run_stage(run, "scan") as here:
        pq.write_table(pa.Table.from_arrays(arrays, schema=form), here / MANIFEST.file)
    with run_stage(run, "classes") as here:
        CLASSES.save(here / CLASSES.file, [{"name": name} for name in names])
    with run_stage(run, "embed") as here:
        VISUAL.save(here / VISUAL.file, rng.standard_normal((n, WIDTH), np.float32))
    with run_stage(run, "match") as here:
        rows = rng.choice(n, min(n, 50 * classes), replace=False)
        ANCHORS.save(here / ANCHORS.file, pd.DataFrame({"row": rows, "class_index": given[rows]}))
    decision = np.where(after < 0, "drop", np.where(after == given, "keep", "relabel"))
    twins: list[list[str]] = [[] for _ in range(n)]
    for row in rng.choice(n - 1, n // 50, replace=False).tolist():
        twins[row], twins[row + 1] = [ids[row + 1]], [ids[row]]
    verdicts = {
        "id": ids, "given_label": columns["label"], "corrected_label": [names[c] if c >= 0 else None for c in after],
        "decision": decision, "label_score": fused[np.arange(n), given], "outlier_score": rng.random(n),
        "near_duplicate_sets": twins, "fused_score": fused.max(1), "none_score": np.zeros(n, np.float32),
        "evidence": ["Kept, with a probability of 0.61 (words 0.52, picture 0.70)."] * n,
    }  # fmt: skip
    with run_stage(run, "clean") as here:
        CLEANED_LABELS.save(here / CLEANED_LABELS.file, after)
        FUSED_SCORES.save(here / FUSED_SCORES.file, keep({"fused": fused}))
        VERDICTS.save(here / VERDICTS.file, pd.DataFrame(verdicts))
    return run


class run_stage:  # noqa: N801 - used as a function
    """A stage whose artefacts are written here."""

    def __init__(self, run: Run, name: str) -> None:
        self.run, self.folder = run, run.folder(name)
        self._working = run.working(name, f"made up: {name}")

    def __enter__(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._working.__enter__()
        return self.folder

    def __exit__(self, *failed: Any) -> None:
        self._working.__exit__(*failed)


class Client:
    """A browser without a screen: one connection, a cookie, and the time of each request."""

    def __init__(self, link: str) -> None:
        self.host = link.split("/")[2]
        self._connection = http.client.HTTPConnection(self.host)
        answer = self.ask("GET", f"/open{link.split('/open')[1]}")
        self._cookie = answer[1].split(";")[0]
        self.key = ""
        page = self.ask("GET", "/")[0].decode()
        self.key, self.version, self.pictures = (
            page.split(f'name="capro-{name}" content="')[1].split('"')[0]
            for name in ("key", "version", "pictures")
        )

    def ask(self, method: str, path: str, body: Any = None) -> tuple[bytes, str, float]:
        """Body, cookie, milliseconds."""
        headers = {
            "origin": f"http://{self.host}",
            "cookie": getattr(self, "_cookie", ""),
            "x-capro-key": getattr(self, "key", ""),
        }
        begin = time.perf_counter()
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        data = answer.read()
        took = 1000 * (time.perf_counter() - begin)
        if answer.status != 200:
            raise SystemExit(f"error: {path}: {answer.status} {data[:200]!r}")
        return data, answer.headers.get("set-cookie", ""), took

    def drop(self, rows: list[int]) -> float:
        """Milliseconds of a decision."""
        return self.ask("POST", "/decide", {"rows": rows, "verb": "out", "version": self.version})[2]


def measured(client: Client, pages: int, n: int) -> dict[str, list[float]]:
    """Milliseconds of each kind of request."""
    found: dict[str, list[float]] = {}

    def get(kind: str, path: str) -> str:
        data, _, took = client.ask("GET", path)
        found.setdefault(kind, []).append(took)
        return data.decode("utf-8", "replace")

    for _ in range(10):
        get("first page", "/")
    path = "/"
    for _ in range(pages):
        text = get("later page", path)
        path = text.split('id="next" rel="next" href="')[1].split('"')[0].replace("&amp;", "&")
    for filters in (
        "order=score",
        "verdict=drop",
        "label=class+003",
        "text=garden+mouse",
        "copies=any",
        "like=5",
    ):
        get("a filter for the first time", f"/?{filters}")
        for _ in range(3):
            get("the same filter again", f"/?{filters}")
    rng = np.random.default_rng(0)
    for row in rng.integers(0, n, pages).tolist():
        get("one sample", f"/sample/{row}?part=1")
        get("thumbnail, first time", f"{client.pictures}/small/{row}")
        get("thumbnail, again", f"{client.pictures}/small/{row}")
    for row in rng.integers(0, n, 5).tolist():
        get("pictures like one", f"/likes/{row}")
    for row in rng.choice(n, pages, replace=False).tolist():
        found.setdefault("decision", []).append(client.drop([row]))
    found["bulk decision of 200"] = [client.drop(rng.choice(n, 200, replace=False).tolist())]
    return found


def key_presses(link: str, count: int = 20) -> list[float]:
    """Milliseconds from a key press to the next sample on the page, in Chromium; empty without it."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return []
    from playwright.sync_api import sync_playwright

    press = """() => new Promise((done) => {
      const old = document.querySelector('.sheet').dataset.row, begin = performance.now();
      new MutationObserver((_, watch) => {
        if (document.querySelector('.sheet')?.dataset.row === old) return;
        watch.disconnect();
        done(performance.now() - begin);
      }).observe(document.querySelector('#sheet'), { childList: true });
      document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'a', bubbles: true }));
    })"""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(link)
        page.wait_for_selector("html[data-ready]", state="attached")
        page.keyboard.press("Enter")
        page.wait_for_url("**/sample/**")
        page.wait_for_timeout(1500)
        found = []
        for _ in range(count):
            found.append(float(page.evaluate(press)))
            page.wait_for_timeout(300)  # a quick person
        browser.close()
    return found


def peak_mb(pid: int) -> float:
    """The peak of a process's resident memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--pages", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", help="folder for the files; a temporary one if unset")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=a.scratch) as temporary:
        run = make_run(Path(temporary), a.samples, a.classes, a.seed)
        begin = time.perf_counter()
        command = [sys.executable, "-m", "capro", "review", str(run.path)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server:
            assert server.stdout is not None
            try:
                client = Client(server.stdout.readline().strip())
                opened = time.perf_counter() - begin
                found = measured(client, a.pages, a.samples)
                link = json.loads(client.ask("POST", "/link", {})[0])["link"]
                found["key to next picture"] = key_presses(link)
                memory = peak_mb(server.pid)
            finally:
                server.kill()
    return printed(a.samples, opened, memory, found)


def printed(samples: int, opened: float, memory: float, found: dict[str, list[float]]) -> int:
    """Print the figures; 1 where a bound is broken."""
    print(f"{samples:,} samples: first page {opened:.1f} s after the command, peak memory {memory:.0f} MB")
    bound = samples <= BOUND_SAMPLES
    broken = [f"memory {memory:.0f} MB, bound {MOST_MB:.0f}"] if bound and memory > MOST_MB else []
    p95: Callable[[list[float]], float] = lambda values: float(np.percentile(values, 95))  # noqa: E731
    for kind, values in found.items():
        if not values:
            print(f"  {kind:<28} not measured: chromium is not installed")
            continue
        print(f"  {kind:<28} p50 {np.median(values):7.1f} ms   p95 {p95(values):7.1f} ms   ({len(values)})")
        if bound and kind in BOUNDS and p95(values) > BOUNDS[kind]:
            broken.append(f"{kind} p95 {p95(values):.0f} ms, bound {BOUNDS[kind]:.0f}")
    for text in broken:
        print(f"BROKEN: {text}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
