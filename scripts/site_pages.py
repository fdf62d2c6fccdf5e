"""Hook of mkdocs.yml: the Markdown files of the repository's root become pages of the site, in ``project/``.

Links keep the form that works in the repository: ``../CONTRIBUTING.md`` in docs/, ``docs/guide.md`` in the
README. Here they are turned into links between pages. A link to a file that is no page (a licence, a source
file) becomes plain text, as the site does not have the file. The reference gets its tables of commands, settings
and presets.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import reference  # noqa: E402

PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md")
LINK = re.compile(r"(?<!!)\[([^\]\n]*)\]\(([^)\s]+)\)")
PICTURE = re.compile(r"!\[([^\]\n]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root."""
    for name in PAGES:
        files.append(File.generated(config, f"project/{name.lower()}", abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links of the repository into links of the site."""
    own = page.file.src_uri
    if own == "reference.md":
        markdown = reference.filled(markdown)
    pieces = CODE.split(markdown)  # every second one is code, which stays
    return "".join(piece if number % 2 else relinked(piece, own) for number, piece in enumerate(pieces))


def relinked(text: str, own: str) -> str:
    """The text of page ``own`` (its place in the site) with links that lead to pages.

    >>> relinked("[a](docs/guide.md#run), [b](SECURITY.md), [c](LICENSE)", "project/readme.md")
    '[a](../guide.md#run), [b](security.md), c'
    >>> relinked("[a](../README.md#install), [b](guide.md)", "classes.md")
    '[a](project/readme.md#install), [b](guide.md)'
    """

    def link(found: re.Match[str]) -> str:
        place = _place(found[2], own)
        return found[1] if place is None else f"[{found[1]}]({place})"

    def picture(found: re.Match[str]) -> str:
        return f"![{found[1]}]({_place(found[2], own) or found[2]})"

    return PICTURE.sub(picture, LINK.sub(link, text))


def _place(target: str, own: str) -> str | None:
    """Where a link leads to on the site, relative to the page; None where the site has no such file."""
    if re.match(r"[a-z]+:|#", target):
        return target
    name, hash_sign, anchor = target.partition("#")
    folder = "" if own.startswith("project/") else "docs"
    file = posixpath.normpath(posixpath.join(folder, name))
    if file in PAGES:
        file = f"project/{file.lower()}"
    elif file.startswith("docs/"):
        file = file.removeprefix("docs/")
    else:
        return None
    return posixpath.relpath(file, posixpath.dirname(own) or ".") + hash_sign + anchor
