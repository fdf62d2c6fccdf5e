"""Everything a user relies on, of four tiny runs: fingerprints, verdicts, evaluation, report, advice.

    python -m tests.golden.record     writes the files anew, after a change that is meant

One label and several, with the encoder frozen and learning.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from capro.pipeline.artefacts import ANCHORS, VERDICTS
from capro.pipeline.run import Run
from capro.report.collect import collect
from capro.results import doctor
from capro.stages import PLAN, run_all
from capro.stages.evaluate import assess
from capro.stages.report import HELD_OUT
from tests import squares

HERE = Path(__file__).parent
CASES = [f"{task}-{mode}" for task in ("single", "multi") for mode in ("frozen", "full")]

FULL = ["net.mode=full", "pretrain.epochs=2", "train.epochs=2", "train.frozen_epochs=1"]
MOVING = ("made", "title", "version", "sheets")  # of the report's data: the time, our version, pixels


def make(case: str, folder: Path) -> Run:
    """A finished run of a case."""
    multi = case.startswith("multi")
    data = squares.write_data(folder / "data", multi=multi, novel=not multi, noise=3)
    changed = [*(FULL if case.endswith("full") else []), *(["train.gamma=0.55"] if multi else [])]
    run = Run.create(folder / "run", squares.settings(data, *changed, multi=multi))
    run_all(run)
    return run


def record(case: str, folder: Path) -> dict[str, Any]:
    """What a case gives, as plain data."""
    run = make(case, folder)
    truth = folder / "data" / "train_truth.csv"
    details = assess(run, truth=truth)
    data = collect(run, PLAN, held_out=HELD_OUT)
    for name in MOVING:
        data.pop(name)
    data["stages"] = [row["name"] for row in data["stages"]]
    data["map"] = {"items": data["map"]["items"], "of": data["map"]["of"]}  # t-SNE amplifies rounding
    return plain(
        {
            "fingerprints": {
                name: done["fingerprint"] for name in PLAN.names[1:] if (done := run.finished(name))
            },
            "content": run.need("scan"),
            "verdicts": run.issues().to_dict("records"),
            "pairs": run.read(VERDICTS).to_dict("records"),
            "anchors": run.read(ANCHORS).to_dict("records"),
            "results": run.result("evaluate"),
            "details": details,
            "report": data,
            "doctor": doctor.advice(run),
        }
    )


def plain(value: Any) -> Any:
    """JSON's types; floats to six digits."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return None if value != value else round(value, 6)
    return value


def main() -> None:
    """Write the four files."""
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found = record(case, Path(folder))
        (HERE / f"{case}.json").write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n")
        print(case)


if __name__ == "__main__":
    main()
