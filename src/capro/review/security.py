"""Who may talk to the server: the machine's own browser, with a link from the terminal.

- Host must name this server, so that a foreign name that was pointed at 127.0.0.1 is refused (DNS rebinding).
- Origin, where the browser sends it, must be this server's own; a write must send it.
- A link holds a token that works once; the browser gets a cookie for it (HttpOnly, SameSite=Strict).
- A write also needs a header with the session's own key, which no foreign page can read or send.
- Every answer forbids scripts, styles, pictures and connections from anywhere else.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from capro.review.serving import only_here

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


class Doors:
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

        >>> doors = Doors("127.0.0.1", 80)
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

    def __init__(self, app: ASGIApp, doors: Doors) -> None:
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
