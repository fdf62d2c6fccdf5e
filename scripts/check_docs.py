"""Checks README.md, CONTRIBUTING.md, SECURITY.md, benchmarks/LOG.md and docs/: `make docs`.

What a page names must exist: commands with their options, settings with their values, presets, make targets,
files, functions, imports and links. And no block may look as if a formatter had reflowed it: several commands or
statements on one line, a comment that swallowed the next command, prose among commands, a table with rows of
different width. A page may show a mistake on purpose in a ``text`` block, which is not read.

    python scripts/check_docs.py           prints problems, exits with 1 if there are any
"""

from __future__ import annotations

import ast
import importlib
import io
import pkgutil
import re
import shlex
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import reference  # noqa: E402
from capro import config  # noqa: E402
from capro.bench.grids import TABLES  # noqa: E402
from capro.data.images import REASONS  # noqa: E402
from capro.data.manifest import ROW_REASONS  # noqa: E402
from capro.errors import CaproError, did_you_mean  # noqa: E402
from capro.models.classes import load_classes  # noqa: E402
from capro.pipeline import artefacts  # noqa: E402
from capro.stages import PLAN  # noqa: E402

FENCE = re.compile(r"^\s*(```+|~~~+)\s*(\S*)")
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
SHELL = ("sh", "bash", "shell", "console")
OURS = ("src", "docs", "tests", "scripts", "benchmarks", "soak", ".ci")  # folders of the repository
MADE = (".parquet", ".npy", ".npz", ".safetensors", ".jsonl", ".json", ".yaml", ".png", ".html")
SEPARATORS = {"|", "&&", "||", ";", "&", ">", ">>", "2>", "<"}


def main() -> int:
    """Print problems; 1 if there are any."""
    problems = list(check_all())
    for problem in problems:
        print(problem, file=sys.stderr)
    pages = len(list(documents()))
    print(f"{pages} pages checked, {len(problems)} problems")
    return 1 if problems else 0


def check_all() -> Iterator[str]:
    """The problems of every page, and of what must be documented."""
    for path in documents():
        yield from check(path)
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT / "docs").as_posix()
        if name != "index.md" and f"({name})" not in index:
            yield f"docs/index.md: no link to {name}"
    for name in sorted({*re.findall(r"docs/[\w-]+\.md", sources())}):
        if not (ROOT / name).exists():
            yield f"src: a docstring or message names {name}, which is not there"
    reasons = (ROOT / "docs" / "errors.md").read_text("utf-8")
    for reason in [*REASONS, *ROW_REASONS]:
        if f"`{reason}`" not in reasons:
            yield f"docs/errors.md: the quarantine reason `{reason}` is missing"


def documents() -> Iterator[Path]:
    """The pages."""
    yield ROOT / "README.md"
    yield ROOT / "CONTRIBUTING.md"
    yield ROOT / "SECURITY.md"
    yield ROOT / "benchmarks" / "LOG.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def check(path: Path) -> Iterator[str]:
    """The problems of one page, each with its line."""
    text = path.read_text("utf-8")
    place = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    for line, kind, content in pieces(text):
        if kind == "inline":
            found = check_inline(content)
        elif kind == "link":
            found = check_link(content, path)
        else:
            found = check_block(kind, content)
        for problem in found:
            yield f"{place}:{line}: {problem}"
    for line, problem in broken(text):
        yield f"{place}:{line}: {problem}"


# --- markdown -------------------------------------------------------------------------------------


