"""Settings: one frozen class per stage, presets, and overrides by dotted name.

Resolution order, later wins: defaults, preset, file, ``--set stage.name=value``. The defaults are those of the preset
``paper``; a test compares them. A field's description is the comment that ``capro config show`` prints beside the
value; it names the paper's symbol and where the default comes from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from capro.errors import ConfigError, did_you_mean, first_line, shortened
from capro.places import refuse_credentials
from capro.plain_yaml import parse_yaml, problem_of
from capro.regular_files import read_regular

MAX_NESTING = 20
MAX_GROUP_ROWS = 5_000_000

Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _known_encoding(name: str) -> str:
    try:
        "".encode("utf-8" if name == "auto" else name)
    except LookupError:
        raise ValueError("no encoding that Python knows, such as cp1252 or utf-16") from None
    return name


def setting(default: Any, description: str) -> Any:
    """A field with the comment that is printed beside it."""
    return Field(default=default, description=description)


class Section(BaseModel):
    """Base of all settings: frozen, and an unknown name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class DataSettings(Section):
    """Where the samples come from."""

    source: str | None = setting(None, "folder, table, tar shards, hub:NAME, or an address (s3://)")
    test: str | None = setting(None, "a second source, for testing only")
    format: str = setting("auto", "auto, or the kind of source")
    subset: Literal["all", "google", "mini"] = setting(
        "all", "WebVision: google leaves Flickr out; mini is Google's first 50 classes"
    )
    class_list: str | None = setting(None, "WebVision: file with one WordNet id, class or label per line")
    classes: str | None = setting(None, "classes.yaml with senses or definitions")
    ambiguous_list: str | None = setting(
        None, "file with a WordNet id or name per line: classes whose names have several meanings"
    )
    image_root: str | None = setting(None, "folder of a table's paths; the table's own if unset")
    image_column: str | None = setting(None, "column with paths or image bytes; guessed if unset")
    label_column: str | None = setting(None, "column with the web label; guessed if unset")
    text_column: str | None = setting(None, "column read as title; guessed if unset")
    description_column: str | None = setting(None, "column read as description; guessed if unset")
    tags_column: str | None = setting(None, "column read as tags; guessed if unset")
    id_column: str | None = setting(None, "column with unique sample ids; made if unset")
    split_column: str | None = setting(None, "column that says train or test")
    unlabelled: bool = setting(
        False,
        "training samples have no labels: those of data.classes are found by texts and pictures (method plus)",
    )
    without_texts: bool = setting(
        False, "go on although nearly no sample has a text: labels and pictures decide"
    )
    label_separator: str | None = setting(None, "splits a label cell: multi-label")
    join_labels: bool = setting(
        False, "labels that differ only in case, blanks, hyphens or underscores are one class"
    )
    encoding: Annotated[str, AfterValidator(_known_encoding)] = setting(
        "auto", "encoding of CSV, TSV and JSONL files; auto: UTF-8, UTF-16 or cp1252, by their bytes"
    )
    max_nesting: Positive = setting(
        MAX_NESTING, "levels of lists and objects in a cell; a row with more is quarantined"
    )
    max_group_rows: Positive = setting(
        MAX_GROUP_ROWS, "rows of a Parquet row group, which is in memory at once; a larger one is quarantined"
    )


class ScanSettings(Section):
    """Which images and rows are taken."""

    max_pixels: Positive = setting(50_000_000, "a larger image is quarantined before decoding")
    max_aspect: Rate = setting(100.0, "longer side over shorter side; more is no photograph")
    max_bytes: Positive = setting(
        200_000_000, "a larger file is quarantined; 50 megapixels take 150 MB as BMP"
    )
    max_scans: Positive = setting(100, "scans of a JPEG; a progressive one has about ten")
    max_seconds: Annotated[float, Field(gt=0, le=3600)] = setting(
        20.0, "CPU time that an image with an unusual header may take to decode"
    )
    workers: Count = setting(0, "threads that decode; 0: one per core")
    max_text: Positive = setting(100_000, "characters of a title, description or tags; the rest is cut off")
    max_label: Positive = setting(1_000, "characters of a label; a row with a longer one is quarantined")
    max_classes: Positive = setting(100_000, "different labels; a row with a further one is quarantined")


