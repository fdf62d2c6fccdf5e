"""Who may talk to the server, and what a request may say: a wrong value is an error with one sentence."""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
import socket
from collections.abc import Callable
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from capro.errors import ConfigError
from capro.review.log import person
from capro.review.serving import only_here
from capro.review.session import ReviewSession
from capro.review.views import View, whole_number
from capro.wording import plain

KEY_HEADER = "x-capro-key"
HEADERS = {
    "content-security-policy": "default-src 'none'; img-src 'self'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
READING = ("GET", "HEAD")


class Access:
    """Tokens and sessions of one server.

    Args:
        host: What the server binds to.
        port: Its port.
        used: Called when a link was used, with the next one.
    """

    def __init__(self, host: str, port: int, used: Callable[[str], None] = lambda _: None) -> None:
        self.host, self.port, self._used = host, port, used
        self.cookie = f"capro_review_{port}"  # browsers keep one jar for all ports of a host
        self._tokens: set[str] = set()
        self._sessions: dict[str, str] = {}

    def link(self) -> str:
        """A new link; it works once."""
        token = secrets.token_urlsafe(24)
        self._tokens.add(token)
        name = "127.0.0.1" if self.host in ("0.0.0.0", "localhost") else self.host
        shown = f"[{name}]" if ":" in name else name
        return f"http://{shown}:{self.port}/open?token={token}"

    def enter(self, token: str) -> str | None:
        """A new session for a token, which works no more; None for a wrong one."""
        found = next((each for each in self._tokens if _same(each, token)), None)
        if found is None:
            return None
        self._tokens.discard(found)
        session = secrets.token_urlsafe(32)
        self._sessions[session] = secrets.token_urlsafe(32)
        self._used(self.link())
        return session

    def key(self, request: Request) -> str | None:
        """The key of a request's session; None without a session."""
        return self._sessions.get(request.cookies.get(self.cookie, ""))

    def refused(self, request: Request) -> tuple[int, str] | None:
        """Why a request is refused, with its status; None where it may pass."""
        headers = request.headers
        host = headers.get("host", "")
        if not self.known_host(host):
            return 421, "This server answers only at its own address: open the link that the terminal shows."
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return 403, "The request came from a page of another site and was refused."
        reading = request.method in READING
        if not reading and origin is None:
            return 403, "The request does not say which page it comes from and was refused."
        if request.url.path == "/open" and reading:
            return None
        key = self.key(request)
        if key is None:
            return 401, "Open the link that the terminal shows: each link works once."
        if not reading and not _same(headers.get(KEY_HEADER, ""), key):
            return 403, "The page is out of date: reload it."
        return None

    def known_host(self, host: str) -> bool:
        """Whether a Host header names this server.

        >>> doors = Access("127.0.0.1", 80)
        >>> [doors.known_host(h) for h in ("127.0.0.1:80", "localhost:80", "evil.example:80", "127.0.0.1:81")]
        [True, True, False, False]
        >>> doors.known_host("127.0.0.1"), doors.known_host("[::1]")
        (True, True)
        """
        name, colon, port = host.rpartition(":")
        if not colon or port.endswith("]"):  # browsers leave the port of http out
            name, port = host, "80"
        if port != str(self.port):
            return False
        name = name.strip("[]").lower()
        if only_here(name):
            return True
        if only_here(self.host):
            return False
        if name in (self.host.lower(), socket.gethostname().lower()):
            return True
        try:  # an address is no name that somebody could point elsewhere
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _same(secret: str, given: str) -> bool:
    return hmac.compare_digest(secret.encode(), given.encode("utf-8", "replace"))


class Guard:
    """Checks every request, and adds the headers to every answer."""

    def __init__(self, app: ASGIApp, doors: Access) -> None:
        self.app, self.doors = app, doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no websockets

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refused = self.doors.refused(Request(scope))
        if refused is None:
            await self.app(scope, receive, guarded)
            return
        status, text = refused
        answer = PlainTextResponse(text, status_code=status)
        await answer(scope, receive, guarded)


LARGEST = 2_000_000  # bytes of a request
WHO = 60  # characters of a name


class TooLarge(ValueError):
    """A request of more than `LARGEST` bytes."""


async def json_object(request: Request) -> dict[str, Any] | None:
    """The body of a request; None where it is no JSON object."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > LARGEST:
            raise TooLarge
    try:
        found = json.loads(data or b"{}")
        json.dumps(found, ensure_ascii=False).encode()  # a lone surrogate could be neither kept nor sent back
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def row_in(text: str, name: str, desk: ReviewSession) -> int:
    """A row of the run."""
    row = whole_number(text, name)
    if row >= len(desk.table):
        raise ConfigError(f"no sample {row}", hint=f"rows go from 0 to {len(desk.table) - 1}")
    return row


def row_of(request: Request, desk: ReviewSession) -> int:
    """The row that the path names."""
    return row_in(request.path_params["row"], "the row", desk)


def class_of(request: Request, desk: ReviewSession) -> int:
    """The number of the class that the path names."""
    number = whole_number(request.path_params["number"], "the class")
    if number >= len(desk.table.names):
        raise ConfigError(f"no class {number}", hint=f"classes go from 0 to {len(desk.table.names) - 1}")
    return number


def rows_of(body: dict[str, Any]) -> list[int]:
    """The rows that a decision is for."""
    rows = body.get("rows")
    if not isinstance(rows, list) or not all(type(row) is int for row in rows):
        raise ConfigError("rows is not a list of numbers", hint="reload the page")
    return rows


def view_of(body: dict[str, Any], desk: ReviewSession) -> View:
    """The view in which something was decided."""
    view = body.get("view") or {}
    if not isinstance(view, dict) or not all(isinstance(value, str) for value in view.values()):
        raise ConfigError("view is no object of texts", hint="reload the page")
    return View.parse(view, desk.table)


def sent_of(body: dict[str, Any]) -> str:
    """What the page calls this action: sent again, it is the same one."""
    return str(body.get("sent") or "")[:80]


def who_of(body: dict[str, Any]) -> str:
    """Who decides."""
    return plain(body.get("who"), WHO) or person()
