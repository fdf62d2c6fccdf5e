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
from capro.files import parse_yaml, problem_of, read_regular
from capro.stores import refuse_credentials

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
    format: str = setting("auto", "kind of the source; auto recognises it")
    subset: Literal["all", "google", "mini"] = setting(
        "all", "WebVision: google leaves Flickr out; mini is Google's first 50 classes"
    )
    class_list: str | None = setting(None, "WebVision: file with one WordNet id, class or label per line")
    classes: str | None = setting(
        None, "path of a classes.yaml, which has the sense or definition of each class"
    )
    ambiguous_list: str | None = setting(
        None, "file with a WordNet id or name per line: the ambiguous classes"
    )
    image_root: str | None = setting(
        None, "folder that the paths of a table are relative to; the table's own if unset"
    )
    image_column: str | None = setting(None, "column with paths or image bytes; guessed if unset")
    label_column: str | None = setting(None, "column with the web label; guessed if unset")
    text_column: str | None = setting(None, "column read as title; guessed if unset")
    description_column: str | None = setting(None, "column read as description; guessed if unset")
    tags_column: str | None = setting(None, "column read as tags; guessed if unset")
    id_column: str | None = setting(None, "column with unique sample ids; made if unset")
    split_column: str | None = setting(None, "column that says train, val or test; guessed if unset")
    unlabelled: bool = setting(
        False, "training samples have no labels: texts and pictures choose among data.classes (method plus)"
    )
    without_texts: bool = setting(
        False, "continue although hardly any sample has a text: labels and pictures decide"
    )
    label_separator: str | None = setting(
        None, "several labels in one cell are separated by this, for example ;"
    )
    join_labels: bool = setting(
        False, "labels that differ only in case, blanks, hyphens or underscores are one class"
    )
    encoding: Annotated[str, AfterValidator(_known_encoding)] = setting(
        "auto", "encoding of CSV, TSV and JSONL files; auto: UTF-8, UTF-16 or cp1252, by their bytes"
    )
    max_nesting: Positive = setting(
        MAX_NESTING, "most levels of lists and objects in a cell; a row with more is quarantined"
    )
    max_group_rows: Positive = setting(
        MAX_GROUP_ROWS,
        "most rows of a Parquet row group, which is in memory at once; a larger one is quarantined",
    )


class ScanSettings(Section):
    """Limits for images and rows."""

    max_pixels: Positive = setting(
        50_000_000, "most pixels of an image; a larger one is quarantined before decoding"
    )
    max_aspect: Rate = setting(100.0, "longer side over shorter side; an image with more is quarantined")
    max_bytes: Positive = setting(
        200_000_000,
        "most bytes of an image file; a larger one is quarantined (50 megapixels take 150 MB as BMP)",
    )
    max_scans: Positive = setting(100, "most scans of a JPEG; a progressive one has about ten")
    max_seconds: Annotated[float, Field(gt=0, le=3600)] = setting(
        20.0, "CPU seconds that an image with an unusual header may take to decode"
    )
    workers: Count = setting(0, "threads that decode; 0: one per core")
    max_text: Positive = setting(
        100_000, "most characters of a title, description or tags; the rest is cut off"
    )
    max_label: Positive = setting(1_000, "most characters of a label; a row with a longer one is quarantined")
    max_classes: Positive = setting(100_000, "most different labels; a row with a further one is quarantined")


class ViewSettings(Section):
    """Views of pictures: augmentation, and the cache of decoded pictures."""

    size: Positive | None = setting(None, "side of the encoder's input in pixels; the encoder's own if unset")
    crop_scale: PositiveShare = setting(0.2, "smallest share of the area that a random crop keeps (MoCo)")
    key_crop_scale: PositiveShare | None = setting(None, "the same for the key view; crop_scale if unset")
    flip: Share = setting(0.5, "probability of a horizontal flip")
    jitter: Share = setting(0.4, "strength of colour jitter in the key view (MoCo)")
    grey: Share = setting(0.2, "probability of grey in the key view (MoCo)")
    blur: Share = setting(0.5, "probability of blur in the key view (MoCo)")
    cache_gb: Weight = setting(4.0, "decoded images are kept in a memory map up to this size")


