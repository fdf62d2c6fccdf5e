"""The web app: pages rendered here, a little script in the browser; every request passes the guard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from capro.errors import CaproError, ConfigError
from capro.review import class_pages, items
from capro.review.pictures import KIND, SIDES
from capro.review.security import (
    Access,
    Guard,
    TooLarge,
    class_of,
    json_object,
    row_in,
    row_of,
    rows_of,
    sent_of,
    view_of,
    who_of,
)
from capro.review.serving import Apply, Work, go_on
from capro.review.session import OutOfDate, ReviewSession
from capro.review.table import VERDICT_NAMES
from capro.review.views import ORDERS, SIZES, STATES, View, whole_number
from capro.wording import many, plain, share

HERE = Path(__file__).parent
FOR_SCRIPTS = ("/changes", "/copies/")  # reads that answer with JSON
Handler = Callable[[Request], Awaitable[Response]]

_pages = Environment(
    loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
_pages.filters |= {"plain": plain, "share": lambda value: share(value, 1), "many": many}


class App:
    """The handlers, over one desk."""

    def __init__(self, desk: ReviewSession, doors: Access, work: Work) -> None:
        self.desk, self.doors = desk, doors
        self.apply = Apply(desk.run.path, desk.reload, work)

    def routes(self) -> list[Route | Mount]:
        """Every address of the app."""
        reading = {
            "/": self.grid, "/sample/{row}": self.sample, "/likes/{row}": self.likes,
            "/classes": self.classes, "/class/{number}": self.one_class, "/progress": self.progress,
            "/changes": self.changes, "/picture/{scan}/{size}/{row}": self.picture, "/open": self.enter,
            "/key": self.key, "/copies/{row}": self.copies,
        }  # fmt: skip
        writing = {
            "/decide": self.decide, "/undo": self.undo, "/redo": self.redo, "/apply": self.start_apply,
            "/class/{number}/meaning": self.meaning, "/link": self.link,
        }  # fmt: skip
        return [
            *(Route(path, _threaded(work), methods=["GET"]) for path, work in reading.items()),
            *(Route(path, _threaded(work, body=True), methods=["POST"]) for path, work in writing.items()),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ]

    # --- pages ------------------------------------------------------------------------------------

    def page(self, request: Request, name: str, **values: Any) -> Response:
        """A page from a template, with what every page needs."""
        desk = self.desk
        common = {
            "key": self.doors.key(request) or "",
            "run": desk.run.path.name,
            "classes": desk.table.names,
            "several": desk.table.several,
            "pictures": f"/picture/{desk.scan}",
            **self._now(),
            "decided": int(desk.decided.sum()),
            "total": len(desk.table),
            "here": request.url.path,
        }
        return HTMLResponse(_pages.get_template(name).render(common | values))

    def _now(self) -> dict[str, Any]:
        """How new a page is; taken before its rows are read: a page may be newer than it says, never older."""
        return {"last": self.desk.log.replay.last, "version": self.desk.version}

    def enter(self, request: Request) -> Response:
        """Exchange a token for a cookie."""
        session = self.doors.enter(request.query_params.get("token", ""))
        if session is None:
            text = "This link was used already, or the server was restarted since. The terminal shows the next link."
            return PlainTextResponse(text, status_code=401)
        # a page that goes on by itself: a redirect from another site's link would come without the cookie
        answer = HTMLResponse(_pages.get_template("open.html.j2").render())
        answer.set_cookie(self.doors.cookie, session, httponly=True, samesite="strict", path="/")
        return answer

    def grid(self, request: Request) -> Response:
        """The pictures of a view."""
        desk = self.desk
        desk.follow()
        now = self._now()
        view = View.parse(request.query_params, desk.table)
        begin = request.query_params.get("from")
        after = row_in(begin, "from", desk) if begin else None
        found = desk.views.page(view, desk.decided, after)
        tiles = [items.tile(desk, int(row), view) for row in found.rows]
        return self.page(
            request, "grid.html.j2", view=view, page=found, tiles=_once(tiles), orders=ORDERS, sizes=SIZES,
            states=STATES, verdicts=VERDICT_NAMES, first=after is None, here="copies" if view.copies else "/",
            next_class=view.of_next_class(desk.table.names), group_of=desk.table.group_of, **now,
        )  # fmt: skip

    def sample(self, request: Request) -> Response:
        """One sample with its evidence; ``part=1`` gives the middle of the page alone."""
        desk = self.desk
        desk.follow()
        now = self._now()
        view = View.parse(request.query_params, desk.table)
        row = row_of(request, desk)
        found = items.sheet(desk, row, view)
        following = desk.views.page(View(**vars(view) | {"size": SIZES[0]}), desk.decided, row).rows
        rest = [int(other) for other in following if int(other) not in found["members"]][:4]
        part = request.query_params.get("part") == "1"
        name = "sheet.html.j2" if part else "sample.html.j2"
        following_class = view.of_next_class(desk.table.names)
        return self.page(
            request, name, view=view, item=found, following=rest, next_class=following_class, **now
        )

    def likes(self, request: Request) -> Response:
        """The pictures most like one, for the view of one sample."""
        row = row_of(request, self.desk)
        view = View.parse(request.query_params, self.desk.table)
        return self.page(request, "likes.html.j2", view=view, row=row, **items.likes(self.desk, row))

    def classes(self, request: Request) -> Response:
        """All classes."""
        return self.page(request, "classes.html.j2", rows=class_pages.overview(self.desk))

    def one_class(self, request: Request) -> Response:
        """One class."""
        now = self._now()
        number = class_of(request, self.desk)
        found = class_pages.class_page(self.desk, number)
        return self.page(request, "class.html.j2", view=View(), item=found, **now)

    def progress(self, request: Request) -> Response:
        """How far the review is."""
        self.desk.follow()
        return self.page(request, "progress.html.j2", found=self.desk.progress())

    def picture(self, request: Request) -> Response:
        """A thumbnail by scan and row: browsers keep it, and a row of another scan is another picture."""
        scan, size = request.path_params["scan"], request.path_params["size"]
        if size not in SIDES:
            raise ConfigError(f"no size {plain(size, 20)!r}", hint=", ".join(SIDES))
        found = self.desk.picture(scan, row_of(request, self.desk), size)
        if found is None:
            return PlainTextResponse("The picture is no longer there.", status_code=404)
        headers = {"cache-control": "private, max-age=86400"}
        return Response(found, media_type=f"image/{KIND}", headers=headers)

    # --- changes ----------------------------------------------------------------------------------

    def key(self, request: Request) -> Response:
        """The key of this session, for a page that was open before the server was started anew."""
        return JSONResponse({"key": self.doors.key(request)})

    def changes(self, request: Request) -> Response:
        """What others decided since, and how the refit goes."""
        since = whole_number(request.query_params.get("since") or "0", "since")
        return JSONResponse(self.desk.changes(since) | {"apply": self.apply.state})

    def copies(self, request: Request) -> Response:
        """What "keep the best" would do with a group of near duplicates."""
        self.desk.follow()
        found = self.desk.best_copy(row_of(request, self.desk))
        decided = int(self.desk.decided[found.out].sum())
        return JSONResponse(
            {"size": len(found.rows), "kept": found.kept, "out": found.out, "decided": decided}
        )

    def decide(self, _request: Request, body: Any) -> Response:
        """Append a decision for some rows."""
        label, sent = body.get("label"), sent_of(body)
        with self.desk.at(body.get("version"), sent):
            changed = self.desk.decide(
                rows_of(body), str(body.get("verb")), None if label is None else str(label),
                who=who_of(body), view=view_of(body, self.desk), reason=str(body.get("reason") or "")[:400],
                sent=sent,
            )  # fmt: skip
            return self._states(changed)

    def undo(self, _request: Request, body: Any) -> Response:
        """Take the last action back."""
        return self._turned(self.desk.undo, body)

    def redo(self, _request: Request, body: Any) -> Response:
        """Bring it back."""
        return self._turned(self.desk.redo, body)

    def _turned(self, turn: Callable[[str, str], tuple[str, list[int]]], body: Any) -> Response:
        with self.desk.at(body.get("version"), sent_of(body)):
            text, rows = turn(who_of(body), sent_of(body))
            return self._states(rows, text)

    def _states(self, rows: list[int], text: str = "") -> Response:
        desk = self.desk
        return JSONResponse(
            {
                "rows": [desk.state(row) for row in rows],
                "text": text,
                "decided": int(desk.decided.sum()),
                "last": desk.log.replay.last,
            }
        )

    def start_apply(self, _request: Request, _body: Any) -> Response:
        """Let the run go on with the decisions."""
        return JSONResponse({"started": self.apply.start()})

    def meaning(self, request: Request, body: Any) -> Response:
        """Change what a class means."""
        sense, definition = (plain(body.get(name), 1000) for name in ("sense", "definition"))
        with self.desk.at(body.get("version")):
            number = class_of(request, self.desk)
            self.desk.change_class(number, sense, definition, who=who_of(body))
        return JSONResponse({"text": "Saved. It is used from the next Apply on."})

    def link(self, _request: Request, _body: Any) -> Response:
        """A link for another browser."""
        return JSONResponse({"link": self.doors.link()})


def make_app(desk: ReviewSession, doors: Access, work: Work = go_on) -> Starlette:
    """The app for a desk behind its doors."""
    app = App(desk, doors, work)
    return Starlette(
        routes=app.routes(),
        middleware=[Middleware(Guard, doors=doors)],
        exception_handlers={CaproError: _mistake},
    )


def _threaded(work: Callable[..., Response], *, body: bool = False) -> Handler:
    """A handler in a thread of its own: reading pictures and writing the log wait for the disk."""

    async def handle(request: Request) -> Response:
        if not body:
            return await run_in_threadpool(work, request)
        try:
            found = await json_object(request)
        except TooLarge:
            return PlainTextResponse("The request is too large.", status_code=413)
        if found is None:
            return PlainTextResponse("The request is not a JSON object.", status_code=400)
        return await run_in_threadpool(work, request, found)

    return handle


async def _mistake(request: Request, error: Exception) -> Response:
    """A wrong value in an address or a request: what and what to do, on a page or as JSON."""
    hint = error.hint if isinstance(error, CaproError) else ""
    if request.method == "POST" or request.url.path.startswith(FOR_SCRIPTS):
        status = 409 if isinstance(error, OutOfDate) else 400
        return JSONResponse({"error": str(error), "hint": hint}, status_code=status)
    page = _pages.get_template("mistake.html.j2").render(error=str(error), hint=hint)
    return HTMLResponse(page, status_code=400)


def _once(tiles: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each sample on one tile: one that another tile decides together with its own is left out."""
    seen: set[int] = set()
    found = []
    for each in tiles:
        if each["row"] not in seen:
            found.append(each)
            seen.update(each["members"])
    return found