def pieces(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, kind, content) of inline code, links and fenced blocks; a block's kind is its language.

    >>> list(pieces("see `capro run` in [a](b.md)"))
    [(1, 'inline', 'capro run'), (1, 'link', 'b.md')]
    """
    block: list[str] | None = None
    fence, language, begin = "", "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        found = FENCE.match(line)
        if block is None and found:
            fence, language, begin, block = found[1], found[2] or "none", number, []
        elif block is not None and line.strip() == fence:
            yield begin, language, "\n".join(block)
            block = None
        elif block is not None:
            block.append(line)
        else:
            for match in INLINE.finditer(line):
                yield number, "inline", match[1]
            for match in LINK.finditer(INLINE.sub("``", line)):
                yield number, "link", match[1]


def headings(text: str) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    inside, found = False, set()
    for line in text.splitlines():
        inside ^= bool(FENCE.match(line))
        if not inside and re.match(r"#{1,6} ", line):
            words = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
            found.add(words.replace(" ", "-"))
    return found


def check_link(target: str, page: Path) -> Iterator[str]:
    """A relative link must lead to a file, and its anchor to a heading."""
    if re.match(r"[a-z]+:", target):
        return
    name, _, anchor = target.partition("#")
    file = (page.parent / name).resolve() if name else page
    if not file.exists():
        yield f"link to '{target}': no such file"
    elif anchor and file.suffix == ".md" and anchor not in headings(file.read_text("utf-8")):
        yield f"link to '{target}': no heading '#{anchor}'"


# --- what a formatter breaks ----------------------------------------------------------------------

PROGRAMS = "capro make python python3 pip torchrun accelerate hf aws git pytest".split()
BUILTINS = "cd export ls ray srun .".split()  # may begin a line, and are ordinary words within one


def broken(text: str) -> Iterator[tuple[int, str]]:
    """(line, problem) of fences, tables and blocks that look as if they had been reflowed.

    >>> list(broken("```sh\\nmake test # all tests make docs # this page\\n```"))
    [(2, "two comments on one line: '# all tests make docs # this page'")]
    """
    fence, cells, lines = 0, 0, text.splitlines()
    for number, line in enumerate(lines, start=1):
        if FENCE.match(line) and not re.fullmatch(r"\s*(```+|~~~+)\s*[\w-]*\s*", line):
            yield number, f"text behind a fence: {line.strip()!r}"
        elif FENCE.match(line):
            fence = 0 if fence else number
        elif not fence and "```" in line:
            yield number, "a fence within a line of text"
        row = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") and not fence else 0
        if row and cells and row != cells:
            yield number, f"a table row with {row - 1} cells below one with {cells - 1}"
        elif row and not cells and not re.match(r"\|[ :-]*-", "".join(lines[number : number + 1])):
            yield number, f"a table without a head, or one that is cut in two: {line!r}"
        cells = row
    if fence:
        yield fence, "the block is not closed"
    for begin, language, content in pieces(text):
        if language in SHELL:
            yield from broken_shell(begin, language, content)
        elif language == "python":
            yield from broken_python(begin, content)


def broken_shell(begin: int, language: str, content: str) -> Iterator[tuple[int, str]]:
    """Each line is one command, a comment, or the continuation of the line before it."""
    continued = False
    for number, line in enumerate(content.splitlines(), start=begin + 1):
        if language == "console" and " $ " in line:
            yield number, f"several commands on one line: {line.strip()!r}"
        if language == "console" and not line.startswith("$ "):
            continue  # what the command printed
        command, hash_sign, comment = line.removeprefix("$ ").partition("#")
        words = command.replace('"', " ").replace("'", " ").split()
        if " # " in comment:
            yield number, f"two comments on one line: {hash_sign + comment!r}"
        elif words and (inside := _commands_in(comment)):
            yield number, f"the comment holds a command: {inside!r}"
        elif words and not continued and not _begins(words[0]):
            yield number, f"begins with no command: {line.strip()!r} (PROGRAMS in scripts/check_docs.py)"
        for before, word in pairwise(words):
            if word in PROGRAMS and not re.match(r"-|[A-Z_]+=|[|&;<>]", before):
                yield number, f"several commands on one line: {line.strip()!r}"
                break
        continued = line.endswith("\\")


def _begins(word: str) -> bool:
    return word in BUILTINS or Path(word).name in PROGRAMS or re.match(r"\w+=|\.venv/bin/", word) is not None


def _commands_in(comment: str) -> str:
    """A command of ours that stands in a comment without backquotes."""
    known = [*reference.commands(), *(f"make {target}" for target in targets())]
    plain = INLINE.sub("", comment)
    return next((each for each in known if re.search(rf"(?<![\w-]){each}(?![\w-])", plain)), "")


def broken_python(begin: int, content: str) -> Iterator[tuple[int, str]]:
    """One statement a line, and no statement in a comment; what does not parse is found elsewhere."""
    try:
        tree = ast.parse(content)
    except SyntaxError:
        return
    lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    for line in sorted({each for each in lines if lines.count(each) > 1}):
        yield begin + line, "several statements on one line"
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type == tokenize.COMMENT and re.search(
            r"\w \w+ = \w|\b(import \w+|print\()", INLINE.sub("", token.string)
        ):
            yield begin + token.start[0], f"the comment holds a statement: {token.string!r}"


# --- code -----------------------------------------------------------------------------------------


def check_block(language: str, content: str) -> Iterator[str]:
    """A fenced block, by its language."""
    if language in SHELL:
        lines = content.replace("\\\n", " ").splitlines()
        for line in lines:
            if language == "console" and not line.startswith("$ "):
                continue  # what the command printed
            yield from check_line(line.removeprefix("$ "))
    elif language == "yaml":
        yield from check_yaml(content)
    elif language == "python":
        yield from check_python(content)


def check_inline(content: str) -> Iterator[str]:
    """Inline code: a command, a setting, something of the package, or a file."""
    if content.split()[:1] in (["capro"], ["make"], ["python"]):
        yield from check_line(content)
        return
    if re.fullmatch(r"capro(\.\w+)+", content):
        yield from check_object(content)
        return
    name, equals, _ = content.partition("=")
    stage, dot, key = name.partition(".")
    if dot and stage in config.sections() and key.isidentifier() and f".{key}" not in MADE:
        if content.endswith(".py"):
            return
        if key not in config.sections()[stage].model_fields:
            known = config.sections()[stage].model_fields
            yield f"no setting '{name}': {did_you_mean(key, known)}"
        elif equals:
            yield from check_override(content)
        return
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", content):
        yield from check_file(content)


def check_object(name: str) -> Iterator[str]:
    """A module, function or class by its dotted name must be there."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError) as error:
        yield f"no '{name}': {error}"


