"""The estimator: three kinds of data, scikit-learn's conventions, save and load."""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

import capro
from capro import CAPro
from capro.data.readers.table_files import records
from capro.errors import CaproError, ConfigError, DataError
from capro.pipeline.artefacts import SCORES
from capro.review.views import View
from capro.stages import classes, embed, match
from tests.made_up import CLASSES, HashedWords, write_source

QUICK = {
    "views": {"size": 16}, "match": {"top_k": 2, "k": 2}, "scan": {"workers": 1},
    "pretrain.epochs": 1, "train.epochs": 1, "train__queue": 16, "finetune__epochs": 1,
    "pretrain__warmup_epochs": 0, "train.warmup_epochs": 0,
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _quick_texts() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for module in (classes, embed, match):
            patch.setattr(module, "load_text_encoder", lambda *_, **__: HashedWords())
        yield


def model(**more: Any) -> CAPro:
    return CAPro(preset="scratch", backbone="small", **QUICK, **more)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_source(tmp_path_factory.mktemp("source") / "data", per_class=6)
    lines = [f"- name: {name}\n  definition: tag{n} thing\n" for n, name in enumerate(CLASSES)]
    (folder.parent / "classes.yaml").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def fitted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> CAPro:
    run = tmp_path_factory.mktemp("fit") / "run"
    return model(run=run).fit(source, classes=source.parent / "classes.yaml")


def frame(source: Path, split: str = "train") -> pd.DataFrame:
    rows = [dict(record.cells) for record in records(source / split / "metadata.csv")]
    table = pd.DataFrame(rows).rename(columns={"file_name": "path"})
    return table.assign(path=[str(source / split / name) for name in table["path"]])


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [{"data": {"join_labels": True}}, {"data__join_labels": True}, {"data.join_labels": True}]
)
def test_settings_of_the_data_count_however_they_are_given(given: dict[str, Any]) -> None:
    made = CAPro(**given)
    settings = made._resolve({"source": "here"}, {}, "small")
    assert (settings.data.join_labels, settings.data.source) == (True, "here")


@pytest.mark.parametrize("given", [{"data": {"label_column": "what"}}, {"data__label_column": "what"}])
def test_columns_of_a_frame_are_named_in_either_way(
    source: Path, tmp_path: Path, given: dict[str, Any]
) -> None:
    table = frame(source).rename(columns={"label": "what"}).assign(label="wrong")
    made = CAPro(**given)._intake(table, None, None, tmp_path / "table.parquet")
    assert pd.read_parquet(made["source"])["what"].nunique() == len(CLASSES)
    assert made["label_column"] == "what"


def test_data_belongs_to_fit(source: Path) -> None:
    with pytest.raises(ConfigError, match=r"data=.* is no mapping of settings") as refused:
        CAPro(data=str(source)).fit(source)
    assert "fit" in (refused.value.hint or "")


# --- fit, predict, issues -------------------------------------------------------------------------


def test_a_folder(fitted: CAPro, source: Path) -> None:
    assert fitted.classes_.tolist() == CLASSES
    assert set(fitted.results_) == {"vanilla", "capro"}
    test = sorted((source / "test" / "images").iterdir())
    p = fitted.predict_proba(test)
    assert p.shape == (len(test), 3)
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-5)
    assert fitted.run_ is not None
    np.testing.assert_allclose(p, fitted.run_.read(SCORES["capro"]), atol=1e-6)
    assert fitted.predict(test).tolist() == fitted.classes_[p.argmax(axis=1)].tolist()
    assert fitted.score(test, fitted.predict(test)) == 1.0


def test_issues_have_a_row_per_training_sample_with_evidence(fitted: CAPro) -> None:
    table = fitted.issues()
    assert len(table) == 18
    assert table["evidence"].str.len().min() > 20
    assert set(table["decision"]) <= {"anchor", "keep", "relabel", "drop"}
    assert "anchor" in set(table["decision"])
    assert table.loc[table["decision"] == "anchor", "text_distance"].notna().all()


