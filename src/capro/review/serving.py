"""Start and stop the review's server; apply the decisions; keep the log of a run in an object store."""

from __future__ import annotations

import html
import ipaddress
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from capro.errors import CaproError, ConfigError, RunError
from capro.pipeline import files
from capro.pipeline.artefacts import REVIEW, atomic_path
from capro.pipeline.locks import STORE_LOCK, StoreLock, alone_in
from capro.pipeline.run import Run
from capro.pipeline.working_copy import LOG, WorkingCopy

Work = Callable[[Path], Iterator[str]]


class ApplyError(Exception):
    """The run could not go on; the text says why."""


def run_stages(path: Path) -> Iterator[str]:
    """`capro run`: do the stages that are out of date; yields lines of progress."""
    # --yes: the page has asked already
    command = [sys.executable, "-m", "capro", "run", "--yes", "--run", str(path)]
    last = ""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stderr or ():
            if line.strip():
                last = line.strip() if not line.startswith("hint:") else last
                if not line.startswith("capro "):  # commands to try next, of use in a terminal alone
                    yield line.strip()
    if process.returncode:
        raise ApplyError(last or f"capro run ended with {process.returncode}")


class Apply:
    """Uses the decisions in the background, at most once at a time.

    Args:
        path: The run.
        on_done: Called after it.
        work: Does the stages, yields lines.

    Attributes:
        state: Whether it is running, its last line, and the error that ended it.
    """

    def __init__(self, path: Path, on_done: Callable[[], None], work: Work) -> None:
        self._path, self._on_done, self._work = path, on_done, work
        self._lock = threading.Lock()
        self.state: dict[str, Any] = {"running": False, "line": "", "error": ""}

    def start(self) -> bool:
        """Begin; False where it is running already."""
        with self._lock:
            if self.state["running"]:
                return False
            self.state = {"running": True, "line": "starting", "error": ""}
        threading.Thread(target=self._run, daemon=True).start()
        return True

    def _run(self) -> None:
        error = ""
        try:
            for line in self._work(self._path):
                self.state = {"running": True, "line": line, "error": ""}
            self.state = {"running": True, "line": "reading the new verdicts", "error": ""}
            self._on_done()
        except Exception as problem:  # shown on the page: a thread has nobody else to report to
            error = str(problem) or type(problem).__name__
        self.state = {"running": False, "line": "" if error else "done", "error": error}


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """A host as an address; None for a name that could be pointed elsewhere."""
    with suppress(ValueError):
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    return None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that binds to this name or address.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    address = ip_address(host)
    return address is not None and address.is_loopback


class Review:
    """A running review; ``link`` opens it, ``stop`` ends it.

    Args:
        run: A run that has been cleaned.
        host: What to bind to.
        port: 0: any that is free.
        on_link_used: Called with the next link when one was used.
        work: What Apply does.
    """

    def __init__(
        self,
        run: Run,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        on_link_used: Callable[[str], None] = lambda _: None,
        work: Work = run_stages,
    ) -> None:
        try:
            import uvicorn

            from capro.review.security import AccessControl
            from capro.review.server import make_app
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the review needs {error.name}", hint="install it: pip install 'capro[review]'"
            ) from None
        from capro.review.session import ReviewSession

        self.session = ReviewSession(run)
        self._socket = _listening(host, port)
        self.port = int(self._socket.getsockname()[1])
        self.access = AccessControl(host, self.port, on_link_used)
        settings = uvicorn.Config(
            make_app(self.session, self.access, work), log_level="warning", access_log=False, lifespan="off",
            server_header=False, ws="none", timeout_graceful_shutdown=2,
        )  # fmt: skip
        self._server = uvicorn.Server(settings)
        self._thread: threading.Thread | None = None

    @property
    def link(self) -> str:
        """A new link; each works once."""
        return self.access.link()

    def serve(self) -> None:
        """Serve until interrupted."""
        self._server.run(sockets=[self._socket])

    def start(self) -> Review:
        """Serve in the background."""
        self._thread = threading.Thread(target=self.serve, daemon=True)
        self._thread.start()  # the socket listens already: whoever follows the link waits
        return self

    def stop(self) -> None:
        """End the server; every decision is in the log already."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._socket.close()
        self.session.log.close()

    def __repr__(self) -> str:
        return f"Review of {self.session.run.place}: {self.link}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        link = html.escape(self.link)
        name = html.escape(self.session.run.place)
        return f'Review of {name}: <a href="{link}" target="_blank" rel="noreferrer">{link}</a>'


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens, so that port and link work before the server starts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio then sets TCP_NODELAY
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # whoever follows the link before the server runs waits
    except OSError as error:
        listener.close()
        raise RunError(
            f"{host}:{port}: {error.strerror or error}", hint="--port 0 takes any free port"
        ) from None
    return listener


UPLOAD_EVERY = 10.0  # seconds


@contextmanager
def log_in_store(run: Run) -> Iterator[None]:
    """A block in which decisions may be made; the log of a run in an object store is uploaded during and after it."""
    copy = run.copy
    if copy is None:
        yield
        return
    folder = run.path / REVIEW
    files.make_folder(folder)
    with alone_in(folder, "capro review of this run is open"), ExitStack() as at_end:
        lock = copy.store_lock(f"{REVIEW}/{STORE_LOCK}", "capro review of this run is open")
        lock.take()
        at_end.callback(lock.release)
        copy.refresh()
        upload_log(copy, lock)  # what a review that was killed has left
        at_end.callback(upload_log, copy, lock)
        end = threading.Event()

        def upload_regularly() -> None:
            while not end.wait(UPLOAD_EVERY):
                with suppress(CaproError, OSError, sqlite3.Error):  # the last upload says what is wrong
                    upload_log(copy, lock)

        uploader = threading.Thread(target=upload_regularly, daemon=True)
        uploader.start()
        at_end.callback(uploader.join)
        at_end.callback(end.set)
        yield


def upload_log(copy: WorkingCopy, lock: StoreLock) -> None:
    """Upload the log if it is there and has changed."""
    file = copy.path / LOG
    if not file.exists() or not copy.has_changed(LOG):
        return
    lock.check()
    with closing(sqlite3.connect(file, timeout=30)) as base:
        base.execute("pragma wal_checkpoint(truncate)")
        with atomic_path(file.with_name("upload.sqlite"), cache=True) as temporary:
            with closing(sqlite3.connect(temporary)) as copy_of_log:
                base.backup(copy_of_log)
            copy.push_file(LOG, snapshot=temporary)  # what is decided meanwhile is uploaded the next time
    file.with_name("upload.sqlite").unlink(missing_ok=True)
