"""Versions of formats: what is read, and how the rest is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from capro import __version__
from capro.data.readers.table_files import open_parquet
from capro.errors import ConfigError, RunError
from capro.export.model_config import parse_model_config
from capro.pipeline.artefacts import VERDICTS, FormatVersion, check_table, table_metadata, write_verdicts
from capro.pipeline.checksums import SELF, sealed
from capro.pipeline.run import Run
from tests.export.test_predictor import config
from tests.fakes import fake_stage
from tests.pipeline.cases import make


def test_the_present_version_is_read() -> None:
    FormatVersion("a thing", now=3).check(3, place="x", made_by=None, again="y")


@pytest.mark.parametrize("version", [1, 4, 0, -1, True, "3", 3.0, None, [3], "x" * 9999])
def test_any_other_version_is_refused_with_two_ways_out(version: Any) -> None:
    with pytest.raises(RunError) as caught:
        FormatVersion("a thing", now=3).check(version, place="here", made_by="9.1", again="make it again")
    said = str(caught.value)
    assert said.startswith("here: a thing of version ")
    assert said.endswith(f" by capro 9.1, capro {__version__} reads 3")
    assert len(said) < 250
    assert caught.value.hint == "install capro 9.1, or make it again"


@pytest.mark.parametrize("made_by", [None, "", 3, __version__])
def test_a_writer_that_is_not_known_is_not_named(made_by: Any) -> None:
    with pytest.raises(RunError) as caught:
        FormatVersion("a thing").check(2, place="here", made_by=made_by, again="make it again")
    assert f"of version 2, capro {__version__} reads 1" in str(caught.value)
    assert caught.value.hint == "install the capro that made it, or make it again"


@pytest.mark.parametrize("text", [b"2", b"0", b"-1", b"x", b"\xff", "²".encode(), b"9" * 5000])
def test_a_table_of_another_version_is_refused(text: bytes, tmp_path: Path) -> None:
    assert check_table(None, place="x", again="y") is None  # type: ignore[func-returns-value]
    schema = pa.schema([("file_name", pa.string())], metadata={**table_metadata(), b"capro_table": text})
    pq.write_table(pa.table({"file_name": ["a"]}, schema=schema), tmp_path / "samples.parquet")
    with pytest.raises(RunError, match=r"samples\.parquet: a table of verdicts of version") as caught:
        open_parquet(tmp_path / "samples.parquet")
    assert "export it again" in caught.value.hint


def test_the_run_reads_verdicts_of_its_version(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": ["a"], "decision": ["keep"]})
    run = make(tmp_path)
    fake_stage(run, "clean", lambda here: write_verdicts(here / VERDICTS.file, [frame], {}))
    assert run.issues().equals(frame)
    found = pq.read_schema(run.file(VERDICTS)).metadata
    assert (found[b"capro_table"], found[b"capro_version"]) == (b"1", __version__.encode())


def test_the_run_refuses_verdicts_of_a_later_version(tmp_path: Path) -> None:
    def later(folder: Path) -> None:
        schema = pa.schema([("id", pa.string())], metadata={b"capro_table": b"2", b"capro_version": b"9.0"})
        pq.write_table(pa.table({"id": ["a"]}, schema=schema), folder / VERDICTS.file)

    run = make(tmp_path)
    fake_stage(run, "clean", later)
    for read in (run.issues, lambda: run.read_with(VERDICTS, pq.read_schema)):
        with pytest.raises(
            RunError, match=r"verdicts\.parquet: a table of verdicts of version 2 by capro 9"
        ) as it:
            read()
        assert "install capro 9.0, or `rm " in it.value.hint


def test_a_model_of_a_later_version_is_refused() -> None:
    values = json.loads(json.dumps(config())) | {"capro_format": 2, "capro_version": "9.0", "new_key": 1}
    with pytest.raises(RunError, match=r"m: a model folder of version 2 by capro 9\.0") as caught:
        parse_model_config(values, "m")
    assert caught.value.hint == "install capro 9.0, or export the model again with this version"


@pytest.mark.parametrize("layout", [0, 2, "1"])
def test_a_run_of_another_layout_is_refused(layout: Any, tmp_path: Path) -> None:
    run = make(tmp_path)
    _rewrite(run, layout=layout, capro="9.0")
    with pytest.raises(RunError, match="a run directory of version") as caught:
        Run.open(run.path)
    assert caught.value.hint == "install capro 9.0, or give a new folder to --run"


def test_a_setting_of_another_version_names_that_version(tmp_path: Path) -> None:
    run = make(tmp_path)
    settings = run.settings.model_dump()
    _rewrite(run, capro="9.0", settings=settings | {"novel": 1})
    with pytest.raises(ConfigError, match=r"novel.*made by capro 9\.0, this is") as caught:
        Run.open(run.path)
    assert "install that version" in caught.value.hint
    _rewrite(run, capro=__version__)
    with pytest.raises(ConfigError, match="novel") as caught:
        Run.open(run.path)
    assert "made by" not in str(caught.value)


def _rewrite(run: Run, **values: Any) -> None:
    """Change run.yaml as another version might have written it."""
    file = run.path / "run.yaml"
    document = yaml.safe_load(file.read_text("utf-8")) | values
    document.pop(SELF)
    file.write_text(yaml.safe_dump(sealed(document)), "utf-8")
