"""What a CSV of ours holds is read back as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from capro.data.readers.base import ESCAPED, write_csv
from capro.data.readers.columns import label_names
from capro.data.readers.table_files import csv_records, records


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


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_label_that_looks_like_a_list_stays_one_label_where_lists_are_known(
    tmp_path: Path, ending: str
) -> None:
    """Only in our own exports: elsewhere such a text is a list that went through a CSV."""
    table = pd.DataFrame({"capro_id": ["a", "b"], "label": ["[[1]]", '["cat"]']})
    for known, wanted in ((table, ["[[1]]", '["cat"]']), (table[["label"]], ["1", "cat"])):
        path = tmp_path / f"a.{ending}"
        if ending == "parquet":
            known.to_parquet(path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in known.to_dict("records")))
        found = [label_names(record.cells["label"], None) for record in records(path)]
        assert found == [((name,), name in ("1", "cat")) for name in wanted]
