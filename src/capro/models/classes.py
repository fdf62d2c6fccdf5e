"""Class definitions: `classes.yaml`, the text of a class, and suggestions of WordNet senses.

A class has a name and may have a `sense` (of WordNet), a `definition` in free words, the `query` that
was searched for, whether its name is `ambiguous`, and what is `not` meant by it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import yaml

from capro.data.readers.text_files import read_lines
from capro.errors import ConfigError, did_you_mean
from capro.files import compose_yaml, problem_of, read_regular
from capro.models import wordnet
from capro.models.senses import Suggestion
from capro.pipeline.artefacts import CLASSES, REVIEW, write_text
from capro.pipeline.run import Run
from capro.stores import local_path
from capro.wording import many

AMBIGUOUS = "give the file of data.ambiguous_list: a WordNet id or a class name first in each line"
ONE_LINE = "write one line per class, such as '- name: tiger'"
IN_RUN = "run:"  # how a value of data.classes begins that is a path in the run directory
OWN_CLASSES = f"{REVIEW}/classes.yaml"  # where a review writes another meaning of a class
HEADER = """\
# The classes. Each may have
#   sense:       a noun sense of WordNet 3.0: an id (n02123159), tiger_cat.n.02, or a word
#   definition:  what the class is, in your own words; beside a sense or instead of it
#   query:       what was searched for, where that is not the name
#   ambiguous:   whether the name has other senses that the web shows as well
#   not:         what the web shows for the name as well and is not meant: hot dog, or [hot dog, corn dog]
# The class text decides which images become anchors of the class: check every sense once.
"""


@dataclass(frozen=True)
class ClassSpec:
    """One entry of classes.yaml."""

    name: str
    sense: str | None = None
    definition: str | None = None
    query: str | None = None
    ambiguous: bool | None = None
    rejected: tuple[str, ...] = ()  # `not` in the file


NOT = "not"
QUOTED = '"'  # a style of YAML
_KEYS = [*(each.name for each in fields(ClassSpec) if each.name != "rejected"), NOT]


def has_meaning(spec: ClassSpec) -> bool:
    """Whether more than the name of a class is known: a sense, a definition, or a name that is a WordNet id.

    >>> has_meaning(ClassSpec("boots", definition="high shoes")), has_meaning(ClassSpec("ice_boots"))
    (True, False)
    """
    return bool(spec.sense or spec.definition or wordnet.is_wnid(spec.name))


def class_text(spec: ClassSpec) -> str:
    """Text t^c of a class; its bare name where nothing else is known.

    A definition stands before the text of the sense. A name that is an id of WordNet, as in
    WebVision, is its own sense.

    >>> class_text(ClassSpec("boots", definition="high shoes")), class_text(ClassSpec("ice_boots"))
    ('high shoes', 'ice boots')
    """
    sense = meant_sense(spec)
    parts = [spec.definition] if spec.definition else []
    if sense:
        parts.append(wordnet.sense_text(sense))
    return "; ".join(parts) or " ".join(spec.name.replace("_", " ").split())


def class_prompts(spec: ClassSpec) -> list[str]:
    """What a picture of a class might be captioned with, for the text tower of an image-text model.

    >>> class_prompts(ClassSpec("ice_boots", definition="high shoes"))
    ['a photo of a ice boots', 'a photo of a ice boots, high shoes']
    >>> class_prompts(ClassSpec("n02123159"))
    ['a photo of a tiger cat', 'a photo of a tiger cat, a cat having a striped coat']
    """
    sense = meant_sense(spec)
    name = sense.words[0] if sense and wordnet.is_wnid(spec.name) else spec.name
    plain = f"a photo of a {' '.join(name.replace('_', ' ').split())}"
    meaning = spec.definition or (sense.definition if sense else None)
    return [plain, f"{plain}, {meaning}"] if meaning else [plain]


def classes_of(run: Run) -> list[ClassSpec]:
    """The classes of a run, in the order of every class axis."""
    specs = (ClassSpec(**value) for value in run.read(CLASSES))
    return [replace(spec, rejected=tuple(spec.rejected)) for spec in specs]


def given_classes(run: Run) -> list[ClassSpec]:
    """The classes of data.classes; none where no list is given."""
    path = class_file(run)
    return load_classes(path) if path else []


def class_file(run: Run) -> Path | None:
    """The file of data.classes; ``run:`` at its beginning stands for the run directory, wherever that is now."""
    given = run.settings.data.classes
    if not given:
        return None
    if given.startswith(IN_RUN):
        return run.path / given.removeprefix(IN_RUN)
    return local_path(given, "data.classes")


def given_ambiguous(run: Run) -> list[str]:
    """What data.ambiguous_list names."""
    path = run.settings.data.ambiguous_list
    return ambiguous_names(local_path(path, "data.ambiguous_list")) if path else []


def meant_sense(spec: ClassSpec) -> wordnet.Synset | None:
    """The sense of a class; a name that is an id of WordNet is its own sense."""
    sense = spec.sense or (spec.name if wordnet.is_wnid(spec.name) else None)
    return wordnet.resolve(sense) if sense else None


def rival_senses(spec: ClassSpec) -> list[wordnet.Synset]:
    """Senses that are not meant: those of the name that were not chosen, and those of what the class is not.

    >>> [sense.name for sense in rival_senses(ClassSpec("tiger cat", "tiger_cat.n.02", rejected=("hot dog",)))]
    ['tiger_cat.n.01', 'hotdog.n.01', 'hotdog.n.02', 'frank.n.02']
    """
    meant = meant_sense(spec)
    senses = wordnet.senses(spec.name) if meant else []
    senses = [*senses, *(sense for name in spec.rejected for sense in wordnet.senses(name))]
    return [sense for sense in dict.fromkeys(senses) if sense != meant]


def other_senses(specs: Sequence[ClassSpec]) -> tuple[list[str], list[int]]:
    """Texts of what is not meant by each class, and the class each belongs to.

    >>> texts, owners = other_senses([ClassSpec("tiger cat", sense="tiger_cat.n.02", rejected=("a drawn cat",))])
    >>> len(texts), texts[-1], owners
    (2, 'a drawn cat', [0, 0])
    """
    texts, owners = [], []
    for number, spec in enumerate(specs):
        own_words = [text for text in spec.rejected if not wordnet.senses(text)]
        of_class = [*map(wordnet.sense_text, rival_senses(spec)), *own_words]
        texts += of_class
        owners += [number] * len(of_class)
    return texts, owners


def draft(suggestion: Suggestion) -> ClassSpec:
    """The entry of classes.yaml that follows a suggestion."""
    if suggestion.best is None:
        return ClassSpec(suggestion.name)
    return ClassSpec(suggestion.name, sense=suggestion.best.wnid, ambiguous=suggestion.ambiguous)


def ambiguous_names(path: Path) -> list[str]:
    """What a list of ambiguous classes names: whole lines and their first words; `#` starts a comment."""
    lines = (line.text.partition("#")[0].strip() for line in read_lines(path, hint=AMBIGUOUS))
    return sorted({name for text in lines if text for name in (text, text.split()[0])})


def marked_ambiguous(specs: Sequence[ClassSpec], names: Collection[str]) -> list[ClassSpec]:
    """Classes, `ambiguous` where a list has their name or the WordNet id of their sense.

    The paper's list of 235 classes may name classes that are not here; one that names none is an error.
    """

    def listed(spec: ClassSpec) -> bool:
        return spec.name in names or (bool(spec.sense) and wordnet.resolve(str(spec.sense)).wnid in names)

    marked = [replace(spec, ambiguous=listed(spec)) for spec in specs]
    if not any(spec.ambiguous for spec in marked):
        raise ConfigError(
            f"data.ambiguous_list names no class of {many(len(specs), 'class', 'classes')}", hint=AMBIGUOUS
        )
    return marked


def wordnet_ids(specs: Sequence[ClassSpec]) -> dict[str, str]:
    """Names of classes by the WordNet id of their sense, or of their name where that is an id.

    >>> wordnet_ids([ClassSpec("cat", sense="n02123159"), ClassSpec("n02121620"), ClassSpec("boots")])
    {'n02123159': 'cat', 'n02121620': 'n02121620'}
    """
    meant = {spec.name: spec.sense or spec.name for spec in specs if spec.sense or wordnet.is_wnid(spec.name)}
    return {wordnet.resolve(sense).wnid: name for name, sense in meant.items()}


def load_classes(path: str | os.PathLike[str]) -> list[ClassSpec]:
    """Read classes.yaml: a list of names, or of mappings with a name; every sense is resolved."""
    path = Path(path)
    root = _parse(path)
    if not isinstance(root, yaml.SequenceNode) or not root.value:
        raise ConfigError(f"{path}: not a list of classes", hint=ONE_LINE)
    specs: dict[str, tuple[ClassSpec, int]] = {}  # and the line of each
    for entry, node in enumerate(root.value, start=1):
        line = node.start_mark.line + 1
        where = f"{path}:{line}: class {entry}"
        spec = _spec(node, where, path)
        if spec.name in specs:
            raise ConfigError(
                f"{where}: '{spec.name}' is there already, in line {specs[spec.name][1]}",
                hint="remove one of the two",
            )
        specs[spec.name] = spec, line
    return [spec for spec, _ in specs.values()]


def _parse(path: Path) -> yaml.Node | None:
    where = str(path)
    try:
        # Nodes, not objects: they know their lines, and `no` and `101` stay the text they are.
        return compose_yaml(read_regular(path).decode("utf-8-sig"))
    except FileNotFoundError:
        problem, hint = "no such file", "draft it with 'capro classes suggest'"
    except OSError as error:
        problem, hint = str(error.strerror), "check the path"
    except UnicodeDecodeError as error:
        problem, hint = f"byte {error.start} is not UTF-8", "save the file as UTF-8"
    except yaml.YAMLError as error:
        line, wrong = problem_of(error)
        where += f":{line}" if line else ""
        problem = f"not valid YAML: {wrong}"
        hint = "put names and definitions with ':', '#' or '*' in quotes"
    raise ConfigError(f"{where}: {problem}", hint=hint)


def _spec(node: yaml.Node, where: str, path: Path) -> ClassSpec:
    values: dict[str, str | bool | tuple[str, ...] | None] = {}
    places: dict[str, str] = {}
    if isinstance(node, yaml.ScalarNode):
        values["name"] = _text(node)
    elif not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{where} is a list", hint="write '- name: tiger'")
    for key_node, value in node.value if isinstance(node, yaml.MappingNode) else []:
        key = _key(key_node, where)
        twice = key in places
        places[key] = place = f"{path}:{key_node.start_mark.line + 1}: {where.rpartition(': ')[2]}"
        if key not in _KEYS:
            raise ConfigError(f"{place}: unknown key '{key[:80]}'", hint=did_you_mean(key, _KEYS))
        if twice:
            raise ConfigError(f"{place}: '{key}' is there twice", hint="remove one of the two")
        if key == NOT:
            values["rejected"] = _texts(value, place)
            continue
        if not isinstance(value, yaml.ScalarNode):
            raise ConfigError(f"{place}: '{key}' is not a text", hint="write it on one line")
        values[key] = _boolean(value, place) if key == "ambiguous" else _text(value)
    if not values.get("name"):
        raise ConfigError(f"{where} has no name", hint="add 'name: ...', as the labels have it")
    spec = ClassSpec(**values)  # type: ignore[arg-type]  # keys and types are checked above
    if spec.sense:
        try:
            wordnet.resolve(spec.sense)
        except ConfigError as error:
            raise ConfigError(f"{places['sense']} '{spec.name}': {error}", hint=error.hint) from None
    return spec


def _key(node: yaml.Node, where: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise ConfigError(f"{where}: a key is a list or a mapping", hint=ONE_LINE)
    return str(node.value)


def _text(node: yaml.ScalarNode) -> str | None:
    empty = node.tag == "tag:yaml.org,2002:null"
    return None if empty else str(node.value).strip() or None


def _texts(node: yaml.Node, place: str) -> tuple[str, ...]:
    """One text, or a list of them."""
    nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
    scalars = [each for each in nodes if isinstance(each, yaml.ScalarNode)]
    if len(scalars) < len(nodes):
        raise ConfigError(f"{place}: '{NOT}' is neither a text nor a list", hint="write 'not: [hot dog]'")
    return tuple(text for each in scalars if (text := _text(each)))


def _boolean(node: yaml.ScalarNode, place: str) -> bool | None:
    text = _text(node)
    found = None if text is None else yaml.SafeLoader.bool_values.get(text.lower())
    if text is not None and found is None:
        raise ConfigError(f"{place}: 'ambiguous' is '{text}'", hint="write 'ambiguous: true' or 'false'")
    return found


def save_classes(
    path: str | os.PathLike[str], specs: Sequence[ClassSpec], *, suggestions: Iterable[Suggestion] = ()
) -> None:
    """Write classes.yaml at once or not at all; suggestions add the other senses as comments."""
    comments = {each.name: each.comments() for each in suggestions}
    text = HEADER + "".join("\n" + _entry(spec, comments.get(spec.name, [])) for spec in specs)
    try:
        Path(path).parent.stat()  # a folder that is not there is not made
        write_text(Path(path), text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="choose a folder that exists") from None


def _entry(spec: ClassSpec, comments: Sequence[str]) -> str:
    lines = []
    for key, value in asdict(spec).items():
        if isinstance(value, bool):
            lines.append(f"{key}: {str(value).lower()}")
        elif isinstance(value, tuple):
            lines += [f"{NOT}: {_flow(list(value), style=QUOTED)}"] if value else []
        elif value:
            lines.append(f"{key}: {_scalar(value)}")
        if key == "sense" and value:
            sense = wordnet.resolve(value)
            lines[-1] += f"  # {sense.name}: {sense.definition}"
    return "- " + "\n  ".join([*lines, *(f"# {comment}" for comment in comments)]) + "\n"


def _flow(value: str | list[str], style: str | None = None) -> str:
    dumped = yaml.safe_dump(
        value, allow_unicode=True, width=1 << 30, default_flow_style=True, default_style=style
    )
    return dumped.removesuffix("\n").removesuffix("\n...")


def _scalar(text: str) -> str:
    """A text as YAML on one line."""
    if text.isprintable():
        return _flow(text)
    return yaml.safe_dump(text, default_style='"', width=1 << 30).removesuffix("\n")  # escapes
