"""``CAPro(...).fit(data).predict(images)``: all stages as an estimator with scikit-learn's conventions.

Images may be paths, Pillow images or arrays; data a folder (or any source that ``capro scan``
reads), a DataFrame with paths, or a Hugging Face dataset. docs/python.md has examples.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError

from capro import config
from capro.config import Settings
from capro.data.images import ImageProblem
from capro.data.memory import hub_images, is_hub_data, with_labels, write_frame_source, write_hub_source
from capro.data.readers.columns import choose_columns
from capro.errors import CaproError, ConfigError, DataError
from capro.export.dataset import export_data
from capro.export.hub import push as publish
from capro.export.model import export_model
from capro.export.predictor import MULTI_LABEL_FROM, Predictor, find_images
from capro.pipeline.artefacts import MODEL_VERDICTS, check_table, read_json, write_json, write_verdicts
from capro.pipeline.progress import SILENT, Lines, terminal
from capro.pipeline.run import Run
from capro.results.verdicts import TYPES
from capro.stages import PLAN, run_all
from capro.stages.start import start
from capro.stages.threshold import threshold
from capro.stores import local_path

if TYPE_CHECKING:
    from capro.review.serving import Review

OWN = ("preset", "backbone", "run", "verbose")  # parameters that are no settings
Images = Any  # path, folder, tar, sequence of paths / images / arrays, DataFrame, Hugging Face data


class CAPro(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that is trained on noisy web images and texts, and says which labels are wrong.

    Args:
        preset: Name of a preset; ``capro config presets`` lists them. None: the settings of an existing run,
            else ``small``, or ``small-multi`` where images have several labels. ``paper``: CAPro as published.
        backbone: The encoder, ``net.backbone``; None: that of the preset.
        run: Run directory; an unfinished run is continued where it stopped. None: a temporary one.
        verbose: Whether ``fit`` shows stages and progress on stderr.
        settings: Any setting: nested (``train={"gamma": 0.4}``), dotted (``**{"train.gamma": 0.4}``) or as in
            scikit-learn (``train__gamma=0.4``).

    Attributes:
        classes_: Class names, in the order of ``predict_proba``'s columns.
        run_: The run, with all its files; None after ``load``.
        results_: Figures of vanilla and CAPro on the test split; empty without one.

    Examples:
        >>> CAPro(backbone="small", train__gamma=0.4).get_params()["train__gamma"]
        0.4
    """

    classes_: NDArray[np.object_]
    run_: Run | None
    results_: dict[str, dict[str, float]]

    def __init__(
        self,
        preset: str | None = None,
        *,
        backbone: str | None = None,
        run: str | Path | None = None,
        verbose: bool = True,
        **settings: Any,
    ) -> None:
        self.preset = preset
        self.backbone = backbone
        self.run = run
        self.verbose = verbose
        self.settings = settings

    # --- parameters -------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name, as they were given."""
        del deep
        return {name: getattr(self, name) for name in OWN} | self.settings

    def set_params(self, **params: Any) -> Self:
        """Change parameters; the next ``fit`` uses them."""
        for name, value in params.items():
            if name in OWN:
                setattr(self, name, value)
            else:
                self.settings = {**self.settings, name: value}
        return self

    def __repr__(self) -> str:
        given = {key: value for key, value in self.get_params().items() if value is not None}
        return f"CAPro({', '.join(f'{key}={value!r}' for key, value in given.items())})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_predictor")

    def _resolve(self, data: Mapping[str, Any], base: Mapping[str, Any], preset: str | None) -> Settings:
        values = config.load(preset_name=preset, base=base).model_dump()
        backbone = {} if self.backbone is None else {"net": {"backbone": self.backbone}}
        for given in (self._nested_settings(), backbone, {"data": data}):
            values = config.merge(values, given)
        return config.validate(values, place="CAPro")

    def _nested_settings(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in self.settings.items():
            values = config.merge(values, config.nested(name.replace("__", "."), value))
        return values

    # --- fitting ----------------------------------------------------------------------------------

    def fit(
        self, X: Any, y: Sequence[Any] | None = None, *, test: Any = None, classes: str | Path | None = None
    ) -> Self:
        """Do all stages: find wrong labels, correct them, and train the classifier.

        Args:
            X: Data with labels and texts: the path of a folder or another source, a DataFrame with a column of
                paths, or a Hugging Face dataset.
            y: Labels for a DataFrame without a label column.
            test: Test data, of the same kind as ``X``; used for measuring only.
            classes: Path of a classes.yaml with senses or definitions; None: senses are suggested from the texts.
        """
        # only now: a failed fit leaves no model of other data behind
        self.__dict__.pop("_predictor", None)
        path = self._folder()
        data = self._intake(X, y, test, path.with_name(f"{path.name}-input") / "table.parquet")
        if classes is not None:
            data["classes"] = str(classes)
        run, choose = start(path, partial(self._resolve, data), self.preset)
        watch = Lines(partial(print, file=sys.stderr, flush=True), terminal) if self.verbose else SILENT
        self.results_ = run_all(run, watch=watch, choose=choose)
        self.run_ = run = Run.open(path)
        model = path / "export" / run.identity("finetune")
        if not model.exists():
            export_model(run, model, open_set=threshold(run))
        self._take(Predictor.load(model))
        return self

    def _folder(self) -> Path:
        if self.run is not None:
            return local_path(self.run, "run")
        folder = tempfile.mkdtemp(prefix="capro-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)  # lives as long as we do
        return Path(folder) / "run"

    def _intake(self, data: Any, y: Sequence[Any] | None, test: Any, table: Path) -> dict[str, Any]:
        """Settings of ``data`` for whatever was given; data in memory is written to ``table``."""
        kind = _kind(data)
        settings = self._nested_settings().get("data", {})
        if not isinstance(settings, Mapping):
            raise ConfigError(
                f"data={settings!r} is no mapping of settings", hint="give the data to fit: CAPro().fit(data)"
            )
        if y is not None and kind != "frame":
            raise ConfigError(
                "y is for a DataFrame", hint="leave y out: a path or a dataset has its own labels"
            )
        if test is not None and (_kind(test) != kind or isinstance(data, dict) or isinstance(test, dict)):
            raise ConfigError(
                f"data is a {type(data).__name__} and test a {type(test).__name__}",
                hint="give both as paths, as DataFrames, or as datasets without splits",
            )
        if kind == "path":
            return {"source": str(data), "test": None if test is None else str(test)}
        named = {name: settings.get(name) for name in ("image_column", "label_column")}
        if kind == "hub":
            return write_hub_source(data if test is None else {"train": data, "test": test}, table, **named)
        if y is not None:
            data, named["label_column"] = with_labels(data, y), "label"
        if test is not None:
            data = pd.concat([data.assign(split="train"), test.assign(split="test")])
        return write_frame_source(data, table, **named)

    def _take(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self.classes_ = np.array(predictor.classes, dtype=object)

    # --- predicting -------------------------------------------------------------------------------

    @property
    def multi_label_(self) -> bool:
        """Whether a sample may have several labels."""
        return self._fitted().multi_label

    @property
    def threshold_(self) -> float | None:
        """The open-set threshold, chosen on held-out training data; None where there is none."""
        return self._fitted().threshold

    def predict_proba(self, X: Images) -> NDArray[np.float32]:
        """Return probabilities, (n, C); with multi-label data each class has its own, and rows need not sum to 1."""
        return self._fitted().probabilities(self._images(X))

    def predict(self, X: Images, *, open_set: bool = False) -> NDArray[Any]:
        """Return class names, (n,); with multi-label data a 0/1 matrix, (n, C).

        Args:
            X: Path of an image, folder or tar; a sequence of paths, Pillow images or arrays; a
                DataFrame with a column of paths; a Hugging Face dataset.
            open_set: Give None instead of a name (multi-label: a row of zeros) where the highest probability
                is below ``threshold_``.
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
        """Return the share of right predictions; with multi-label data, of samples whose labels are all right."""
        predicted = self.predict(X)
        right = predicted == np.asarray(y)
        return float(right.all(axis=1).mean() if predicted.ndim == 2 else right.mean())

    def _images(self, X: Images) -> list[Image.Image]:
        predictor = self._fitted()
        images = []
        for name, value in _each(X):
            try:
                images.append(predictor.open_image(value) if isinstance(value, bytes) else value)
            except ImageProblem as problem:
                raise DataError(
                    f"{name}: cannot be used as an image: {problem.reason}",
                    hint="leave it out; `capro predict` gives such images a row with the error",
                ) from None
        return images

    # --- results ----------------------------------------------------------------------------------

    def issues(self) -> pd.DataFrame:
        """Return the verdicts, one row per training sample; docs/export.md has the columns."""
        self._fitted()
        if self.run_ is not None:
            return self.run_.issues()
        if self._issues is None:
            raise CaproError(
                "this model was saved without its verdicts", hint="use a model that was saved after fit"
            )
        return self._issues.copy()

    def review(self, *, host: str = "127.0.0.1", port: int = 0) -> Review:
        """Serve the review page of this run; the returned object shows the link, and its ``stop()`` ends the review.

        Call ``fit`` again to use the decisions: only the stages that depend on them are done again.
        """
        run = self._own_run("has no data to review", "call review on a model after fit")
        from capro.review.serving import Review

        return Review(run, host=host, port=port).start()

    def export(
        self,
        out: str | Path,
        *,
        to: str = "csv",
        images: str | None = None,
        skip_changed: bool = False,
        formulas: str = "escape",
        license: str | None = None,
    ) -> Path:
        """Write the cleaned dataset to a new folder; see ``capro export``."""
        run = self._own_run("has no data to export", "call export on a model after fit")
        PLAN.refresh(run, "clean")
        export_data(
            run,
            local_path(out, "out"),
            to=to,
            images=images,
            skip_changed=skip_changed,
            formulas=formulas,
            license=license,
        )
        return Path(out)

    def save(self, path: str | Path, *, onnx: bool = False, license: str | None = None) -> Path:
        """Write model, model card, verdicts and parameters to a new folder; ``capro predict`` reads it."""
        run = self._own_run("is saved already", "copy the folder that it was loaded from")
        PLAN.refresh(run, "finetune")
        params = {k: str(v) if isinstance(v, Path) else v for k, v in self.get_params().items()}

        def also(folder: Path) -> None:
            write_verdicts(folder / MODEL_VERDICTS, [self.issues()], TYPES)
            write_json(folder / "params.json", params | {"run": None})

        path = local_path(path, "path")
        export_model(run, path, open_set=threshold(run), onnx=onnx, also=also, license=license)
        return path

    @classmethod
    def load(cls, path: str | Path) -> CAPro:
        """Open a model folder that ``save`` or ``capro export-model`` wrote."""
        path = local_path(path, "path")
        predictor = Predictor.load(path)
        params = path / "params.json"
        made = cls(**read_json(params)) if params.exists() else cls()
        made._take(predictor)
        made.run_, made.results_ = None, {}
        verdicts = path / MODEL_VERDICTS
        if verdicts.exists():
            check_table(pq.read_schema(verdicts).metadata, place=str(verdicts), again="save the model again")
            made._issues = pd.read_parquet(verdicts)
        return made

    def push(self, repo: str, *, private: bool = False, yes: bool = False, license: str | None = None) -> str:
        """Publish the model on the Hugging Face hub; see ``capro push``.

        Args:
            repo: OWNER/NAME, or NAME for one of your own.
            private: Make a new repository private: only its owner sees it.
            yes: Without it, what would become public is printed and nothing is published.
            license: Licence of the model, for its model card.

        Returns:
            The address of the repository.
        """
        run = self._own_run("is in a folder already", "`capro push FOLDER REPO` publishes it")
        PLAN.refresh(run, "finetune")

        def agree(lines: Sequence[str]) -> None:
            print(*lines, sep="\n", file=sys.stderr)
            if not yes:
                raise ConfigError(
                    "nothing was published", hint=f"push({repo!r}, yes=True) publishes what was printed"
                )

        with tempfile.TemporaryDirectory(prefix="capro-") as temporary:
            folder = Path(temporary) / "model"
            export_model(run, folder, open_set=threshold(run), license=license)
            published = publish(folder, repo, private=private, agree=agree)
        return str(published["url"])

    _issues: pd.DataFrame | None = None

    def _own_run(self, problem: str, hint: str) -> Run:
        """The run of ``fit``; a loaded model has none."""
        self._fitted()
        if self.run_ is None:
            raise CaproError(f"a loaded model {problem}", hint=hint)
        return self.run_

    def _fitted(self) -> Predictor:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError("this CAPro is not fitted yet: call fit(data), or CAPro.load(path)")
        return self._predictor


def _kind(data: Any) -> str:
    """Of data to learn from: a path, a DataFrame or a Hugging Face dataset."""
    if isinstance(data, str | Path):
        return "path"
    if isinstance(data, pd.DataFrame):
        return "frame"
    if is_hub_data(data):
        return "hub"
    raise ConfigError(
        f"cannot learn from a {type(data).__name__}",
        hint="give a folder, a DataFrame with a column of paths, or a Hugging Face dataset",
    )


# --- images of any kind ---------------------------------------------------------------------------


def _each(X: Images) -> Iterator[tuple[str, bytes | Image.Image]]:
    """Names with bytes or RGB images."""
    if isinstance(X, pd.DataFrame):
        column = choose_columns([str(c) for c in X.columns], config.DataSettings(), where="DataFrame").image
        if column is None:
            raise DataError("DataFrame: no column with images", hint="call it 'image' or 'path'")
        X = X[column].tolist()
    elif isinstance(X, str | Path | Image.Image) or (isinstance(X, np.ndarray) and X.ndim == 3):
        X = [X]
    named = hub_images(X) if is_hub_data(X) else ((f"image {n}", value) for n, value in enumerate(X))
    for name, value in named:
        if isinstance(value, str | Path):
            for item in find_images([value]):
                if item.error:
                    raise DataError(f"{item.name}: {item.error}", hint="check the path")
                yield item.name, item.data
        elif isinstance(value, bytes):
            yield name, value
        elif isinstance(value, Image.Image):
            yield name, value.convert("RGB")
        else:
            yield name, _from_array(value, name)


def _from_array(pixels: Any, name: str) -> Image.Image:
    """An image from an array of bytes."""
    if not isinstance(pixels, np.ndarray):
        raise DataError(
            f"{name} is a {type(pixels).__name__}",
            hint="give paths, bytes, Pillow images or arrays of bytes, (height, width, 3)",
        )
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise DataError(
            f"{name}: an array of {pixels.dtype} with shape {pixels.shape}",
            hint="give bytes (uint8) of shape (height, width, 3)",
        )
    return Image.fromarray(pixels)