class ViewSettings(Section):
    """Augmentation and the decoded cache."""

    size: Positive | None = setting(None, "side of the network's input in pixels; backbone's if unset")
    crop_scale: PositiveShare = setting(0.2, "smallest share of the area a random crop keeps (MoCo)")
    flip: Share = setting(0.5, "probability of a horizontal flip")
    jitter: Share = setting(0.4, "strength of colour jitter in the key view (MoCo)")
    grey: Share = setting(0.2, "probability of grey in the key view (MoCo)")
    blur: Share = setting(0.5, "probability of blur in the key view (MoCo)")
    cache_gb: Weight = setting(4.0, "decoded images are kept in a memory map up to this size")


class NetSettings(Section):
    """The encoder and its heads."""

    backbone: str = setting(
        "resnet50", "small, resnet18, resnet50, lite0, lite1, lite2, or a Hugging Face model or folder"
    )
    weights: str | None = setting(
        None, "safetensors file with the backbone's weights, ours or torchvision's, or a Hugging Face name"
    )
    mode: Literal["full", "frozen"] = setting("full", "full: the encoder learns; frozen: heads only")
    frozen_views: Count | None = setting(
        None, "augmented views per sample whose features are cached; unset: 3, or none with method plus"
    )
    centred: bool = setting(False, "frozen mode: heads see features less their mean, in all steps")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto", "auto: half precision only where the hardware is fast at it"
    )
    runtime: Literal["auto", "torch"] = setting(
        "auto", "features on a CPU; auto: by ONNX Runtime where it gives the same to 1e-4, torch: never"
    )
    embedding_dim: Positive = setting(128, "d_p, Tab. hyper-parameters")
    tau: Rate = setting(0.1, "temperature, Tab. hyper-parameters")


class Schedule(Section):
    """SGD with a cosine schedule; shared by the three steps."""

    epochs: Count = setting(120, "in total")
    batch_size: Positive = setting(256, "over all ranks, Tab. hyper-parameters")
    lr: Rate = setting(0.1, "peak learning rate, Tab. hyper-parameters")
    warmup_epochs: Count = setting(5, "linear warm-up, Tab. hyper-parameters")
    momentum: Share = setting(0.9, "of SGD, Tab. hyper-parameters")
    weight_decay: Weight = setting(1e-4, "Tab. hyper-parameters")


class PretrainSettings(Schedule):
    """Step 1: web labels, L_cls + L_prj."""

    lambda_prj: Weight = setting(1.0, "weight of L_prj, Tab. hyper-parameters")


class EmbedSettings(Section):
    """Text and visual features of every sample."""

    text_encoder: str = setting(
        "minilm", "minilm, xlnet, gpt-neo, or a Hugging Face model or folder, CLIP's as well"
    )
    max_tokens: Positive = setting(256, "texts are truncated by tokens")
    visual: str = setting("step1", "step1, or a pretrained backbone by name")
    batch_size: Positive = setting(64, "of both encoders")
    shard_size: Positive = setting(4096, "samples per shard: what a killed run may lose")