def test_images_of_every_kind_give_the_same(fitted: CAPro, source: Path) -> None:
    paths = sorted((source / "test" / "images").iterdir())
    wanted = fitted.predict_proba(paths)
    opened = [Image.open(path).convert("RGB") for path in paths]
    for images in (
        source / "test" / "images",
        [str(path) for path in paths],
        opened,
        [np.asarray(image) for image in opened],
        [path.read_bytes() for path in paths],
        pd.DataFrame({"path": paths}),
    ):
        np.testing.assert_allclose(fitted.predict_proba(images), wanted, atol=1e-6)
    np.testing.assert_allclose(fitted.predict_proba(opened[0]), wanted[:1], atol=1e-6)


def test_open_set_gives_none(fitted: CAPro, source: Path) -> None:
    fitted._predictor.threshold, before = 1.0, fitted._predictor.threshold
    assert set(fitted.predict(source / "test" / "images", open_set=True)) == {None}
    fitted._predictor.threshold = before
    assert None not in set(fitted.predict(source / "test" / "images"))


def test_a_data_frame_with_paths_texts_and_test_rows(source: Path, tmp_path: Path) -> None:
    train, test = frame(source), frame(source, "test")
    estimator = model(run=tmp_path / "run").fit(train, test=test, classes=source.parent / "classes.yaml")
    assert len(estimator.issues()) == len(train)
    assert estimator.predict(test).shape == (len(test),)
    assert estimator.results_["capro"]
    events = (tmp_path / "run" / "events.jsonl").read_text()
    estimator.fit(train, test=test, classes=source.parent / "classes.yaml")
    assert (tmp_path / "run" / "events.jsonl").read_text().count("finished") == events.count(
        "finished"
    )  # the same data again: nothing was done twice


def test_a_test_folder_needs_no_column_of_the_crawl(source: Path, tmp_path: Path) -> None:
    rows = records(source / "test" / "metadata.csv")
    for number, record in enumerate(rows):
        target = tmp_path / "test" / record.cells["label"].replace("/", "_") / f"{number}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / "test" / record.cells["file_name"], target)
    estimator = model(run=tmp_path / "run", data__text_column="tags", data__tags_column="title")
    estimator.fit(source / "train", test=tmp_path / "test", classes=source.parent / "classes.yaml")
    assert set(estimator.results_) == {"vanilla", "capro"}


def test_data_without_texts(source: Path, tmp_path: Path) -> None:
    bare = frame(source).drop(columns=["title", "tags"])
    with pytest.raises(DataError, match="none of 18 training samples has a text that can be used"):
        model(run=tmp_path / "stopped").fit(bare, classes=source.parent / "classes.yaml")
    found = model(run=tmp_path / "run", data__without_texts=True)
    found.fit(bare, classes=source.parent / "classes.yaml")
    assert not found.issues()["evidence"].str.contains("text").any()


def test_a_hugging_face_data_set_with_class_labels(source: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = frame(source)
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=CLASSES),
            "title": datasets.Value("string"),
        }
    )
    rows = {
        "image": table["path"].tolist(),
        "label": [CLASSES.index(name) for name in table["label"]],
        "title": table["tags"].tolist(),
    }
    data = datasets.Dataset.from_dict(rows, features=features)
    estimator = model().fit(data, classes=source.parent / "classes.yaml")
    assert sorted(estimator.issues()["given_label"]) == sorted(table["label"])
    assert estimator.predict(data).shape == (len(table),)
    assert estimator.results_ == {}  # no test split


def test_multi_label_predicts_a_matrix(tmp_path: Path, source: Path) -> None:
    folder = write_source(tmp_path / "data", multi=True, per_class=6)
    estimator = model().fit(folder, classes=source.parent / "classes.yaml")
    found = estimator.predict(folder / "test" / "images")
    assert found.shape == (6, 3)
    assert set(np.unique(found)) <= {0, 1}
    assert "given_labels" in estimator.issues()
    estimator._fitted().threshold = 1.01  # nothing is that sure
    assert not estimator.predict(folder / "test" / "images", open_set=True).any()
    estimator._fitted().threshold = None
    with pytest.raises(ConfigError, match="no open-set threshold"):
        estimator.predict(folder / "test" / "images", open_set=True)


# --- save and load --------------------------------------------------------------------------------