def check_file(name: str) -> Iterator[str]:
    """A file of the repository must be there; one that a run writes must be named in the source."""
    if re.search(r"[A-Z]", Path(name).stem) and Path(name).suffix in MADE:
        return  # SPLIT-0000N.parquet: capitals are the reader's
    first, _, rest = name.partition("/")
    if rest and first in OURS:
        if not (ROOT / name).exists():
            yield f"no file '{name}' in the repository"
        return
    last = name.rstrip("/").rpartition("/")[2]
    stage = rest and (first in stage_folders() or first == "runs")
    if stage and Path(last).suffix in MADE and last not in sources():
        yield f"'{name}': no code writes '{last}'"
    if not rest and Path(last).suffix in (".py", ".toml", ".cff", ".md") and not anywhere(last):
        yield f"no file '{name}' in the repository"
    arrays = (".parquet", ".npy", ".npz", ".safetensors")
    if not rest and Path(last).suffix in arrays and last not in sources():
        yield f"'{name}': no code reads or writes it"


def check_line(line: str) -> Iterator[str]:
    """A command line: `capro ...`, `make ...`, `python FILE`; others are not looked at."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        yield f"`{line}`: {error}"
        return
    for number, word in enumerate(words):  # the first of several commands, then the others
        if word in SEPARATORS:
            yield from check_line(shlex.join(words[number + 1 :]))
            words = words[:number]
            break
    while words and re.match(r"[A-Z_]+=", words[0]):  # environment
        words = words[1:]
    program = Path(words[0]).name if words else ""
    if words[1:3] == ["-m", "capro"] or (program == "accelerate" and "capro" in words):
        words = ["capro", *words[words.index("capro") + 1 :]]
        program = "capro"
    if program == "capro":
        yield from check_capro(words[1:])
    elif program == "make":
        for target in words[1:]:
            if "=" not in target and not target.startswith("-") and target not in targets():
                yield f"`{line}`: no make target '{target}'"
    elif program.startswith("python"):
        for word in words[1:2]:
            if word.startswith(OURS) and not (ROOT / word).exists():
                yield f"`{line}`: no file '{word}'"


def check_capro(words: list[str]) -> Iterator[str]:
    """The words after `capro`; capitals and dots stand for what the reader fills in, [] for may be."""
    words = [word.strip("[]") for word in words]
    known = reference.commands()
    shown = "capro " + " ".join(words)
    options = {"--help": True, "--version": True, "--install-completion": True}
    if not words or words[0] in options or words[0] == "COMMAND":
        return
    name = next((found for n in (2, 1) if (found := " ".join(["capro", *words[:n]])) in known), None)
    if name is None:
        groups = {each.rsplit(" ", 1)[0] for each in known if each.count(" ") > 1}
        if f"capro {words[0]}" not in groups or len(words) > 1:
            yield f"`{shown}`: no such command: {did_you_mean(shown, known)}"
        return
    command, rest = known[name], words[name.count(" ") :]
    flags: dict[str, bool] = {"--help": True}
    arguments = 0
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            arguments += 1 if parameter.nargs > 0 else 1000  # -1: any number
            continue
        for option in (*parameter.opts, *parameter.secondary_opts):
            flags[option] = bool(parameter.is_flag)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if not word.startswith("-") or not equals:
            option, value = word, ""
        if word == "...":
            continue
        if not word.startswith("-"):
            arguments -= 1
            if name == "capro bench" and word not in {*TABLES, "all"} and not word.isupper():
                yield f"`{shown}`: no table '{word}': {did_you_mean(word, TABLES)}"
        elif option not in flags:
            yield f"`{shown}`: no option '{option}': {did_you_mean(option, flags)}"
            return
        elif not flags[option]:
            value = value if equals else (rest.pop(0) if rest else "...")
            yield from check_value(option, value)
    if arguments < 0:
        yield f"`{shown}`: more arguments than {name} takes"


def check_value(option: str, value: str) -> Iterator[str]:
    """The value of --set or --preset."""
    if value == "..." or value.isupper():
        return
    if option == "--set" and value != "stage.name=value":
        yield from check_override(value)
    if option == "--preset" and value not in config.preset_names():
        yield f"no preset '{value}': {did_you_mean(value, config.preset_names())}"


def check_override(text: str) -> Iterator[str]:
    """`stage.name=value` must be accepted."""
    if text.endswith("=..."):
        text = text.removesuffix("...") + "null"
        name = text.partition("=")[0]
        stage, _, key = name.partition(".")
        if key not in getattr(config.sections().get(stage), "model_fields", {}):
            yield f"no setting '{name}'"
        return
    try:
        config.load(overrides=[text])
    except CaproError as error:
        yield f"--set {text}: {error}; {error.hint}"


def check_yaml(content: str) -> Iterator[str]:
    """Settings must be accepted; a list is a classes.yaml."""
    try:
        values = yaml.safe_load(content)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "example.yaml"
            file.write_text(content, "utf-8")
            if isinstance(values, list):
                load_classes(file)
            elif isinstance(values, dict) and set(values) & set(config.Settings.model_fields):
                config.load(file)
    except (yaml.YAMLError, CaproError) as error:
        yield f"yaml: {error}"


def check_python(content: str) -> Iterator[str]:
    """Must parse, and what it imports from capro must be there."""
    try:
        tree = ast.parse(content)
    except SyntaxError as error:
        yield f"python: {error}"
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "capro":
            try:
                module = importlib.import_module(str(node.module))
            except ImportError as error:
                yield f"python: {error}"
                continue
            for alias in node.names:
                if not hasattr(module, alias.name) and not _is_module(node.module, alias.name):
                    yield f"python: {node.module} has no '{alias.name}'"


def _is_module(package: str | None, name: str) -> bool:
    try:
        importlib.import_module(f"{package}.{name}")
    except ImportError:
        return False
    return True


# --- what there is --------------------------------------------------------------------------------


@cache
def targets() -> set[str]:
    """The targets of the Makefile."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@cache
def sources() -> str:
    """The text of all source files: a name of an artefact stands there as a string."""
    return "\n".join(file.read_text("utf-8") for file in (ROOT / "src").rglob("*.py"))


@cache
def stage_folders() -> set[str]:
    """Names of a run directory's folders."""
    declared = [each for each in vars(artefacts).values() if isinstance(each, artefacts.Artefact)]
    return {*PLAN.names, *(artefact.stage for artefact in declared)}


@cache
def anywhere(name: str) -> bool:
    """Whether the repository has a file of this name."""
    folders = [ROOT / folder for folder in OURS]
    return (ROOT / name).exists() or any(any(each.rglob(name)) for each in folders)


if __name__ == "__main__":
    sys.exit(main())
