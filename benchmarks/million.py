"""A million samples through every stage within a memory limit, by the same commands as a thousand.

    python benchmarks/million.py [--samples 1000000] [--classes 1000] [--memory 6] [--twice] [--keep FOLDER]
    python benchmarks/million.py --samples 200000 --one-class --long-titles 200 --memory 4

Made up are tiny pictures (24 px JPEG) in tars, a label and a title each: a fifth of the labels wrong, a fifth of
the titles missing, 2 % of the samples the test split. The encoder is a small convolutional network with random
weights, frozen, the text encoder is MiniLM on some thousand distinct titles. Each stage, the exports, the report
and a review's first page run in a process of their own whose private memory the system limits (RLIMIT_DATA): a
stage that needs more dies. With `--one-class` all training labels but one of each class name the first class;
`--long-titles` is the number of titles that are a megabyte. Printed are time by the clock and of processors, peak
memory and the rate of each; with `--twice` all is done with half as many samples before, and the growth is printed.
Bounds (exit code 1): every stage ends within the limit, every sample is in the export or has left it by a verdict, the
labels that are kept are true more often than before (where a title names the class), the growth is at most 2.2.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

SIDE, SHARD, TITLES_PER_CLASS = 24, 10_000, 5
GROWTH = 2.2
STAGES = [
    "scan", "classes", "pixels", "features", "pretrain", "embed", "graph", "match", "posterior", "clean", "finetune",
    "evaluate", "report", "export", "review",
]  # fmt: skip
WORDS = "red green blue old new small large round square wooden glass paper stone water fire metal".split()


def make_data(
    folder: Path, n: int, *, classes: int, seed: int = 0, one_class: bool = False, long_titles: int = 0
) -> None:
    """Tars of training and of test samples."""
    import simplejpeg

    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, 256, (classes, 6, 6, 3))
    names = [
        f"{WORDS[c % 16]} {WORDS[c // 16 % 16]} {WORDS[c // 256 % 16]} thing {c}" for c in range(classes)
    ]
    for split, count in (("train", n), ("test", max(classes, n // 50))):
        (folder / split).mkdir(parents=True)
        for start in range(0, count, SHARD):
            size = min(SHARD, count - start)
            truth = rng.integers(0, classes, size)
            wrong = rng.random(size) < (0.2 if split == "train" else 0)
            label = np.where(wrong, rng.integers(0, classes, size), truth)
            if one_class and split == "train":
                label = np.where(start + np.arange(size) < classes, start + np.arange(size), 0)
            number = rng.integers(0, TITLES_PER_CLASS, size)
            silent = rng.random(size) < 0.2
            pixels = np.repeat(np.repeat(patterns[truth], SIDE // 6, 1), SIDE // 6, 2)
            pixels = np.clip(pixels + rng.normal(0, 25, pixels.shape), 0, 255).astype(np.uint8)
            with tarfile.open(folder / split / f"{start // SHARD:05d}.tar", "w") as shard:
                for at in range(size):
                    key, title = f"{start + at:09d}", f"photo {number[at]} of a {names[truth[at]]}"
                    if split == "train" and start + at < long_titles:
                        title = f"{title} {start + at} " * 25_000
                    said = {"label": names[label[at]], "title": "" if silent[at] else title}
                    add(shard, f"{key}.jpg", simplejpeg.encode_jpeg(pixels[at], quality=80))
                    add(shard, f"{key}.json", json.dumps(said).encode())


def add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    shard.addfile(member, io.BytesIO(content))


def make_encoder(folder: Path) -> Path:
    """A small convolutional network with random weights, as a folder that transformers reads."""
    import torch
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[32, 64],
        depths=[1, 1],
        layer_type="basic",
        downsample_in_first_stage=False,
    )
    ResNetModel(config).save_pretrained(folder)
    return folder


def settings_of(folder: Path, encoder: Path, memory: float) -> list[str]:
    return [
        f"data.source={folder / 'train'}", f"data.test={folder / 'test'}", "method=plus", f"net.backbone={encoder}",
        "net.mode=frozen", f"views.size={SIDE}", "pretrain.epochs=1", "pretrain.warmup_epochs=0", "finetune.epochs=1",
        "pretrain.batch_size=1024", "finetune.batch_size=1024", f"match.memory_gb={memory / 3}",
        f"plus.memory_gb={memory / 4}", "match.k=5",
    ]  # fmt: skip


def work(run_path: Path, stage: str, memory: float, settings: list[str]) -> None:
    """One stage, in a process whose private memory is limited."""
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory * 2**30), int(memory * 2**30)))
    run, export = str(run_path), str(run_path.with_name(f"export-{run_path.name}"))
    commands = {
        "scan": ["scan", "--run", run, *(part for one in settings for part in ("--set", one))],
        "report": ["report", run],
        "export": ["export", run, "--to", "webdataset", "--out", export],
    }
    if stage in commands:
        os.execv(sys.executable, [sys.executable, "-m", "capro", *commands[stage]])
    from capro.pipeline.run import Run

    if stage == "review":
        from capro.review.queue import load_table

        table = load_table(Run.open(run_path))
        print(f"  {len(table):,} rows, {len(table.queue.order):,} questions")
        return
    from capro.stages import PLAN

    PLAN.do(Run.open(run_path), stage)


class Cost(NamedTuple):
    """Of a process and its children: seconds by the clock and of processors, peaks of memory in GB."""

    seconds: float
    processor: float
    private: float
    resident: float


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(arguments: list[str]) -> Cost:
    begin, before, private, resident = time.monotonic(), processor_seconds(), 0.0, 0.0
    process = subprocess.Popen([sys.executable, __file__, *arguments], start_new_session=True)
    while process.poll() is None:
        sizes = [status(pid) for pid in family(process.pid)]
        private = max(private, sum(one for one, _ in sizes))
        resident = max(resident, sum(two for _, two in sizes))
        time.sleep(0.2)
    if process.returncode:
        raise SystemExit(f"FAIL {arguments[-1]}: exit code {process.returncode}")
    seconds, processor = time.monotonic() - begin, processor_seconds() - before
    return Cost(seconds, processor, private / 2**20, resident / 2**20)


def family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            yield from family(int(child))


def status(pid: int) -> tuple[int, int]:
    """Private and resident memory of a process now, in kB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    found = {
        line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "VmRSS"))
    }
    return found.get("RssAnon", 0), found.get("VmRSS", 0)