class MatchSettings(Section):
    """Text enhancement and matching."""

    enhancer: Literal["none", "knn", "reciprocal"] = setting("reciprocal", "knn: VSGraph; reciprocal: ours")
    k: Positive = setting(5, "neighbours, Tab. hyper-parameters")
    own_neighbour: bool = setting(
        False, "a sample is in its own R(x, k) of Eq. 3, as in the released scripts (docs/paper.md)"
    )
    exact_below: Positive = setting(200_000, "more samples are searched by IVF")
    memory_gb: Weight = setting(0.0, "memory limit of the graph in GB, the rest goes to disk; 0: no limit")
    index: Literal["auto", "exact", "ivf", "pq"] = setting(
        "auto", "kind of search under memory_gb; pq stores codes instead of vectors"
    )
    recall: Share = setting(0.95, "share of neighbours that a search under memory_gb must find")
    anchors: Literal["text", "random"] = setting("text", "random: the ablation's baseline")
    top_k: Positive = setting(50, "K, anchors per class, Tab. hyper-parameters")
    contrast: Weight = setting(
        0.0, "weight of being nearer to another class's text (one label only); 0: Eq. 4"
    )
    random_share: Share = setting(0.0, "share of the K drawn at random, for diversity (Conclusion)")


class TrainSettings(Schedule):
    """Step 2: prototypes, bootstrapping, label correction."""

    epochs: Count = setting(60, "in total")
    start: Literal["web", "anchors"] = setting("web", "heads of step 1, or trained on anchors first")
    anchor_epochs: Count = setting(20, "passes over the anchors where start is anchors")
    frozen_epochs: Count = setting(5, "epochs with the encoder frozen, Tab. hyper-parameters")
    correct_after: Count = setting(10, "epochs before labels are corrected (released scripts)")
    policy: Literal["capro", "mopro"] = setting("capro", "capro: anchors keep their label (Eq. 7)")
    gamma: Share = setting(0.6, "threshold of the label rule, Tab. hyper-parameters")
    alpha: Share = setting(0.5, "classifier against prototypes, Tab. hyper-parameters")
    text_weight: Weight = setting(0.0, "weight of the texts in the fused score (one label only); 0: Eq. 6")
    update_every: Count = setting(1, "epochs per prototype update; 0: renewed from the anchors alone")
    prototype_momentum: Share = setting(0.999, "m_p, Tab. hyper-parameters")
    key_momentum: Share = setting(0.999, "of the key branch (MoCo)")
    queue: Positive = setting(8192, "Q, Tab. hyper-parameters")
    reference: Literal["none", "mixup", "bootstrap", "smoothing", "scc", "ncr", "cb", "cb+mixup"] = setting(
        "cb", "who provides label references; their own settings are under reference"
    )
    bts_classifier: bool = setting(
        False, "bootstrap p beside q; with a frozen encoder nothing of L_bts reaches p otherwise"
    )
    lambda_bts: Share = setting(
        0.1, "weight of L_bts (reference cb, cb+mixup, ncr), Tab. hyper-parameters; others have their own"
    )
    lambda_prj: Weight = setting(1.0, "weight of L_prj, Tab. hyper-parameters")
    lambda_pro: Weight = setting(1.0, "weight of L_pro, Tab. hyper-parameters")
    lambda_ins: Weight = setting(1.0, "weight of L_ins, Tab. hyper-parameters")


class ReferenceSettings(Section):
    """What each reference provider of train.reference has of its own."""

    smoothing: Share = setting(
        0.1, "smoothing: mass that is spread evenly over the classes (released scripts)"
    )
    bootstrap_beta: Share = setting(
        0.9, "bootstrap: weight of the label (released scripts; Reed: 0.95 soft, 0.8 hard)"
    )
    bootstrap_hard: bool = setting(False, "bootstrap: the decision instead of the belief")
    scc_weight: Share = setting(1.0, "scc: weight of its loss, L_cls has the rest (released scripts)")
    neighbours: Positive = setting(10, "ncr: nearest others in the batch")
    ncr_weight: Share | None = setting(
        None, "ncr: weight of its loss; unset: train.lambda_bts, as in the released scripts"
    )
    ncr_temperature: Rate = setting(2.0, "ncr: temperature of the predictions that are compared")
    mixup_alpha: Rate = setting(
        0.8, "mixup and cb+mixup: shares are drawn from Beta(a, a) (released scripts)"
    )
    mixup_weight: Share = setting(
        1.0, "mixup: weight of its loss, L_cls has the rest; cb+mixup: added beside L_cls (released scripts)"
    )