class NetSettings(Section):
    """The encoder and its heads."""

    backbone: str = setting(
        "resnet50",
        "encoder: small, tiny, resnet18, resnet50, lite0, lite1, lite2, or a Hugging Face name or folder",
    )
    weights: str | None = setting(
        None, "safetensors file with the encoder's weights, ours or torchvision's, or a Hugging Face name"
    )
    mode: Literal["full", "frozen"] = setting(
        "full", "full: the encoder is trained too; frozen: only the heads are trained"
    )
    frozen_views: Count | None = setting(
        None, "augmented views per sample whose features are cached; unset: 3, or none with method plus"
    )
    centred: bool = setting(False, "frozen mode: heads get features minus their mean, in all steps")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto", "numerical precision; auto: half precision only where the hardware is fast at it"
    )
    runtime: Literal["auto", "torch"] = setting(
        "auto", "features on a CPU; auto: by ONNX Runtime if they are the same to 1e-4; torch: never"
    )
    embedding_dim: Positive = setting(128, "width of the embeddings, d_p (paper, Tab. 6)")
    tau: Rate = setting(0.1, "temperature, tau (paper, Tab. 6)")


class Schedule(Section):
    """SGD with a cosine schedule; shared by the three steps."""

    epochs: Count = setting(120, "number of epochs")
    batch_size: Positive = setting(256, "samples in a batch, over all ranks (paper, Tab. 6)")
    lr: Rate = setting(0.1, "highest learning rate (paper, Tab. 6)")
    warmup_epochs: Count = setting(5, "epochs of linear warm-up (paper, Tab. 6)")
    momentum: Share = setting(0.9, "momentum of SGD (paper, Tab. 6)")
    weight_decay: Weight = setting(1e-4, "weight decay of SGD (paper, Tab. 6)")


class PretrainSettings(Schedule):
    """Step 1: web labels, L_cls + L_prj."""

    lambda_prj: Weight = setting(1.0, "weight of the loss L_prj (paper, Tab. 6)")


class EmbedSettings(Section):
    """Text and visual features of every sample."""

    text_encoder: str = setting(
        "minilm", "minilm, xlnet, gpt-neo, or a Hugging Face name or folder, also of CLIP"
    )
    max_tokens: Positive = setting(256, "most tokens of a text; the rest is cut off")
    visual: str = setting(
        "step1", "which encoder gives the visual features: step1, or the name of a pretrained one"
    )
    batch_size: Positive = setting(64, "pictures or texts that are encoded at once")
    shard_size: Positive = setting(4096, "samples per shard: the work that a killed run may lose")


class MatchSettings(Section):
    """Text enhancement and matching."""

    enhancer: Literal["none", "knn", "reciprocal"] = setting(
        "reciprocal",
        "text enhancement; knn: plain neighbours (VSGraph); reciprocal: mutual neighbours (CAPro); none",
    )
    k: Positive = setting(5, "neighbours of a sample in the graph (paper, Tab. 6)")
    own_neighbour: bool = setting(
        False, "a sample is in its own R(x, k) of Eq. 3, as in the released scripts (docs/paper.md)"
    )
    exact_below: Positive = setting(
        200_000, "with more samples neighbours are searched by IVF instead of exactly"
    )
    memory_gb: Weight = setting(4.0, "memory for the graph in GB, the rest is written to disk; 0: no limit")
    index: Literal["auto", "exact", "ivf", "pq"] = setting(
        "auto", "kind of search within memory_gb; pq stores codes instead of vectors"
    )
    recall: Share = setting(0.95, "share of the neighbours that a search within memory_gb must find")
    anchors: Literal["text", "random"] = setting(
        "text", "what chooses anchors; random: a baseline of the paper's ablation"
    )
    top_k: Positive = setting(50, "anchors per class, K (paper, Tab. 6)")
    top_share: PositiveShare = setting(
        1.0,
        "share of a class's samples that are anchors at most, one of them in any case; 1: K alone decides",
    )
    contrast: Weight = setting(
        0.0, "how much a text counts less if it is nearer to another class text (one label only); 0: Eq. 4"
    )
    random_share: Share = setting(
        0.0, "share of the anchors that is drawn at random, for diversity (paper, Conclusion)"
    )


