"""Who may use the server, what a request may contain, and the headers of every response."""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.base import RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from capro.errors import ConfigError, first_problem
from capro.pipeline.locks import current_user
from capro.review.serving import ip_address, is_loopback
from capro.review.views import whole_number
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
LARGEST = 2_000_000  # bytes of a request
LONGEST_NAME = 60  # characters of a person's name


class AccessControl:
    """Which requests one server lets in.

    Args:
        host: What the server binds to.
        port: Its port.
        on_link_used: Called when a link was used, with the next one.
    """

    def __init__(self, host: str, port: int, on_link_used: Callable[[str], None] = lambda _: None) -> None:
        self.host, self.port, self._on_link_used = host, port, on_link_used
        self.cookie = f"capro_review_{port}"  # browsers keep one jar for all ports of a host
        self._tokens: set[str] = set()
        self._keys: dict[str, str] = {}  # by the value of the cookie

    def link(self) -> str:
        """A new link; it works once."""
        token = secrets.token_urlsafe(24)
        self._tokens.add(token)
        name = "127.0.0.1" if self.host in ("0.0.0.0", "localhost") else self.host
        host = f"[{name}]" if ":" in name else name
        return f"http://{host}:{self.port}/open?token={token}"

    def exchange_token(self, token: str) -> str | None:
        """The value of a new cookie for a token, which then works no more; None for a wrong token."""
        known = next((each for each in self._tokens if _same(each, token)), None)
        if known is None:
            return None
        self._tokens.discard(known)
        cookie = secrets.token_urlsafe(32)
        self._keys[cookie] = secrets.token_urlsafe(32)
        self._on_link_used(self.link())
        return cookie

    def key(self, request: Request) -> str | None:
        """The key that this browser needs for writes; None without its cookie."""
        return self._keys.get(request.cookies.get(self.cookie, ""))

    async def guard(self, request: Request, pass_on: RequestResponseEndpoint) -> Response:
        """Pass a request on, or refuse it; every response gets the headers."""
        refusal = self.refusal(request)
        if refusal is None:
            response = await pass_on(request)
        else:
            status, text = refusal
            response = PlainTextResponse(text, status_code=status)
        response.headers.update(HEADERS)
        response.headers.setdefault("cache-control", "no-store")
        return response

    def refusal(self, request: Request) -> tuple[int, str] | None:
        """Status and sentence for a request that is refused; None where it may pass."""
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

        >>> access = AccessControl("127.0.0.1", 80)
        >>> [access.known_host(h) for h in ("127.0.0.1:80", "localhost:80", "evil.example:80", "127.0.0.1:81")]
        [True, True, False, False]
        >>> access.known_host("127.0.0.1"), access.known_host("[::1]")
        (True, True)
        """
        name, colon, port = host.rpartition(":")
        if not colon or port.endswith("]"):  # browsers leave the port of http out
            name, port = host, "80"
        if port != str(self.port):
            return False
        name = name.strip("[]").lower()
        if is_loopback(name) or is_loopback(self.host):
            return is_loopback(name)
        return name in (self.host.lower(), socket.gethostname().lower()) or ip_address(name) is not None


def _same(secret: str, text: str) -> bool:
    """Whether a text is the secret; takes the same time for every text."""
    return hmac.compare_digest(secret.encode(), text.encode("utf-8", "replace"))


class RequestBody(BaseModel):
    """What a page sends with a write; each kind of write reads its part of it.

    Attributes:
        version: Version of the verdicts that the page shows.
        sent: The page's name for this request: sent again, it is the same one.
        who: Who decides; the user that runs the server where it is empty.
        rows: Samples that are decided.
        verb: Key of `COMMANDS`.
        label: A class.
        view: The filters of the page.
        reason: Why the sample was asked, as the page said.
        sense: A class's sense.
        definition: A class's definition.
    """

    model_config = ConfigDict(strict=True)

    version: Any = None
    sent: str = ""
    who: str = ""
    rows: list[int] = []
    verb: str = ""
    label: str | None = None
    view: dict[str, str] = {}
    reason: str = ""
    sense: str = ""
    definition: str = ""

    @property
    def person(self) -> str:
        """Who decides."""
        return plain(self.who, LONGEST_NAME) or current_user()


async def read_body(request: Request) -> RequestBody:
    """The checked body of a request."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > LARGEST:
            raise HTTPException(413, "The request is too large.")
    try:
        return RequestBody.model_validate_json(data or b"{}")
    except ValidationError as error:
        raise ConfigError(f"the request is wrong: {first_problem(error)}", hint="reload the page") from None


def number_below(text: str, name: str, count: int) -> int:
    """A number of an address that is one of ``count`` samples or classes.

    >>> number_below("3", "sample", 5)
    3
    """
    number = whole_number(text, f"the {name}")
    if number >= count:
        raise ConfigError(f"no {name} {number}", hint=f"the numbers go from 0 to {count - 1}")
    return number