class BaselineSettings(Section):
    """What baselines of the bench have of their own."""

    verified: str | None = setting(
        None, "table with true labels of some training samples (as train_truth): cleannet, mentornet"
    )


class PlusSettings(Section):
    """The method plus: the posterior of the true label from web label, texts and picture."""

    folds: Annotated[int, Field(ge=2)] = setting(
        3, "parts of the data: each is judged by a classifier of the others"
    )
    rounds: Count = setting(0, "rounds of EM; 0: 6 for one label, 4 for several")
    ask_below: Share = setting(
        0.5, "a posterior below this is a question for a person; the best class stands"
    )
    memory_gb: Rate = setting(
        3.0, "memory of the fit; samples beyond it are judged by a fit to a random part of them"
    )


class FinetuneSettings(Schedule):
    """Step 3: the classifier alone, on the cleaned set."""

    epochs: Count = setting(15, "in total, Tab. hyper-parameters")
    lr: Rate = setting(1e-4, "peak learning rate, Tab. hyper-parameters")
    warmup_epochs: Count = setting(0, "Tab. hyper-parameters")
    balance: Share | None = setting(
        None, "0: classes count as they are frequent; 1: all alike; unset: as in steps 1 and 2"
    )
    centred: bool = setting(
        False, "train on features less their mean: quicker, and decay hardly holds the bias back"
    )


class LogSettings(Section):
    """What a run writes down while it works."""

    tracker: Literal["none", "tensorboard", "wandb", "mlflow"] = setting("none", "accelerate's trackers")
    checkpoint_minutes: Rate = setting(10.0, "a checkpoint at least this often, besides every epoch")


class Settings(Section):
    """Everything that decides a run."""

    seed: Count = setting(0, "of every random choice")
    method: Literal["paper", "plus"] = setting(
        "paper",
        "paper: CAPro as published; plus: web label, texts and picture weighed together (docs/plus.md)",
    )
    data: DataSettings = DataSettings()
    scan: ScanSettings = ScanSettings()
    views: ViewSettings = ViewSettings()
    net: NetSettings = NetSettings()
    pretrain: PretrainSettings = PretrainSettings()
    embed: EmbedSettings = EmbedSettings()
    match: MatchSettings = MatchSettings()
    train: TrainSettings = TrainSettings()
    reference: ReferenceSettings = ReferenceSettings()
    baselines: BaselineSettings = BaselineSettings()
    plus: PlusSettings = PlusSettings()
    finetune: FinetuneSettings = FinetuneSettings()
    log: LogSettings = LogSettings()


# --- resolution ---------------------------------------------------------------------------------


def preset_names() -> list[str]:
    """The presets that ship with capro.

    >>> preset_names()[-3:]
    ['small', 'small-multi', 'webvision1k']
    """
    folder = resources.files("capro") / "presets"
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))


@cache
def preset(name: str) -> Mapping[str, Any]:
    """The values a preset sets, as nested mappings."""
    if name not in preset_names():
        raise ConfigError(f"no preset {name!r}", hint=did_you_mean(name, preset_names()))
    text = (resources.files("capro") / "presets" / f"{name}.yaml").read_text("utf-8")
    values = parse_yaml(text)
    base = values.pop("base", None)  # another preset, of which this one changes some values
    found: Mapping[str, Any] = merge(preset(base), values) if base else values
    return found


def load(
    file: Path | None = None,
    *,
    preset_name: str | None = None,
    overrides: Iterable[str] = (),
    base: Mapping[str, Any] | None = None,
) -> Settings:
    """Resolve defaults, preset, file and overrides into settings.

    Args:
        file: YAML file with any of the settings; its ``preset`` key names a preset.
        preset_name: Preset; wins over the file's.
        overrides: ``stage.name=value``, the value in YAML syntax.
        base: Values instead of the defaults.

    Examples:
        >>> load(overrides=["train.gamma=0.4"]).train.gamma
        0.4
    """
    values = _read(file) if file else {}
    named = preset_name or _preset_in(values, str(file))
    values.pop("preset", None)
    merged = merge(merge(base or {}, preset(named) if named else {}), values)
    for override in overrides:
        merged = merge(merged, _parse_override(override))
    return validate(merged, place=str(file) if file else "settings")


