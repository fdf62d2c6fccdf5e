"""Keep a small run of a release, so that later versions are tested on it (tests/released).

    python scripts/keep_release.py                     # of this tree's version
    python scripts/keep_release.py --source /tmp/0.1.0 # of another tree, say `git archive TAG | tar x -C /tmp/0.1.0`

The archive tests/released/VERSION.tar.xz holds, for one label and for several: the data, a finished run, an exported
model, the exported table, and what `capro predict` said. Only commands of the release are called, in a process of
their own: about a minute.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests import tiny  # noqa: E402

MOST = 1_000_000  # bytes of an archive: it stays in the repository for ever
ENCODER = "encoder"  # a network of twenty thousand weights: the smallest built-in one would make 30 MB
SETTINGS = [*tiny.FAST, f"net.backbone=./{ENCODER}", "views.size=32", "scan.workers=1"]
KINDS = {"single": False, "multi": True}


def main() -> int:
    """Make the archive; 1 where it is there already or too large."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=ROOT, help="tree of the release; this one if unset")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "tests" / "released", help="folder of the archives"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        version = capro(given.source, folder, "--version").split()[1].rstrip(",")
        out = given.out / f"{version}.tar.xz"
        if out.exists():
            print(f"{out}: exists already; a release is kept once, as it was", file=sys.stderr)
            return 1
        for kind, several in KINDS.items():
            make(given.source, folder / kind, several=several)
        pack(folder, out)
    if out.stat().st_size > MOST:
        print(f"{out}: {out.stat().st_size:,} bytes, more than {MOST:,}", file=sys.stderr)
        out.unlink()
        return 1
    print(f"{out}: {out.stat().st_size:,} bytes")
    return 0


def make(source: Path, folder: Path, *, several: bool) -> None:
    """Data, run, model, table and predictions; paths are relative, so that they hold elsewhere."""
    tiny.write_data(folder / "data", multi=several)
    write_encoder(folder / ENCODER)
    settings = ["data.source=data", "data.classes=data/classes.yaml", *SETTINGS]
    capro(source, folder, "run", "--run", "run", *(f"--set={each}" for each in settings))
    capro(source, folder, "export-model", "run", "--out", "model")
    capro(source, folder, "export", "run", "--out", "table", "--to", "parquet")
    capro(source, folder, "predict", "model", "data/test/images", "--out", "predicted.jsonl", "--top", "0")


def write_encoder(folder: Path) -> None:
    """A folder with a tiny vision transformer of random weights."""
    from transformers import ViTConfig, ViTModel, set_seed

    set_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    ViTModel(ViTConfig(**shape, image_size=32, patch_size=16)).save_pretrained(folder)


def capro(source: Path, folder: Path, *words: str) -> str:
    """What a command of a release prints."""
    path = {"PYTHONPATH": str(source.resolve() / "src"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "capro", *words],
        cwd=folder, env=os.environ | path, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def pack(folder: Path, out: Path) -> None:
    """One archive without anything about this machine's users."""

    def nameless(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    out.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out, "w:xz", format=tarfile.PAX_FORMAT) as archive:
        for kind in KINDS:
            archive.add(folder / kind, kind, filter=nameless)


if __name__ == "__main__":
    sys.exit(main())
