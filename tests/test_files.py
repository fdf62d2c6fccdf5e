"""Only regular files are opened."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from capro.files import NotAFileError, open_regular, read_regular, require_regular


@pytest.mark.parametrize("use", [open_regular, read_regular, require_regular])
def test_what_is_no_file_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[object], object]
) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    os.mkfifo("pipe")
    Path("link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    for name, kind in (
        ("pipe", "named pipe"),
        ("link", "named pipe"),
        ("/dev/zero", "device"),
        ("socket", "socket"),
    ):
        with pytest.raises(NotAFileError, match=f"is a {kind}, not a file"):
            use(name)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        use(tmp_path)
    with pytest.raises(FileNotFoundError):
        use("nothing")


def test_a_pipe_that_takes_the_files_place_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr("capro.files.require_regular", lambda _: None)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotAFileError):
        open_regular(tmp_path / "pipe")
    assert len(os.listdir("/proc/self/fd")) == before


def test_bytes_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"hello")
    (tmp_path / "link").symlink_to("a")
    assert read_regular(tmp_path / "link") == b"hello"