def test_save_and_load(fitted: CAPro, source: Path, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    loaded = CAPro.load(tmp_path / "model")
    images = source / "test" / "images"
    np.testing.assert_allclose(loaded.predict_proba(images), fitted.predict_proba(images), atol=1e-6)
    assert loaded.get_params() == fitted.get_params() | {"run": None}
    assert loaded.issues()["evidence"].tolist() == fitted.issues()["evidence"].tolist()
    assert loaded.classes_.tolist() == CLASSES
    with pytest.raises(CaproError, match="exists already"):
        fitted.save(tmp_path / "model")
    with pytest.raises(CaproError, match="no data to export"):
        loaded.export(tmp_path / "x")


def test_export(fitted: CAPro, tmp_path: Path) -> None:
    assert (fitted.export(tmp_path / "out", to="csv") / "samples.csv").exists()


def test_review_serves_in_the_background_and_a_fit_goes_on_with_it(source: Path, tmp_path: Path) -> None:
    fitted = model(run=tmp_path / "run").fit(source, classes=source.parent / "classes.yaml")
    review = fitted.review()
    with urllib.request.urlopen(review.link) as answer:
        assert answer.status == 200
    assert review.session.decide([0], "out", None, person="me", view=View()) == [0]
    review.stop()
    fitted.fit(source, classes=source.parent / "classes.yaml")
    first = fitted.issues().iloc[0]
    assert (first["decision"], first["decided_by"]) == ("drop", "person")
    saved = CAPro.load(fitted.save(tmp_path / "model"))
    with pytest.raises(CaproError, match="no data to review"):
        saved.review()


# --- conventions ----------------------------------------------------------------------------------


def test_parameters_as_scikit_learn_has_them() -> None:
    first = model()
    second = clone(first)
    assert second is not first
    assert second.get_params() == first.get_params()
    second.set_params(backbone="resnet18", train__gamma=0.3)
    assert second.get_params()["train__gamma"] == 0.3
    assert "train__gamma" not in first.get_params()
    assert second._resolve({}, {}, None).train.gamma == 0.3
    assert second._resolve({}, {}, None).net.backbone == "resnet18"
    assert second._resolve({}, {}, None).views.size == 16
    assert "backbone='resnet18'" in repr(second)


def test_not_fitted(tmp_path: Path) -> None:
    estimator = CAPro()
    for use in (lambda: estimator.predict([]), estimator.issues, lambda: estimator.save(tmp_path / "x")):
        with pytest.raises(NotFittedError, match=r"fit\(data\)"):
            use()
    with pytest.raises(NotFittedError):
        check_is_fitted(estimator)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (3, {}, "cannot learn from a int"),
        (pd.DataFrame({"x": [1]}), {}, "no column with paths among x"),
        (pd.DataFrame({"path": ["a.png"]}), {}, "no column with labels"),
        (pd.DataFrame({"path": ["a.png"]}), {"y": ["a", "b"]}, "1 rows, but 2 labels"),
        ("folder", {"y": ["a"]}, "y is for a DataFrame"),
        ("folder", {"test": pd.DataFrame()}, "data is a str and test a DataFrame"),
        ("nowhere", {}, "nowhere: no such file"),
    ],
)
def test_mistakes_have_hints(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CaproError, match=message) as caught:
        model().fit(data, **options)
    assert caught.value.hint


@pytest.mark.parametrize("settings", [{"trian__gamma": 1}, {"train__gama": 1}, {"seed__x": 1}])
def test_unknown_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(CaproError, match="unknown setting"):
        CAPro(**settings).fit("folder")


def test_unusable_images_are_named(fitted: CAPro, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"nothing")
    for images, message in (
        ([tmp_path / "bad.png"], r"bad\.png: cannot be used"),
        ([tmp_path / "gone.png"], r"gone\.png: no such file"),
        ([3], "image 0 is a int"),
        ([np.zeros((4, 4))], "array of float64"),
    ):
        with pytest.raises(CaproError, match=message):
            fitted.predict(images)


def test_importing_capro_stays_light() -> None:
    code = "import sys, capro; print({'torch', 'numpy', 'pandas', 'sklearn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    with pytest.raises(AttributeError, match="no attribute 'CAPRO'"):
        _ = capro.CAPRO  # type: ignore[attr-defined]
