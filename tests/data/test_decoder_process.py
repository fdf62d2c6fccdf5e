from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np
import pytest

from capro.config import ScanSettings
from capro.data import decoder_process
from capro.data.images import REASONS, ImageProblem, decode, decode_bytes, decode_here
from tests.data.bombs import SUSPICIOUS, jpeg_of_scans, run_length_bmp


def test_a_jpeg_scan_bomb_is_refused_before_decoding() -> None:
    begin = time.monotonic()
    for way in (decode, decode_bytes):
        with pytest.raises(ImageProblem) as caught:
            way(jpeg_of_scans(9500, 7000), ScanSettings())
        assert (caught.value.reason, caught.value.detail) == ("too-many-scans", "9500 scans")
    assert time.monotonic() - begin < 2


@pytest.mark.parametrize("way", [decode, decode_bytes])
def test_a_decoder_that_takes_too_long_is_ended(way: object) -> None:
    limits = ScanSettings(max_seconds=0.3, max_scans=10_000)
    begin = time.monotonic()
    with pytest.raises(ImageProblem) as caught:
        way(jpeg_of_scans(9500, 7000), limits)  # type: ignore[operator]
    assert (caught.value.reason, caught.value.detail) == ("too-slow", "more than 0.3 s")
    assert time.monotonic() - begin < 15  # a busy machine; the whole would take minutes
    assert {"too-slow", "too-many-scans", "too-many-bytes"} <= set(REASONS)


def test_more_bytes_than_allowed() -> None:
    with pytest.raises(ImageProblem) as caught:
        decode(jpeg_of_scans(2), ScanSettings(max_bytes=100))
    assert caught.value.reason == "too-many-bytes"


@pytest.mark.parametrize("name", [name for name in SUSPICIOUS if "megapixels" not in name])
def test_a_suspicious_image_has_the_same_pixels_or_problem(name: str) -> None:
    def outcome(way: object) -> object:
        try:
            image, info = way(SUSPICIOUS[name], ScanSettings())  # type: ignore[operator]
        except ImageProblem as problem:
            return problem.reason, problem.detail
        return np.asarray(image).tobytes(), info

    assert outcome(decode) == outcome(decode_here)


def test_a_decoder_that_was_ended_while_idle_is_replaced() -> None:
    decode(run_length_bmp(1100), ScanSettings())
    process = decoder_process._idle[-1]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert decode(run_length_bmp(1100), ScanSettings())[0].size == (1100, 1100)


def test_an_image_that_breaks_every_decoder_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    dies = [sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"]
    monkeypatch.setattr(decoder_process, "_idle", [])
    monkeypatch.setattr(decoder_process, "PROGRAM", dies)
    with pytest.raises(ImageProblem) as caught:
        decode(run_length_bmp(1100), ScanSettings())
    assert (caught.value.reason, caught.value.detail) == ("damaged", "the decoder ended with SIGSEGV")
