"""Commands as a user types them, in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from capro.cli import main

Capro = Callable[..., tuple[int, str, str]]


@pytest.fixture
def capro(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Capro:
    """A command without its first word: its exit code, stdout and stderr."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["capro", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        out = capsys.readouterr()
        return int(left.value.code or 0), out.out, out.err

    return call