def named_preset(file: Path | None, preset_name: str | None) -> str | None:
    """The preset that was named, or that a file names."""
    return preset_name or (_preset_in(_read(file), str(file)) if file else None)


def _preset_in(values: Mapping[str, Any], place: str) -> str | None:
    """The preset that a file's values name."""
    found = values.get("preset")
    if found is None or isinstance(found, str):
        return found
    raise ConfigError(
        f"{place}: preset: {shortened(found)} is not a name", hint=f"write one of {', '.join(preset_names())}"
    )


def update(settings: Settings, overrides: Iterable[str]) -> Settings:
    """Settings with some values replaced by ``stage.name=value``."""
    merged = settings.model_dump()
    for override in overrides:
        merged = merge(merged, _parse_override(override))
    return validate(merged, place="--set")


def differences(old: Settings, new: Settings) -> list[str]:
    """Dotted names of the settings whose values differ.

    >>> differences(load(), load(overrides=["seed=1", "train.gamma=0.4"]))
    ['seed', 'train.gamma']
    """
    names = [name for name in Settings.model_fields if name not in sections()]
    names += [f"{name}.{key}" for name, kind in sections().items() for key in kind.model_fields]
    return [name for name in names if value_of(old, name) != value_of(new, name)]


def value_of(settings: Settings, name: str) -> Any:
    """The value of a setting by its dotted name.

    >>> value_of(load(), "train.gamma")
    0.6
    """
    return attrgetter(name)(settings)


def taking(settings: Settings, other: Settings, names: Iterable[str]) -> Settings:
    """Settings with the values that ``other`` has for some names.

    >>> taking(load(), load(overrides=["seed=1", "train.gamma=0.4"]), ["train.gamma"]).seed
    0
    """
    values = settings.model_dump()
    for name in names:
        values = merge(values, nested(name, value_of(other, name)))
    return Settings.model_validate(values)


def override(settings: Settings, name: str) -> str:
    """A setting as ``--set`` takes it.

    >>> override(load(), "train.gamma"), override(load(), "data.test")
    ('train.gamma=0.6', 'data.test=null')
    """
    return f"{name}={plain_value(value_of(settings, name))}"


def plain_value(value: Any) -> str:
    """A value in one line of YAML.

    >>> plain_value(None), plain_value("a b"), plain_value(True)
    ('null', 'a b', 'true')
    """
    return yaml.safe_dump(value, width=math.inf, allow_unicode=True).split("\n")[0]


def validate(values: Mapping[str, Any], *, place: str) -> Settings:
    """Settings from nested mappings; the first problem is named with its value."""
    _refuse_credentials(values, place)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise _explain(error.errors()[0], place) from None


