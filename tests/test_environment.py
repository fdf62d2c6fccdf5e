"""What a bug report says of a machine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from capro.environment import environment
from tests import commands

capro = commands.capro


def test_it_names_what_is_installed_and_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("CAPRO_CACHE", "/home/ann/cache")
    monkeypatch.setenv("SECRET_TOKEN", "123")
    found = environment()
    assert found["packages"]["numpy"] == np.__version__
    assert found["packages"]["gcsfs"] is None or isinstance(found["packages"]["gcsfs"], str)
    assert found["torch"]["threads"] == torch.get_num_threads()
    assert found["variables"]["CAPRO_CACHE"] == "~/cache"
    assert found["memory_gb"] > 0
    assert "123" not in json.dumps(found)
    assert "ann" not in json.dumps(found)


def test_a_torch_that_cannot_be_used_is_what_the_report_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> int:
        raise OSError("libcudart.so: cannot open shared object file")

    monkeypatch.setattr(torch.cuda, "device_count", broken)
    assert "libcudart" in environment()["torch"]["problem"]


def test_as_commands(capro: Any, tmp_path: Path) -> None:
    code, out, _ = capro("doctor", "--environment")
    assert code == 0
    assert re.search(r"^packages: torch \d", out, re.MULTILINE)
    code, out, _ = capro("doctor", "--environment", "--json")
    assert json.loads(out)["capro"]
    code, _, err = capro("doctor")
    assert (code, "doctor needs a run directory or a source" in err) == (2, True)
    code, _, err = capro("doctor", tmp_path, "--environment")
    assert (code, "leave the path out" in err) == (2, True)
    code, out, _ = capro("--version")
    assert re.fullmatch(r"capro \d\S+ \(Python 3\S+, torch .*\)\n", out)
