"""Settings shared by all tests: a deterministic hypothesis profile, and the real datasets."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "capro",
    max_examples=50,
    deadline=None,  # machines are noisy: time is for benchmarks
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("capro")

os.environ.setdefault("CAPRO_FSYNC", "0")  # what is written here may be lost; tests of durability turn it on

# In a shell's background Ctrl-C is ignored, and the programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with queryweb32, cococap64 and shopweb64; only for tests marked `shared`."""
    if not SHARED.is_dir():
        pytest.skip(f"the real datasets are not at {SHARED}")
    return SHARED
