"""Long parts of stages say how much there is to do, and count all of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from capro.pipeline.progress import Step, Watch
from capro.pipeline.run import Run
from capro.stages import run_all
from tests import tiny


class Counts(Watch):
    """What every bar was given and has counted."""

    def __init__(self) -> None:
        self.bars: dict[str, tuple[int | None, int]] = {}

    @contextmanager
    def bar(self, label: str, total: int | None) -> Iterator[Step]:
        self.bars[label] = (total, 0)

        def step(advance: int = 1, **_figures: object) -> None:
            self.bars[label] = (total, self.bars[label][1] + advance)

        yield step


@pytest.mark.slow
@pytest.mark.parametrize("multi", [False, True])
def test_bars_with_a_total_end_at_it(tmp_path: Path, multi: bool, words: None) -> None:
    data = tiny.write_data(tmp_path / "data", multi=multi)
    watch = Counts()
    run_all(Run.create(tmp_path / "run", tiny.settings(data, "net.mode=frozen", "method=plus")), watch=watch)
    known = {label: bar for label, bar in watch.bars.items() if bar[0] is not None}
    del known["encoding texts"]  # counted by the real encoder, not by the one of these tests
    assert {"posterior of samples", "verdicts", "graph (reciprocal)", "features of views"} <= known.keys()
    assert {label: done for label, (_, done) in known.items()} == {
        label: total for label, (total, _) in known.items()
    }
