"""A table of verified samples, drawn at random from the true labels of a dataset.

    python benchmarks/verified.py --data queryweb32            3 % by seed 0, to runs/verified-queryweb32.parquet
    python benchmarks/verified.py --data queryweb32 --share 0.1 --seed 1

For `--set baselines.verified=FILE` of `capro bench main`: CleanNet and MentorNet's data-driven form learn from it, and
their rows say so. CleanNet's paper verifies 3 % of the samples. The table has the format of the file of true labels.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from variants import RUNS, SHARED

SHARE = 0.03  # CleanNet's paper


def write_verified(truth: Path, target: Path, *, share: float, seed: int) -> Path:
    """Draw a share of the rows of a truth file (CSV or Parquet) and write them in their order; returns the file."""
    parquet = truth.suffix == ".parquet"
    frame = pd.read_parquet(truth) if parquet else pd.read_csv(truth, dtype=str, keep_default_na=False)
    count = round(share * len(frame))
    if not count:
        sys.exit(f"error: {truth}: a share of {share} is none of {len(frame)} samples")
    drawn = frame.sample(count, random_state=seed).sort_index()
    target = target.with_suffix(truth.suffix)
    target.parent.mkdir(parents=True, exist_ok=True)
    if parquet:
        drawn.to_parquet(target, index=False)
    else:
        drawn.to_csv(target, index=False)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="queryweb32", help="name of a dataset")
    parser.add_argument("--share", type=float, default=SHARE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, help="runs/verified-NAME by default; the suffix is that of the truth"
    )
    args = parser.parse_args()
    truth = next((SHARED / args.data).glob("train_truth.*"), None)
    if truth is None:
        sys.exit(f"error: {SHARED / args.data}: no file train_truth")
    out = args.out or RUNS / f"verified-{args.data}"
    print(write_verified(truth, out, share=args.share, seed=args.seed))


if __name__ == "__main__":
    main()