def _refuse_credentials(values: Any, place: str, name: str = "") -> None:
    """Settings are written to run.yaml and printed: an address in them holds no password."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            _refuse_credentials(value, place, f"{name}.{key}".lstrip("."))
    elif isinstance(values, str):
        refuse_credentials(values, f"{place}: {name}")


def sections() -> dict[str, type[Section]]:
    """The classes of settings by name.

    >>> sections()["match"].__doc__
    'Text enhancement and matching.'
    """
    found = {name: field.annotation for name, field in Settings.model_fields.items()}
    return {
        name: kind for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, Section)
    }


def show(settings: Settings, *, preset_name: str | None = None) -> str:
    """Settings as YAML, each with its meaning and where the value comes from."""
    chosen = preset(preset_name) if preset_name else {}

    def line(section: Section, name: str, given: Mapping[str, Any], indent: str = "") -> str:
        value = yaml.safe_dump(getattr(section, name), width=1000).split("\n")[0]
        origin = f" [{preset_name}]" if given.get(name) is not None else ""
        meaning = type(section).model_fields[name].description
        return f"{f'{indent}{name}: {value}':<36}  # {meaning}{origin}"

    lines = [line(settings, name, chosen) for name in Settings.model_fields if name not in sections()]
    for name, kind in sections().items():
        lines.append(f"\n{name}:  # {(kind.__doc__ or '').splitlines()[0]}")
        given = chosen.get(name, {})
        lines += [line(getattr(settings, name), key, given, "  ") for key in kind.model_fields]
    return "\n".join(lines) + "\n"


def _read(file: Path) -> dict[str, Any]:
    try:
        values = parse_yaml(read_regular(file).decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file", hint="give a YAML file with settings") from None
    except OSError as error:
        problem = error.strerror or first_line(error)
        raise ConfigError(f"{file}: cannot be read: {problem}", hint="give a YAML file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file}: cannot be read: byte {error.start} is not UTF-8", hint="save it as UTF-8"
        ) from None
    except yaml.YAMLError as error:
        line, problem = problem_of(error)
        place = f"{file}:{line}" if line else str(file)
        raise ConfigError(f"{place}: {problem}", hint="correct the YAML, and write values out") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(
            f"{file}: holds a {type(values).__name__}, not settings",
            hint="write `stage:` and below it `name: value`; see `capro config show`",
        )
    return values


def _parse_override(text: str) -> dict[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(
            f"--set {shortened(text)}: not of the form name=value", hint="--set train.gamma=0.4"
        )
    try:
        return nested(name.strip(), parse_yaml(value))
    except yaml.YAMLError:
        return nested(name.strip(), value)


def nested(name: str, value: Any) -> dict[str, Any]:
    """A value under its dotted name.

    >>> nested("train.gamma", 0.4)
    {'train': {'gamma': 0.4}}
    """
    for part in reversed(name.split(".")):
        value = {part: value}
    return cast(dict[str, Any], value)


def merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings, where ``top`` wins.

    >>> merge({"train": {"gamma": 0.6, "alpha": 0.5}}, {"train": {"gamma": 0.4}})
    {'train': {'gamma': 0.4, 'alpha': 0.5}}
    """
    inner = {
        key: merge(base[key], value)
        for key, value in top.items()
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
    }
    return {**base, **top, **inner}


def _explain(problem: ErrorDetails, place: str) -> ConfigError:
    path, value = [str(part) for part in problem["loc"]], problem["input"]
    if isinstance(value, Mapping) and problem["type"] != "extra_forbidden":  # seed.x=1: it has no parts
        path += [str(key) for key in [*value][:1]]
    dotted = ".".join(path)
    if problem["type"] == "extra_forbidden" or isinstance(value, Mapping):
        return ConfigError(f"{place}: unknown setting '{dotted}'", hint=_suggest(path))
    message = problem["msg"].removeprefix("Value error, ")
    return ConfigError(
        f"{place}: {dotted}: {message[0].lower() + message[1:]}, got {shortened(value)}",
        hint="`capro config show` lists every setting with its meaning",
    )


def _suggest(path: list[str]) -> str:
    """The closest setting: in the same stage first, then anywhere by its last name."""
    everywhere = [f"{name}.{key}" for name, kind in sections().items() for key in kind.model_fields]
    siblings = [name for name in everywhere if len(path) > 1 and name.startswith(f"{path[0]}.")]
    hint = did_you_mean(".".join(path), siblings or [*everywhere, *Settings.model_fields])
    if hint.startswith("did you mean"):
        return hint
    same = sorted(name for name in everywhere if name.split(".")[-1] == path[-1])
    return f"did you mean '{same[0]}'?" if same else "`capro config show` lists every setting"
