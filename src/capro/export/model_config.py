"""The config.json of a model folder: every key and the form of its value. What is not listed here is refused.

A model folder may come from anywhere. Its files are read and nothing else: no path, no name on a hub and no code in
it is followed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from capro.config import ScanSettings, Section
from capro.errors import ConfigError, RunError
from capro.pipeline.artefacts import MODEL_CONFIG, MODEL_FORMAT

MOST_BYTES = 100_000_000  # of config.json; ten thousand classes take a megabyte

Side = Annotated[int, Field(ge=1, le=2048)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Spread = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Mean = Annotated[list[Finite], Field(min_length=3, max_length=3)]
Deviation = Annotated[list[Spread], Field(min_length=3, max_length=3)]


class BackboneConfig(Section):
    """What ``capro.models.deployed.rebuild`` takes."""

    name: str
    size: Side
    dim: Annotated[int, Field(ge=1, le=2**20)]
    mean: Mean
    std: Deviation
    config: dict[str, Any] | None = None  # checked by capro.models.deployed
    pooler: bool = True


class Preprocessing(Section):
    """How an image becomes the network's input."""

    size: Side
    steps: str = ""
    mean: Mean | None = None
    std: Deviation | None = None
    limits: ScanSettings = ScanSettings()


class ModelConfig(Section):
    """A model folder's config.json."""

    capro_format: int
    capro_version: str = ""
    problem_type: Literal["single_label_classification", "multi_label_classification"]
    num_labels: Annotated[int, Field(ge=1, le=10_000_000)]
    id2label: dict[str, str]
    label2id: dict[str, int] = Field(default_factory=dict)
    backbone: BackboneConfig
    preprocessing: Preprocessing
    open_set: dict[str, Any] | None = None
    onnx: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _names_for_all(self) -> ModelConfig:
        if len(self.id2label) != self.num_labels or any(
            str(number) not in self.id2label for number in range(self.num_labels)
        ):
            raise ValueError(f"id2label does not name the classes 0 to {self.num_labels - 1}")
        threshold = (self.open_set or {}).get("threshold")
        if threshold is not None and not (type(threshold) in (int, float) and 0 <= threshold <= 1):
            raise ValueError("open_set.threshold is not a number from 0 to 1")
        return self

    @property
    def classes(self) -> list[str]:
        """Names by class number."""
        return [self.id2label[str(number)] for number in range(self.num_labels)]

    @property
    def threshold(self) -> float | None:
        """Highest probabilities below this are open."""
        value: float | None = (self.open_set or {}).get("threshold")
        return value


def own_file(folder: Path, name: str) -> Path:
    """A file of a model folder; refused where it is a link that leaves the folder, or no file."""
    path = folder / name
    if not path.exists():
        raise RunError(
            f"{folder}: not a model folder, {name} is missing",
            hint="make one with `capro export-model RUN --out DIR`",
        )
    if not path.resolve().is_relative_to(folder.resolve()):
        raise RunError(f"{path}: a link that leaves the model folder", hint=f"copy it: cp -rL {folder} COPY")
    if not path.is_file():
        raise RunError(f"{path}: not a file", hint="export the model again")
    return path


def read_model_config(folder: Path) -> dict[str, Any]:
    """The values of config.json, as ``parse_model_config`` takes them."""
    path = own_file(folder, MODEL_CONFIG)
    if path.stat().st_size > MOST_BYTES:
        raise RunError(f"{path}: more than {MOST_BYTES} bytes", hint="export the model again")
    try:
        values = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read: {error}", hint="export the model again") from None
    if not isinstance(values, dict):
        raise RunError(f"{path}: not a mapping", hint="export the model again")
    return values


def parse_model_config(values: dict[str, Any], place: str) -> ModelConfig:
    """The checked config.json; the first thing that is wrong is named."""
    MODEL_FORMAT.check(
        values.get("capro_format"),
        place=place,
        made_by=values.get("capro_version"),
        again="export the model again with this version",
    )
    try:
        return ModelConfig.model_validate(values, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])[:120]
        unknown = first["type"] == "extra_forbidden"
        problem = "unknown key" if unknown else first["msg"].removeprefix("Value error, ")
        where = ": ".join(filter(None, [place, MODEL_CONFIG, key]))
        raise ConfigError(f"{where}: {problem}", hint="export the model again") from None
