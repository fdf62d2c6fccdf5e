"""Made-up cases that several test files need."""

from __future__ import annotations

import json
from pathlib import Path

from tests.data.corpus import png


def fiftyone_folder(folder: Path) -> Path:
    for seed in (1, 2):
        path = folder / "data" / f"{seed}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(seed))
    labels = {
        "classes": ["cat", "dog"],
        "labels": {"1": 1, "2": {"label": 0, "attributes": {"title": "Tom"}}},
    }
    (folder / "labels.json").write_text(json.dumps(labels))
    return folder
