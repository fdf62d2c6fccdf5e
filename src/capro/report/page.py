"""From plain data to one HTML file that loads nothing and runs only our own script.

Web text is hostile. Jinja escapes it in the markup; in the data block every ``<`` is an escape, so
no text can end the block; the script builds the page with text nodes alone. The content security
policy allows one style sheet and one script, by hash, and pictures only as ``data:``.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from capro.results.label_changes import KINDS, given_count, wrong_share
from capro.results.metrics import METRIC_NAMES, SHORT_NAMES
from capro.wording import many, signed

TEMPLATE = Path(__file__).parent / "template"
SCRIPTS = ("base.js", "charts.js", "labels.js", "galleries.js", "map.js", "start.js")
SHOWN_CHANGES = 15  # classes at each end of the table of changes


def render(data: dict[str, Any]) -> str:
    """The page, of what `capro.report.collect` gives."""
    style = (TEMPLATE / "page.css").read_text("utf-8")
    script = "\n".join((TEMPLATE / name).read_text("utf-8") for name in SCRIPTS)
    light = {key: value for key, value in data.items() if key != "sheets"}
    return environment().get_template("page.html.j2").render(
        data=data, style=style, script=script, policy=policy(style, script),
        block=json_block(light), sheets=data["sheets"], changes=changes(data), judged=judged(data),
    )  # fmt: skip


def version() -> str:
    """A hash of the template: a report of another template is made anew."""
    parts = [path.read_bytes() for path in sorted(TEMPLATE.iterdir())]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def policy(style: str, script: str) -> str:
    """The content security policy of a page with this style sheet and this script.

    >>> policy("", "").startswith("default-src 'none'; img-src data:; style-src 'sha256-47DEQpj8")
    True
    """

    def allow(text: str) -> str:
        digest = hashlib.sha256(text.encode("utf-8")).digest()
        return f"'sha256-{base64.b64encode(digest).decode()}'"

    return (
        f"default-src 'none'; img-src data:; style-src {allow(style)}; script-src {allow(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def json_block(value: Any) -> str:
    """JSON that is safe within a script element: nothing in it ends the element or opens a comment.

    >>> print(json_block({"title": "</script><!--"}))
    {"title":"\\u003c/script\\u003e\\u003c!--"}
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII: no U+2028 either
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def judged(data: dict[str, Any]) -> dict[str, Any] | None:
    """How many labels were given, and the share of them that is judged wrong; None before the clean stage."""
    if not data["noise"]:
        return None
    counts = np.array([data["noise"]["total"][kind] for kind in KINDS])
    return {"given": int(given_count(counts)), "wrong": float(wrong_share(counts))}


def changes(data: dict[str, Any]) -> dict[str, Any] | None:
    """Classes made worse first, then better; the middle of a long list is left out, and counted."""
    if not data["comparison"] or not data["comparison"]["changes"]:
        return None
    rows = data["comparison"]["changes"]  # worst first
    worse = [row for row in rows if row["change"] < 0]
    better = [row for row in reversed(rows) if row["change"] > 0]
    return {
        "worse": worse[:SHOWN_CHANGES],
        "better": better[:SHOWN_CHANGES],
        "more_worse": max(0, len(worse) - SHOWN_CHANGES),
        "more_better": max(0, len(better) - SHOWN_CHANGES),
        "same": len(rows) - len(worse) - len(better),
        "widest": max(abs(row["change"]) for row in rows) or 1.0,
        "figure": "average precision" if data["task"] == "multi" else "top-1 accuracy",
    }


@cache
def environment() -> Environment:
    """Jinja with autoescape for every template, whatever its name."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "percent": lambda value: f"{100 * value:.1f}",
        "points": signed,
        "many": many,
        "metric": lambda name: METRIC_NAMES.get(name, name),
        "short": lambda name: SHORT_NAMES.get(name, name),
    }
    return made