@contextmanager
def place(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def whole_run(folder: Path, n: int, a: argparse.Namespace) -> dict[str, float]:
    """Every stage; returns the processor's seconds of each, which hardly feel what else is running."""
    kind = f"{n}-{a.classes}{'-one' if a.one_class else ''}{f'-{a.long_titles}' if a.long_titles else ''}"
    data, run = folder / f"data-{kind}", folder / f"run-{kind}"
    if not (data / "done").exists():
        made = {"seed": a.seed, "one_class": a.one_class, "long_titles": a.long_titles}
        make_data(data, n, classes=a.classes, **made)
        (data / "done").touch()
    encoder = folder / "encoder"
    if not encoder.exists():
        make_encoder(encoder)
    print(f"{n:,} samples, {a.classes:,} classes, at most {a.memory} GB", flush=True)
    print(
        f"  {'stage':<10}{'s':>9}{'CPU s':>9}{'samples/s':>12}{'private GB':>12}{'resident GB':>13}",
        flush=True,
    )
    costs: dict[str, Cost] = {}
    for stage in STAGES:
        options = [part for one in settings_of(data, encoder, a.memory) for part in ("--set", one)]
        call = ["--work", str(run), "--memory", str(a.memory), *options, "--stage", stage]
        costs[stage] = found = measured(call)
        print(
            f"  {stage:<10}{found.seconds:>9.1f}{found.processor:>9.1f}{n / found.seconds:>12,.0f}"
            f"{found.private:>12.2f}{found.resident:>13.2f}",
            flush=True,
        )
    total = sum(found.seconds for found in costs.values())
    processor = {stage: found.processor for stage, found in costs.items()}
    print(f"  {'all':<10}{total:>9.1f}{sum(processor.values()):>9.1f}{n / total:>12,.0f}")
    check(run, folder / f"export-{run.name}", n)
    return processor


def check(run_path: Path, export: Path, n: int) -> None:
    """Every sample has a verdict, and is in the export or listed as dropped."""
    import pyarrow.parquet as pq

    verdicts = pq.read_table(run_path / "clean" / "verdicts.parquet", columns=["decision"])["decision"]
    counts = {str(each["values"]): int(each["counts"]) for each in verdicts.value_counts().to_pylist()}
    exported = json.loads((export / "export.json").read_text())
    rows = exported["samples"] + exported["dropped"]
    print(f"  verdicts {counts}; {exported['samples']:,} exported, {exported['dropped']:,} listed as dropped")
    if not n == sum(counts.values()) == rows:
        raise SystemExit(f"FAIL: {n} samples, {sum(counts.values())} verdicts, {rows} in the export")
    before, after, kept = labels_true(run_path)
    print(f"  labels true: {100 * before:.1f} % before, {100 * after:.1f} % of the {100 * kept:.1f} % kept")
    if after < before:
        raise SystemExit("FAIL: fewer labels are true after cleaning than before")


def labels_true(run_path: Path) -> tuple[float, float, float]:
    """Share of true labels before and after cleaning, and of samples kept, where a title names the class."""
    import pyarrow.parquet as pq

    title = pq.read_table(run_path / "scan" / "manifest.parquet", columns=["id", "title"]).to_pandas()
    columns = ["id", "given_label", "corrected_label", "decision"]
    found = pq.read_table(run_path / "clean" / "verdicts.parquet", columns=columns).to_pandas()
    found = found.merge(title, on="id")
    found["true"] = found["title"].str.extract(r"^photo \d of a ([^0-9]* \d+)", expand=False)
    found = found[found["true"].notna()]
    kept = found[found["decision"] != "drop"]
    before, after = (
        (part[name] == part["true"]).mean()
        for part, name in ((found, "given_label"), (kept, "corrected_label"))
    )
    return float(before), float(after), len(kept) / len(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--memory", type=float, default=6.0, help="GB of private memory of each process")
    parser.add_argument("--one-class", action="store_true", help="nearly all labels name the same class")
    parser.add_argument("--long-titles", type=int, default=0, help="titles of a megabyte")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--twice", action="store_true", help="with half as many samples before")
    parser.add_argument(
        "--keep", type=Path, help="folder whose data and runs stay; a stage that is there is not done again"
    )
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--set", action="append", default=[], help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.work:
        work(a.work, a.stage, a.memory, a.set)
        return 0
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with place(a.keep) as folder:
        before = whole_run(folder, a.samples // 2, a) if a.twice else None
        after = whole_run(folder, a.samples, a)
    if before is None:
        return 0
    growth = sum(after.values()) / sum(before.values())
    for stage in STAGES:
        print(f"  {stage:<10}{after[stage] / before[stage]:>9.2f} times as long")
    word = "ok  " if growth <= GROWTH else "FAIL"
    print(f"{word} twice the samples take {growth:.2f} times the processor's time (at most {GROWTH})")
    return int(growth > GROWTH)


if __name__ == "__main__":
    sys.exit(main())
