"""What a CSV of ours holds is read back as it was."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from capro.data.readers.columns import label_names
from capro.data.readers.csv_rows import csv_records
from capro.data.readers.writing import ESCAPED, write_csv


@pytest.mark.parametrize("formulas", ["escape", "keep"])
def test_a_label_that_looks_like_a_list_stays_one_label(tmp_path: Path, formulas: str) -> None:
    labels = ["[[1]]", '["cat"]', "cat", "[", "=1+1"]
    path = tmp_path / "a.csv"
    write_csv(path, pd.DataFrame({"label": labels, "title": ["[1]"] * len(labels)}), formulas=formulas)
    rows = [row.cells for row in csv_records(path, "utf-8")]
    assert [label_names(cells["label"], None) for cells in rows] == [((name,), False) for name in labels]
    assert [cells["title"] for cells in rows] == ["[1]"] * len(labels)
    write_csv(path, pd.DataFrame({"label": ["cat"]}), formulas=formulas)
    assert ESCAPED not in path.read_text()
