"""``CAPro(...).fit(data).predict(images)``: the pipeline as an estimator, by scikit-learn's habits.

Images may be paths, Pillow images or arrays; data a folder (or any source that ``capro scan``
reads), a DataFrame with paths, or a Hugging Face data set. docs/python.md has examples.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError

from capro import config
from capro.data.images import ImageProblem
from capro.data.memory import is_hub_data, with_labels, write_frame_source, write_hub_source
from capro.errors import CaproError, ConfigError, DataError
from capro.export.cleaned import export_data
from capro.export.model import export_model
from capro.export.predictor import MULTI_LABEL_FROM, Predictor, find_images
from capro.run.artefacts import read_json, write_json
from capro.run.directory import Run
from capro.run.progress import SILENT, Lines, terminal
from capro.stages import run_all
from capro.stages.threshold import threshold

Images = Any  # path, folder, tar, sequence of paths / images / arrays, DataFrame, Hugging Face data


class CAPro(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns from noisy web images and texts, and says which labels were wrong.

    Args:
        preset: Settings to start from; ``capro config presets`` lists them. None: the paper's.
        backbone: ``net.backbone``; None: the preset's.
        run: Run directory; an unfinished run goes on where it stopped. None: a temporary one.
        verbose: Show stages and progress on stderr.
        settings: Any setting: nested (``train={"gamma": 0.4}``), dotted
            (``**{"train.gamma": 0.4}``) or in scikit-learn's way (``train__gamma=0.4``).

    Attributes:
        classes_: Class names, in the order of ``predict_proba``'s columns.
        run_: The run directory with everything in it; None after ``load``.
        results_: Vanilla and CAPro on the test split, where there was one.

    >>> CAPro(backbone="small", train__gamma=0.4).get_params()["train__gamma"]
    0.4
    """

    classes_: NDArray[np.object_]
    run_: Run | None
    results_: dict[str, dict[str, float]]

    def __init__(
        self,
        preset: str | None = "small",
        *,
        backbone: str | None = None,
        run: str | Path | None = None,
        verbose: bool = False,
        **settings: Any,
    ) -> None:
        self.preset = preset
        self.backbone = backbone
        self.run = run
        self.verbose = verbose
        self.settings = settings

    # --- parameters -------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name, as given."""
        del deep
        own = {name: getattr(self, name) for name in ("preset", "backbone", "run", "verbose")}
        return own | self.settings

    def set_params(self, **params: Any) -> Self:
        """Change parameters; takes effect at the next ``fit``."""
        for name, value in params.items():
            if name in ("preset", "backbone", "run", "verbose"):
                setattr(self, name, value)
            else:
                self.settings = {**self.settings, name: value}
        return self

    def __repr__(self) -> str:
        given = {key: value for key, value in self.get_params().items() if value is not None}
        return f"CAPro({', '.join(f'{key}={value!r}' for key, value in given.items())})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_predictor")

    def _resolve(self, data: Mapping[str, Any]) -> config.Settings:
        base = config.load(preset_name=self.preset).model_dump()
        for name, value in self.settings.items():
            _put(base, name.replace("__", ".").split("."), value)
        if self.backbone is not None:
            base["net"]["backbone"] = self.backbone
        base["data"] |= data
        return config.validate(base, place="CAPro")

    # --- fitting ----------------------------------------------------------------------------------

    def fit(
        self, X: Any, y: Sequence[Any] | None = None, *, test: Any = None, classes: str | Path | None = None
    ) -> Self:
        """Run the whole pipeline.

        Args:
            X: Folder or other source by path, DataFrame with a column of paths, or Hugging Face
                data set; labels and texts are in it.
            y: Labels for a DataFrame without a label column.
            test: A second source of the same kinds, measured on and never trained on.
            classes: A classes.yaml with senses or definitions; suggested from the texts if None.
        """
        # only now: a failed fit leaves no model of other data behind
        self.__dict__.pop("_predictor", None)
        path = self._folder()
        data = self._intake(X, y, test, path.with_name(f"{path.name}-input"))
        if classes is not None:
            data["classes"] = str(classes)
        run = Run.create(path, self._resolve(data))
        watch = Lines(print, terminal) if self.verbose else SILENT
        self.results_ = run_all(run, watch=watch)
        self.run_ = run
        model = path / "export" / run.need("finetune")
        if not model.exists():
            export_model(run, model, open_set=threshold(run))
        self._take(Predictor.load(model))
        return self

    def _folder(self) -> Path:
        if self.run is not None:
            return Path(self.run)
        folder = tempfile.mkdtemp(prefix="capro-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)  # lives as long as we do
        return Path(folder) / "run"

    def _intake(self, data: Any, y: Sequence[Any] | None, test: Any, folder: Path) -> dict[str, Any]:
        """Settings of ``data`` for whatever was given; data in memory is written to ``folder``."""
        if isinstance(data, str | Path):
            if y is not None:
                raise ConfigError("y is for a DataFrame", hint="labels of a source are in it")
            if test is not None and not isinstance(test, str | Path):
                raise _other_kind(data, test)
            return {"source": str(data), "test": None if test is None else str(test)}
        named = {
            name: self.settings.get(f"data__{name}") or self.settings.get(f"data.{name}")
            for name in ("image_column", "label_column")
        }
        table = folder / "table.parquet"
        if isinstance(data, pd.DataFrame):
            if y is not None:
                data, named["label_column"] = with_labels(data, y), "label"
            if test is not None:
                if not isinstance(test, pd.DataFrame):
                    raise _other_kind(data, test)
                data = pd.concat([data.assign(split="train"), test.assign(split="test")])
            return write_frame_source(data, table, **named)
        if is_hub_data(data):
            if test is not None:
                if not is_hub_data(test) or isinstance(data, dict) or isinstance(test, dict):
                    raise _other_kind(data, test)
                data = {"train": data, "test": test}
            return write_hub_source(data, table, **named)
        raise ConfigError(
            f"cannot learn from a {type(data).__name__}",
            hint="give a folder, a DataFrame with a column of paths, or a Hugging Face data set",
        )

    def _take(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self.classes_ = np.array(predictor.classes, dtype=object)

    # --- predicting -------------------------------------------------------------------------------

    @property
    def multi_label_(self) -> bool:
        """Whether a sample may carry several labels."""
        return self._fitted().multi_label

    @property
    def threshold_(self) -> float | None:
        """Open-set threshold, calibrated on training data."""
        return self._fitted().threshold

    def predict_proba(self, X: Images) -> NDArray[np.float32]:
        """Probabilities, (n, C); each class apart where samples carry several labels."""
        return self._fitted().probabilities(self._images(X))

    def predict(self, X: Images, *, open_set: bool = False) -> NDArray[Any]:
        """Class names, (n,); for several labels a 0/1 matrix, (n, C).

        Args:
            X: Path of an image, folder or tar; a sequence of paths, Pillow images or arrays; a
                DataFrame with a column of paths; a Hugging Face data set.
            open_set: None instead of a name (several labels: a row of zeros) where the highest
                probability is below ``threshold_``.
        """
        p = self.predict_proba(X)
        if open_set and self.threshold_ is None:
            raise ConfigError("this model has no open-set threshold", hint="leave open_set out")
        is_open = p.max(axis=1) < (self.threshold_ or 0.0) if open_set else np.zeros(len(p), bool)
        if self.multi_label_:
            return np.where(is_open[:, None], 0, p >= MULTI_LABEL_FROM).astype(np.int64)
        names: NDArray[Any] = self.classes_[p.argmax(axis=1)]
        names[is_open] = None
        return names

    def score(self, X: Images, y: Sequence[Any]) -> float:
        """Share of right predictions; for several labels, of samples with the exact set."""
        found = self.predict(X)
        right = found == np.asarray(y)
        return float(right.all(axis=1).mean() if found.ndim == 2 else right.mean())

    def _images(self, X: Images) -> list[Image.Image]:
        predictor = self._fitted()
        found = []
        for name, value in _each(X):
            if isinstance(value, Image.Image):
                found.append(value.convert("RGB"))
            elif isinstance(value, np.ndarray):
                found.append(_from_array(value, name))
            else:
                try:
                    found.append(predictor.open_image(value))
                except ImageProblem as problem:
                    raise DataError(
                        f"{name}: cannot be used as an image: {problem.reason}",
                        hint="leave it out; `capro predict` gives such images a row with the error",
                    ) from None
        return found

    # --- results ----------------------------------------------------------------------------------

    def issues(self) -> pd.DataFrame:
        """The verdicts, one row per training sample; columns as in docs/export.md."""
        self._fitted()
        if self.run_ is not None:
            found: pd.DataFrame = self.run_.issues()
            return found
        if self._issues is None:
            raise CaproError("this model was saved without its verdicts", hint="save it from a fit")
        return self._issues.copy()

    def export(self, out: str | Path, *, to: str = "csv", images: str | None = None) -> Path:
        """Write the cleaned training set; see ``capro export``."""
        self._fitted()
        if self.run_ is None:
            raise CaproError("a loaded model has no data to export", hint="export after fit")
        export_data(self.run_, Path(out), to=to, images=images)
        return Path(out)

    def save(self, path: str | Path, *, onnx: bool = False) -> Path:
        """Write model, model card, verdicts and parameters to a new folder; ``capro predict`` reads it."""
        self._fitted()
        if self.run_ is None:
            raise CaproError("a loaded model is saved already", hint="copy its folder")
        path = Path(path)
        export_model(self.run_, path, open_set=threshold(self.run_), onnx=onnx)
        self.issues().to_parquet(path / "issues.parquet", index=False)
        params = {k: str(v) if isinstance(v, Path) else v for k, v in self.get_params().items()}
        write_json(path / "params.json", params | {"run": None})
        return path

    @classmethod
    def load(cls, path: str | Path) -> CAPro:
        """A model that ``save`` or ``capro export-model`` wrote."""
        path = Path(path)
        predictor = Predictor.load(path)
        params = path / "params.json"
        made = cls(**read_json(params)) if params.exists() else cls()
        made._take(predictor)
        made.run_, made.results_ = None, {}
        verdicts = path / "issues.parquet"
        made._issues = pd.read_parquet(verdicts) if verdicts.exists() else None
        return made

    _issues: pd.DataFrame | None = None

    def _fitted(self) -> Predictor:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError("this CAPro is not fitted yet: call fit(data), or CAPro.load(path)")
        return self._predictor


def _other_kind(data: Any, test: Any) -> ConfigError:
    return ConfigError(
        f"data is a {type(data).__name__} and test a {type(test).__name__}",
        hint="give both as paths, as DataFrames, or as data sets without splits",
    )


def _put(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a value in nested mappings; a mapping merges into what is there."""
    for part in path[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ConfigError(f"CAPro: unknown setting '{'.'.join(path)}'", hint="it has no parts")
    old = values.get(path[-1])
    if isinstance(old, dict) and isinstance(value, Mapping):
        for key, inner in value.items():
            _put(old, [key], inner)
    else:
        values[path[-1]] = value


# --- images of any kind ---------------------------------------------------------------------------


def _each(X: Images) -> Iterable[tuple[str, Any]]:
    """Names with bytes, Pillow images or arrays."""
    if isinstance(X, str | Path):
        return _files([Path(X)])
    if isinstance(X, pd.DataFrame):
        from capro.config import DataSettings
        from capro.data.readers.columns import choose

        column = choose([str(c) for c in X.columns], DataSettings(), place="DataFrame").image
        if column is None:
            raise DataError("DataFrame: no column with images", hint="call it 'image' or 'path'")
        return _each(X[column].tolist())
    if is_hub_data(X):
        from capro.data.memory import hub_images

        return hub_images(X)
    if isinstance(X, Image.Image) or (isinstance(X, np.ndarray) and X.ndim == 3):
        return [("image", X)]
    return _mixed(X)


def _mixed(values: Iterable[Any]) -> Iterable[tuple[str, Any]]:
    for number, value in enumerate(values):
        if isinstance(value, str | Path):
            yield from _files([Path(value)])
        elif isinstance(value, bytes | Image.Image | np.ndarray):
            yield f"image {number}", value
        else:
            raise DataError(
                f"image {number} is a {type(value).__name__}",
                hint="give paths, bytes, Pillow images or arrays of bytes, (height, width, 3)",
            )


def _files(paths: Sequence[Path]) -> Iterable[tuple[str, bytes]]:
    for item in find_images(paths):
        if item.error:
            raise DataError(f"{item.name}: {item.error}", hint="check the path")
        yield item.name, item.data


def _from_array(pixels: NDArray[Any], name: str) -> Image.Image:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise DataError(
            f"{name}: an array of {pixels.dtype} with shape {pixels.shape}",
            hint="give bytes (uint8) of shape (height, width, 3)",
        )
    return Image.fromarray(pixels)
