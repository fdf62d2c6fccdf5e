"""Pictures on sheets."""

from __future__ import annotations

from pathlib import Path

from capro.data.pixels import pixels_of
from capro.pipeline.run import Run
from capro.report import page, thumbnails
from tests.report.made import collected, make_run


def test_pictures_that_are_gone_are_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for file in sorted((tmp_path / "data" / "train").glob("*.png"))[:5]:
        file.unlink()
    data = collected(run)
    assert data["samples"]["unreadable"] == 5
    assert "5 pictures could not be read" in page.render(data)


def test_sprites_fill_sheets_in_order(run: Run) -> None:
    drawn = thumbnails.sprites(pixels_of(run, 32), list(range(10)), [True] * 9 + [False], side=32)
    assert drawn.places[:9] == [(0, n) for n in range(9)]
    assert drawn.places[9] == (1, 0)
    assert len(drawn.sheets) == 2
    assert None not in drawn.places
