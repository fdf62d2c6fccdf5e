"""Class definitions: `classes.yaml`, the text of a class, and suggestions of WordNet senses.

A class has a name and, as it likes, a `sense` (of WordNet), a `definition` in free words, the
`query` that fetched its images, and whether its name is `ambiguous`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from capro.errors import ConfigError, did_you_mean
from capro.run.artefacts import CLASSES
from capro.run.directory import Run
from capro.text import wordnet
from capro.text.senses import Candidate, Suggestion, suggest

__all__ = [
    "Candidate",
    "ClassSpec",
    "Suggestion",
    "class_text",
    "classes_of",
    "draft",
    "load_classes",
    "save_classes",
    "suggest",
]

HEADER = """\
# The classes. Each may have
#   sense:       a noun sense of WordNet 3.0: an id (n02123159), tiger_cat.n.02, or a word
#   definition:  what the class is, in your own words; beside a sense or instead of it
#   query:       what was searched for, where that is not the name
#   ambiguous:   whether the name has other senses that the web shows as well
# The text of a class decides which images become its anchors: look at every sense once.
"""


@dataclass(frozen=True)
class ClassSpec:
    """One entry of classes.yaml."""

    name: str
    sense: str | None = None
    definition: str | None = None
    query: str | None = None
    ambiguous: bool | None = None


_KEYS = [each.name for each in fields(ClassSpec)]


def class_text(spec: ClassSpec) -> tuple[str, str | None]:
    """Text t^c of a class, and a warning where only its name is known.

    A definition stands before the text of the sense. A name that is an id of WordNet, as in
    WebVision, is its own sense.

    >>> class_text(ClassSpec("boots", definition="high shoes"))
    ('high shoes', None)
    >>> class_text(ClassSpec("ice_boots"))[0]
    'ice boots'
    """
    sense = spec.sense or (spec.name if wordnet.is_wnid(spec.name) else None)
    parts = [spec.definition] if spec.definition else []
    if sense:
        parts.append(wordnet.sense_text(wordnet.resolve(sense)))
    if parts:
        return "; ".join(parts), None
    return (
        " ".join(spec.name.replace("_", " ").split()),
        f"class '{spec.name}' has neither a sense nor a definition: its bare name stands for it",
    )


def classes_of(run: Run) -> list[ClassSpec]:
    """The classes of a run, in the order of every class axis."""
    return [ClassSpec(**value) for value in run.read(CLASSES)]


def draft(suggestion: Suggestion) -> ClassSpec:
    """The entry of classes.yaml that follows a suggestion."""
    if suggestion.best is None:
        return ClassSpec(suggestion.name)
    return ClassSpec(suggestion.name, sense=suggestion.best.wnid, ambiguous=suggestion.ambiguous)


def load_classes(path: str | os.PathLike[str]) -> list[ClassSpec]:
    """Read classes.yaml: a list of names, or of mappings with a name; every sense is resolved."""
    path = Path(path)
    root = _parse(path)
    if not isinstance(root, yaml.SequenceNode) or not root.value:
        raise ConfigError(
            f"{path}: no list of classes", hint="write one line per class, such as '- name: tiger'"
        )
    specs: list[ClassSpec] = []
    lines: dict[str, int] = {}
    for entry, node in enumerate(root.value, start=1):
        line = node.start_mark.line + 1
        where = f"{path}:{line}: class {entry}"
        spec = _spec(node, where, path)
        if spec.name in lines:
            raise ConfigError(
                f"{where}: '{spec.name}' is there already, in line {lines[spec.name]}",
                hint="remove one of the two",
            )
        lines[spec.name] = line
        specs.append(spec)
    return specs


def _parse(path: Path) -> yaml.Node | None:
    try:
        # Nodes, not objects: they know their lines, and `no` and `101` stay the text they are.
        text = path.read_text(encoding="utf-8-sig")
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
        return root
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", hint="draft it with 'capro classes suggest'") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="check the path") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8", hint="save the file as UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else f"{path}"
        problem = getattr(error, "problem", None) or "a character that YAML does not allow"
        raise ConfigError(
            f"{place}: no valid YAML: {problem}", hint="put names and definitions with ':' or '#' in quotes"
        ) from None
    except RecursionError:
        raise ConfigError(
            f"{path}: nested too deeply", hint="write one line per class, such as '- name: tiger'"
        ) from None


def _spec(node: yaml.Node, where: str, path: Path) -> ClassSpec:
    values: dict[str, str | bool | None] = {}
    lines: dict[str, str] = {}
    if isinstance(node, yaml.ScalarNode):
        values["name"] = _text(node)
    elif isinstance(node, yaml.MappingNode):
        for key_node, value in node.value:
            key = str(key_node.value)
            place = f"{path}:{key_node.start_mark.line + 1}: {where.rpartition(': ')[2]}"
            if key not in _KEYS:
                raise ConfigError(f"{place}: unknown key '{key}'", hint=did_you_mean(key, _KEYS))
            if key in values:
                raise ConfigError(f"{place}: '{key}' stands twice", hint="remove one of the two")
            if not isinstance(value, yaml.ScalarNode):
                raise ConfigError(f"{place}: '{key}' is no text", hint="write it on one line")
            values[key] = _boolean(value, place) if key == "ambiguous" else _text(value)
            lines[key] = place
    else:
        raise ConfigError(f"{where} is a list", hint="write '- name: tiger'")
    if not values.get("name"):
        raise ConfigError(f"{where} has no name", hint="add 'name: ...', as the labels have it")
    spec = ClassSpec(**values)  # type: ignore[arg-type]  # keys and types are checked above
    if spec.sense:
        try:
            wordnet.resolve(spec.sense)
        except ConfigError as error:
            raise ConfigError(f"{lines['sense']} '{spec.name}': {error}", hint=error.hint) from None
    return spec


def _text(node: yaml.ScalarNode) -> str | None:
    empty = node.tag == "tag:yaml.org,2002:null"
    return None if empty else str(node.value).strip() or None


def _boolean(node: yaml.ScalarNode, place: str) -> bool | None:
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    text = _text(node)
    if text is None:
        return None
    if text.lower() not in words:
        raise ConfigError(f"{place}: 'ambiguous' is '{text}'", hint="write 'ambiguous: true' or 'false'")
    return words[text.lower()]


def save_classes(
    path: str | os.PathLike[str], specs: Sequence[ClassSpec], *, suggestions: Iterable[Suggestion] = ()
) -> None:
    """Write classes.yaml at once or not at all; suggestions add the other senses as comments."""
    path = Path(path)
    comments = {each.name: each.comments() for each in suggestions}
    text = HEADER + "".join("\n" + _entry(spec, comments.get(spec.name, [])) for spec in specs)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigError(f"{path}: {error.strerror}", hint="choose a folder that exists") from None


def _entry(spec: ClassSpec, comments: Sequence[str]) -> str:
    lines = [f"- name: {_scalar(spec.name)}"]
    if spec.sense:
        sense = wordnet.resolve(spec.sense)
        lines.append(f"  sense: {_scalar(spec.sense)}  # {sense.name}: {sense.definition}")
    if spec.definition:
        lines.append(f"  definition: {_scalar(spec.definition)}")
    if spec.query:
        lines.append(f"  query: {_scalar(spec.query)}")
    if spec.ambiguous is not None:
        lines.append(f"  ambiguous: {'true' if spec.ambiguous else 'false'}")
    lines += [f"  # {comment}" for comment in comments]
    return "\n".join(lines) + "\n"


def _scalar(text: str) -> str:
    """A text as YAML on one line."""
    if text.isprintable():
        dumped = yaml.safe_dump(text, allow_unicode=True, width=1 << 30)
        return dumped.removesuffix("\n").removesuffix("\n...")
    return yaml.safe_dump(text, default_style='"', width=1 << 30).removesuffix("\n")  # escapes
