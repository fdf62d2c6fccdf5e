"""What a request says, checked: a wrong value is an error with one sentence, never a failure of the server."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from capro.errors import ConfigError
from capro.review.desk import Desk
from capro.review.log import person
from capro.review.views import View, whole_number
from capro.wording import plain

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


def row_in(text: str, name: str, desk: Desk) -> int:
    """A row of the run."""
    row = whole_number(text, name)
    if row >= len(desk.table):
        raise ConfigError(f"no sample {row}", hint=f"rows go from 0 to {len(desk.table) - 1}")
    return row


def row_of(request: Request, desk: Desk) -> int:
    """The row that the path names."""
    return row_in(request.path_params["row"], "the row", desk)


def class_of(request: Request, desk: Desk) -> int:
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


def view_of(body: dict[str, Any], desk: Desk) -> View:
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
