"""Features of a run by ONNX Runtime and by torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from capro import config
from capro.models.inference import OnnxEncoder
from capro.pipeline.artefacts import PLAIN_FEATURES
from capro.pipeline.run import Run
from capro.stages import PLAN, features
from tests import tiny


def test_features_by_onnx_runtime_are_those_by_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny.write_data(tmp_path / "data")
    calls = []
    run_it = OnnxEncoder.forward
    monkeypatch.setattr(features, "WORTH_CONVERTING", 1)
    monkeypatch.setattr(OnnxEncoder, "forward", lambda self, x: calls.append(len(x)) or run_it(self, x))
    found = {}
    for runtime in ("auto", "torch"):
        settings = tiny.settings(data, "net.mode=frozen", f"net.runtime={runtime}")
        run = Run.create(tmp_path / runtime, settings)
        before = len(calls)
        PLAN.do(run, "scan", "classes", "features")
        assert (len(calls) > before) == (runtime == "auto")
        found[runtime] = np.array(run.read(PLAIN_FEATURES))
    np.testing.assert_allclose(found["auto"], found["torch"], atol=1e-4 * found["torch"].max())
    other = run.with_settings(config.update(run.settings, ["net.runtime=auto"]))
    assert PLAN["features"].is_fresh(other)  # nothing is done again for another way to the same
    assert PLAN["pretrain"].settings(other) == PLAN["pretrain"].settings(run)