class TrainSettings(Schedule):
    """Step 2: prototypes, bootstrapping, label correction."""

    epochs: Count = setting(60, "number of epochs")
    start: Literal["web", "anchors"] = setting(
        "web", "web: with the heads of step 1; anchors: with new heads, first trained on the anchors"
    )
    anchor_epochs: Count = setting(20, "epochs on the anchors where train.start is anchors")
    frozen_epochs: Count = setting(5, "first epochs, in which the encoder is not trained (paper, Tab. 6)")
    correct_after: Count = setting(10, "epochs before labels are corrected (released scripts)")
    policy: Literal["capro", "mopro"] = setting(
        "capro", "label rule; capro: anchors keep their label (Eq. 7); mopro: the rule of MoPro"
    )
    gamma: Share = setting(0.6, "threshold of the label rule (paper, Tab. 6)")
    alpha: Share = setting(
        0.5, "share of the classifier in the fused score, the prototypes have the rest (paper, Tab. 6)"
    )
    update_every: Count = setting(1, "epochs between updates of the prototypes; 0: from the anchors alone")
    prototype_momentum: Share = setting(0.999, "momentum of the prototypes, m_p (paper, Tab. 6)")
    key_momentum: Share = setting(0.999, "momentum of the second branch (MoCo)")
    queue: Positive = setting(8192, "embeddings in the dictionary, Q (paper, Tab. 6)")
    reference: Literal["none", "mixup", "bootstrap", "smoothing", "scc", "ncr", "cb", "cb+mixup"] = setting(
        "cb", "reference provider; the settings of each are under reference"
    )
    bts_classifier: bool = setting(
        False,
        "apply L_bts to the classifier too; in frozen mode it has no effect on the classifier otherwise",
    )
    lambda_bts: Share = setting(
        0.1, "weight of L_bts with reference cb, cb+mixup or ncr (paper, Tab. 6); others have their own"
    )
    lambda_prj: Weight = setting(1.0, "weight of the loss L_prj (paper, Tab. 6)")
    lambda_pro: Weight = setting(1.0, "weight of the loss L_pro (paper, Tab. 6)")
    lambda_ins: Weight = setting(1.0, "weight of the loss L_ins (paper, Tab. 6)")


class ReferenceSettings(Section):
    """Settings of the single reference providers (train.reference)."""

    smoothing: Share = setting(
        0.1, "smoothing: share of the target that is spread evenly over the classes (released scripts)"
    )
    bootstrap_beta: Share = setting(
        0.9, "bootstrap: weight of the label (released scripts; Reed: 0.95 soft, 0.8 hard)"
    )
    bootstrap_hard: bool = setting(False, "bootstrap: the predicted class instead of the probabilities")
    scc_weight: Share = setting(1.0, "scc: weight of its loss; L_cls has the rest (released scripts)")
    neighbours: Positive = setting(10, "ncr: nearest neighbours within the batch")
    ncr_weight: Share | None = setting(
        None, "ncr: weight of its loss; unset: train.lambda_bts, as in the released scripts"
    )
    ncr_temperature: Rate = setting(2.0, "ncr: temperature of the predictions that are compared")
    mixup_alpha: Rate = setting(
        0.8, "mixup and cb+mixup: shares are drawn from Beta(a, a) (released scripts)"
    )
    mixup_weight: Share = setting(
        1.0, "mixup: weight of its loss, L_cls has the rest; cb+mixup: added to L_cls (released scripts)"
    )

    def of(self, provider: str) -> dict[str, Any]:
        """The settings that decide one provider.

        >>> ReferenceSettings(smoothing=0.2, mixup_alpha=0.5).of("smoothing")
        {'smoothing': 0.2}
        """
        return {name: getattr(self, name) for name in OF_PROVIDER.get(provider, ())}


OF_PROVIDER = {  # names are the fields of the providers in `capro.core.references`, which would load torch
    "mixup": ("mixup_alpha", "mixup_weight"),
    "bootstrap": ("bootstrap_beta", "bootstrap_hard"),
    "smoothing": ("smoothing",),
    "scc": ("scc_weight",),
    "ncr": ("neighbours", "ncr_temperature", "ncr_weight"),
    "cb+mixup": ("mixup_alpha", "mixup_weight"),
}


class BaselineSettings(Section):
    """Settings of single baselines of `capro bench`."""

    verified: str | None = setting(
        None, "table with true labels of some training samples, for cleannet and mentornet"
    )
    mopro_start: Share = setting(
        11 / 90, "share of the epochs after which mopro corrects labels; 11 of 90 in its released code"
    )


