"""The web app: pages rendered here, a little script in the browser; every request passes the guard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from capro.errors import CaproError, ConfigError
from capro.results.store import VERDICT_NAMES
from capro.review import pages
from capro.review.answers import toolbar
from capro.review.pictures import KIND, SIDES
from capro.review.security import AccessControl, RequestBody, number_below, read_body
from capro.review.serving import Apply, Work, run_stages
from capro.review.session import OutOfDate, ReviewSession
from capro.review.views import ORDERS, SIZES, STATES, View, whole_number
from capro.wording import many, plain, share

FOLDER = Path(__file__).parent
FOR_SCRIPTS = ("/changes", "/copies/")  # reads that answer with JSON

_templates = Environment(
    loader=FileSystemLoader(FOLDER / "templates"), autoescape=True, undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
_templates.filters |= {"plain": plain, "share": lambda value: share(value, 1), "many": many}


class Routes:
    """What the server answers, from one session."""

    def __init__(self, session: ReviewSession, access: AccessControl, work: Work) -> None:
        self.session, self.access = session, access
        self.apply = Apply(session.run.path, session.reload, work)

    def all(self) -> list[Route | Mount]:
        """Every address of the app."""
        reads = {
            "/": self.grid, "/sample/{row}": self.sample, "/likes/{row}": self.similar,
            "/classes": self.class_list, "/class/{number}": self.class_page, "/progress": self.progress,
            "/changes": self.changes, "/picture/{scan}/{size}/{row}": self.picture, "/open": self.open,
            "/key": self.key, "/copies/{row}": self.duplicates,
        }  # fmt: skip
        writes = {
            "/decide": self.decide, "/undo": self.undo_or_redo, "/redo": self.undo_or_redo,
            "/apply": self.start_apply,
            "/class/{number}/meaning": self.change_class, "/link": self.link,
        }  # fmt: skip
        return [
            *(Route(path, answer) for path, answer in reads.items()),
            *(Route(path, _with_body(answer), methods=["POST"]) for path, answer in writes.items()),
            Mount("/static", StaticFiles(directory=FOLDER / "static")),
        ]

    def _row(self, request: Request) -> int:
        return number_below(request.path_params["row"], "sample", len(self.session.table))

    def _class(self, request: Request) -> int:
        return number_below(request.path_params["number"], "class", len(self.session.table.names))

    # --- pages ------------------------------------------------------------------------------------

    def _page(self, request: Request, template: str, **values: Any) -> Response:
        """A page from a template, with what every page needs."""
        session = self.session
        multi_label = session.table.multi_label
        common = {
            "key": self.access.key(request) or "",
            "run": session.run.path.name,
            "classes": session.table.names,
            "multi_label": multi_label,
            "commands": toolbar(multi_label=multi_label),
            "pictures": f"/picture/{session.scan}",
            **session.follow(),
            "decided": int(session.decided.sum()),
            "total": len(session.table),
            "here": request.url.path,
        }
        return HTMLResponse(_templates.get_template(template).render(common | values))

    def open(self, request: Request) -> Response:
        """Exchange a token for a cookie."""
        cookie = self.access.exchange_token(request.query_params.get("token", ""))
        if cookie is None:
            text = "This link was used already, or the server was restarted since. The terminal shows the next link."
            return PlainTextResponse(text, status_code=401)
        # a page that goes on by itself: a redirect from another site's link would come without the cookie
        response = HTMLResponse(_templates.get_template("open.html.j2").render())
        response.set_cookie(self.access.cookie, cookie, httponly=True, samesite="strict", path="/")
        return response

    def grid(self, request: Request) -> Response:
        """The pictures of a view."""
        session = self.session
        newest = session.follow()  # before rows are read: a page may be newer than it says, never older
        view = View.parse(request.query_params, session.table)
        begin = request.query_params.get("from")
        after = number_below(begin, "sample", len(session.table)) if begin else None
        page = session.views.page(view, session.decided, after)
        tiles = [pages.tile(session, int(row), view) for row in page.rows]
        return self._page(
            request, "grid.html.j2", view=view, page=page, tiles=_once(tiles), orders=ORDERS, sizes=SIZES,
            states=STATES, verdicts=VERDICT_NAMES, first=after is None, here="copies" if view.copies else "/",
            next_class=view.of_next_class(session.table.names), group_of=session.table.group_of, **newest,
        )  # fmt: skip

    def sample(self, request: Request) -> Response:
        """One sample with its evidence; ``part=1`` gives the middle of the page alone."""
        session = self.session
        newest = session.follow()
        view = View.parse(request.query_params, session.table)
        row = self._row(request)
        item = pages.sheet(session, row, view)
        following = session.views.page(replace(view, size=SIZES[0]), session.decided, row).rows.tolist()
        part = request.query_params.get("part") == "1"
        return self._page(
            request, "sheet.html.j2" if part else "sample.html.j2", view=view, item=item,
            following=[other for other in following if other not in item["members"]][:4],
            next_class=view.of_next_class(session.table.names), **newest,
        )  # fmt: skip

    def similar(self, request: Request) -> Response:
        """The pictures most similar to one, for the view of one sample."""
        view = View.parse(request.query_params, self.session.table)
        return self._page(
            request, "likes.html.j2", view=view, **pages.similar(self.session, self._row(request))
        )

    def class_list(self, request: Request) -> Response:
        """All classes."""
        return self._page(request, "classes.html.j2", rows=pages.class_list(self.session))

    def class_page(self, request: Request) -> Response:
        """One class."""
        newest = self.session.follow()
        item = pages.class_page(self.session, self._class(request))
        return self._page(request, "class.html.j2", view=View(), item=item, **newest)

    def progress(self, request: Request) -> Response:
        """How far the review is."""
        self.session.follow()
        return self._page(request, "progress.html.j2", progress=self.session.progress())

    def picture(self, request: Request) -> Response:
        """A thumbnail by scan and row: browsers keep it, and a row of another scan is another picture."""
        size = request.path_params["size"]
        if size not in SIDES:
            raise ConfigError(f"no size {plain(size, 20)!r}", hint=", ".join(SIDES))
        thumbnail = self.session.picture(request.path_params["scan"], self._row(request), size)
        if thumbnail is None:
            return PlainTextResponse("The picture is no longer there.", status_code=404)
        headers = {"cache-control": "private, max-age=86400"}
        return Response(thumbnail, media_type=f"image/{KIND}", headers=headers)

    # --- for scripts ------------------------------------------------------------------------------

    def key(self, request: Request) -> Response:
        """The key of this browser, for a page that was open before the server was restarted."""
        return JSONResponse({"key": self.access.key(request)})

    def changes(self, request: Request) -> Response:
        """What others decided since, and how far Apply is."""
        since = whole_number(request.query_params.get("since") or "0", "since")
        return JSONResponse(self.session.changes(since) | {"apply": self.apply.state})

    def duplicates(self, request: Request) -> Response:
        """What "keep the best" would do with a group of near duplicates."""
        self.session.follow()
        row = self._row(request)
        size = len(self.session.table.group_of(row))
        kept, dropped = self.session.best_duplicate(row)
        decided = int(self.session.decided[dropped].sum())
        return JSONResponse({"size": size, "kept": kept, "dropped": dropped, "decided": decided})

    def decide(self, _request: Request, body: RequestBody) -> Response:
        """Append a decision for some rows."""
        sent = body.sent[:80]
        with self.session.writing_at(body.version, sent):
            view = View.parse(body.view, self.session.table)
            rows = self.session.decide(
                body.rows,
                body.verb,
                body.label,
                person=body.person,
                view=view,
                reason=body.reason[:400],
                sent=sent,
            )
            return self._changed(rows)

    def undo_or_redo(self, request: Request, body: RequestBody) -> Response:
        """Take the last action back, or bring it back."""
        kind, sent = request.url.path.removeprefix("/"), body.sent[:80]
        with self.session.writing_at(body.version, sent):
            text, rows = self.session.undo_or_redo(kind, body.person, sent)
            return self._changed(rows, text)

    def _changed(self, rows: list[int], text: str = "") -> Response:
        session = self.session
        return JSONResponse(
            {
                "rows": [session.state(row) for row in rows],
                "text": text,
                "decided": int(session.decided.sum()),
                "last": session.log.replay.last,
            }
        )

    def start_apply(self, _request: Request, _body: RequestBody) -> Response:
        """Do the stages again that depend on decisions."""
        return JSONResponse({"started": self.apply.start()})

    def change_class(self, request: Request, body: RequestBody) -> Response:
        """Change what a class means."""
        sense, definition = plain(body.sense, 1000), plain(body.definition, 1000)
        with self.session.writing_at(body.version):
            pages.change_class(self.session, self._class(request), sense, definition, person=body.person)
        return JSONResponse({"text": "Saved. It is used from the next Apply on."})

    def link(self, _request: Request, _body: RequestBody) -> Response:
        """A link for another browser."""
        return JSONResponse({"link": self.access.link()})


def make_app(session: ReviewSession, access: AccessControl, work: Work = run_stages) -> Starlette:
    """The app of a session; ``work`` is what Apply does."""
    return Starlette(
        routes=Routes(session, access, work).all(),
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=access.guard)],
        exception_handlers={CaproError: _mistake},
    )


def _with_body(
    answer: Callable[[Request, RequestBody], Response],
) -> Callable[[Request], Awaitable[Response]]:
    """A handler that reads the body of a request, then answers in a thread, as Starlette does for reads."""

    async def handle(request: Request) -> Response:
        return await run_in_threadpool(answer, request, await read_body(request))

    return handle


async def _mistake(request: Request, error: Exception) -> Response:
    """A wrong value in an address or a request: what and what to do, on a page or as JSON."""
    hint = error.hint if isinstance(error, CaproError) else ""
    if request.method == "POST" or request.url.path.startswith(FOR_SCRIPTS):
        status = 409 if isinstance(error, OutOfDate) else 400
        return JSONResponse({"error": str(error), "hint": hint}, status_code=status)
    page = _templates.get_template("mistake.html.j2").render(error=str(error), hint=hint)
    return HTMLResponse(page, status_code=400)


def _once(tiles: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each sample on one tile: one that another tile decides together with its own is left out."""
    seen: set[int] = set()
    shown = []
    for tile in tiles:
        if tile["row"] not in seen:
            shown.append(tile)
            seen.update(tile["members"])
    return shown
