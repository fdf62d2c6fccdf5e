"""Start and stop the server of a review."""

from __future__ import annotations

import html
import ipaddress
import socket
import threading
import time
from collections.abc import Callable

from capro.errors import ConfigError, RunError
from capro.review.apply import Work, go_on
from capro.run.directory import Run

HINT = "install it: pip install 'capro[review]'"


def only_here(host: str) -> bool:
    """Whether only this machine reaches a server that binds to this name or address.

    >>> only_here("127.0.0.1"), only_here("::1"), only_here("localhost"), only_here("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Review:
    """A running review; ``link`` opens it, ``stop`` ends it.

    Args:
        run: A run that has been cleaned.
        host: What to bind to.
        port: 0: any that is free.
        used: Called with the next link when one was used.
        work: What Apply does.
    """

    def __init__(
        self,
        run: Run,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        used: Callable[[str], None] = lambda _: None,
        work: Work = go_on,
    ) -> None:
        try:
            import uvicorn

            from capro.review.security import Doors
            from capro.review.server import make_app
        except ModuleNotFoundError as error:
            raise ConfigError(f"the review needs {error.name}", hint=HINT) from None
        from capro.review.desk import Desk

        self.desk = Desk(run)
        self._socket = _bound(host, port)
        self.port = int(self._socket.getsockname()[1])
        self.doors = Doors(host, self.port, used)
        settings = uvicorn.Config(
            make_app(self.desk, self.doors, work), log_level="warning", access_log=False, lifespan="off",
            server_header=False, ws="none", timeout_graceful_shutdown=2,
        )  # fmt: skip
        self._server = uvicorn.Server(settings)
        self._thread: threading.Thread | None = None

    @property
    def link(self) -> str:
        """A new link; each works once."""
        return self.doors.link()

    def serve(self) -> None:
        """Serve until interrupted."""
        self._server.run(sockets=[self._socket])

    def start(self) -> Review:
        """Serve in the background."""
        self._thread = threading.Thread(target=self.serve, daemon=True)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)
        return self

    def stop(self) -> None:
        """End the server; every decision is in the log already."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._socket.close()
        self.desk.log.close()

    def __repr__(self) -> str:
        return f"Review of {self.desk.run.place}: {self.link}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        link = html.escape(self.link)
        name = html.escape(self.desk.run.place)
        return f'Review of {name}: <a href="{link}" target="_blank" rel="noreferrer">{link}</a>'


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens, so that port and link work before the server starts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # by which asyncio sets TCP_NODELAY
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen()  # whoever follows the link before the server runs waits
    except OSError as error:
        made.close()
        raise RunError(
            f"{host}:{port}: {error.strerror or error}", hint="--port 0 takes any free port"
        ) from None
    return made