class PlusSettings(Section):
    """The method plus: the posterior of the true label from web label, texts and picture."""

    folds: Annotated[int, Field(ge=2)] = setting(
        3, "parts of the data; each is judged by a classifier that was trained on the others"
    )
    rounds: Count = setting(0, "rounds of EM; 0: 6 for one label, 4 for several")
    ask_below: Share = setting(
        0.5, "below this posterior a person should decide; until then a label is not changed to another one"
    )
    drop_above: Share = setting(
        0.5,
        "how strict dropping is: a sample is dropped if none of these has more than this share of its own "
        "probability and that of the best class; lower drops more, 1 drops nothing (one label only)",
    )
    memory_gb: Rate = setting(
        3.0,
        "memory for the fit in GB; beyond it, it is fitted to a random part of the samples and judges all",
    )


class FinetuneSettings(Schedule):
    """Step 3: the classifier alone, on the cleaned dataset."""

    epochs: Count = setting(15, "number of epochs (paper, Tab. 6)")
    lr: Rate = setting(1e-4, "highest learning rate (paper, Tab. 6)")
    warmup_epochs: Count = setting(0, "epochs of linear warm-up (paper, Tab. 6)")
    balance: Share | None = setting(
        None, "0: frequent classes count more; 1: all classes count the same; unset: as in steps 1 and 2"
    )
    centred: bool = setting(
        False, "train on features minus their mean, so that the bias is learnt more quickly"
    )


class LogSettings(Section):
    """Trackers and checkpoints."""

    tracker: Literal["none", "tensorboard", "wandb", "mlflow"] = setting(
        "none", "where losses are logged, by accelerate's trackers"
    )
    checkpoint_minutes: Rate = setting(
        10.0, "most minutes between two checkpoints; there is one after every epoch too"
    )


class Settings(Section):
    """Everything that decides a run."""

    seed: Count = setting(0, "the number that all random choices follow from")
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

    @property
    def by_posterior(self) -> bool:
        """Whether the posterior of the true label decides (method plus), not the paper's rule."""
        return self.method == "plus"

    @property
    def has_step2(self) -> bool:
        """Whether step 2 is trained: with a frozen encoder the method plus has nothing left to learn there."""
        return not self.by_posterior or self.net.mode == "full"


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
    return merge(preset(base) if base else {}, values)


def load(
    file: Path | None = None,
    *,
    preset_name: str | None = None,
    overrides: Iterable[str] = (),
    base: Mapping[str, Any] | None = None,
) -> Settings:
    """Join defaults, preset, file and overrides into settings; later ones replace earlier ones.

    Args:
        file: YAML file with any of the settings; its ``preset`` key names a preset.
        preset_name: Name of a preset; replaces that of the file.
        overrides: ``stage.name=value``, the value in YAML syntax.
        base: Values that replace the defaults.

    Examples:
        >>> load(overrides=["train.gamma=0.4"]).train.gamma
        0.4
    """
    values = _read(file) if file else {}
    values.pop("preset", None)
    named = named_preset(file, preset_name)
    merged = merge(merge(base or {}, preset(named) if named else {}), values)
    for override in overrides:
        merged = merge(merged, _parse_override(override))
    return validate(merged, place=str(file) if file else "settings")


def named_preset(file: Path | None, preset_name: str | None) -> str | None:
    """The preset that was named, or that a file names."""
    if preset_name or not file:
        return preset_name
    named = _read(file).get("preset")
    if named is None or isinstance(named, str):
        return named
    raise ConfigError(
        f"{file}: preset: {shortened(named)} is not a name", hint=f"write one of {', '.join(preset_names())}"
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
    return [name for name in setting_names() if value_of(old, name) != value_of(new, name)]


def setting_names() -> list[str]:
    """Dotted names of all settings.

    >>> setting_names()[:3]
    ['seed', 'method', 'data.source']
    """
    whole = [name for name in Settings.model_fields if name not in sections()]
    return whole + [f"{name}.{key}" for name, kind in sections().items() for key in kind.model_fields]


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
    kinds = {name: field.annotation for name, field in Settings.model_fields.items()}
    return {
        name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Section)
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
    everywhere = setting_names()
    siblings = [name for name in everywhere if len(path) > 1 and name.startswith(f"{path[0]}.")]
    hint = did_you_mean(".".join(path), siblings or [*everywhere, *sections()])
    if hint.startswith("did you mean"):
        return hint
    same = sorted(name for name in everywhere if name.endswith(f".{path[-1]}"))
    return f"did you mean '{same[0]}'?" if same else "`capro config show` lists every setting"
