"""A memory budget."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from capro.errors import ConfigError
from capro.graph.ondisk import LEAST_BYTES, Budget, RowReader, release


def test_a_tiny_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"0\.001 GB of memory is too little") as caught:
        Budget(1 << 20, tmp_path)
    assert "match.memory_gb" in caught.value.hint
    assert Budget(LEAST_BYTES, tmp_path).bytes == LEAST_BYTES


def test_arrays_are_files_where_they_are_large(budget: Budget) -> None:
    small, large = budget.array("a", (2, 3)), budget.array("a", (1000, 30))
    again = budget.array("a", (1000, 30))
    assert not isinstance(small, np.memmap)
    assert isinstance(large, np.memmap)
    assert isinstance(again, np.memmap)
    assert large.filename != again.filename


def test_released_pages_keep_their_values(budget: Budget) -> None:
    array = budget.array("x", (1000, 30))
    values = np.random.default_rng(0).standard_normal(array.shape).astype(np.float32)
    array[:] = values
    release(array, array[10:20], np.zeros(3), None)
    assert np.array_equal(array, values)
    assert np.array_equal(np.load(str(array.filename)), values)  # flushed to the file as well
    reader = RowReader(array, budget)
    for start in range(0, 1000, 100):
        assert np.array_equal(reader[start : start + 100], values[start : start + 100])
    rows = np.array([5, 900, 5, 17])
    assert np.array_equal(reader[rows], values[rows])
