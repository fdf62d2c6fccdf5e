"""Round trips: what an export holds is what `scan` reads back, with the corrected labels."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from capro import config
from capro.data.manifest import Manifest, manifest_of
from capro.data.readers import WRITERS, find_to_evaluate
from capro.errors import CaproError, DataError
from capro.export.dataset import cleaned_table, export_data
from capro.pipeline.artefacts import CLASSES as CLASSES_FILE
from capro.pipeline.artefacts import MANIFEST, VERDICTS, write_json, write_table
from capro.pipeline.run import Run
from capro.results.store import VerdictStore
from capro.stages import PLAN
from tests.fakes import fake_stage
from tests.made_up import CLASSES, make_run


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("single"))


@pytest.fixture(scope="module")
def multi(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("multi"), multi=True)


def rescan(note: dict[str, Any], out: Path, folder: Path) -> Manifest:
    """Scan an export as its export.json says: in its own folder."""
    words = shlex.split(note["scan"])
    assert words[:2] == ["capro", "scan"]
    overrides = [f"data.source={out / words[2]}", "scan.workers=1"]
    overrides += [f"data.image_root={out / words[4]}"] if len(words) > 3 else []
    run = Run.create(folder, config.load(overrides=overrides))
    PLAN.do(run, "scan")
    return manifest_of(run)


def cases() -> list[Any]:
    allowed = {"folder": ["link", "copy"], "webdataset": [None], "hf": [None]}
    found = [(to, m, "single") for to in WRITERS for m in allowed.get(to, ["none", "link", "copy"])]
    return found + [(to, None, "multi") for to in WRITERS]


@pytest.mark.parametrize(("to", "images", "task"), cases())
def test_round_trip(to: str, images: str | None, task: str, single: Run, multi: Run, tmp_path: Path) -> None:
    run = single if task == "single" else multi
    note = export_data(run, tmp_path / "out", to=to, images=images)
    again = rescan(note, tmp_path / "out", tmp_path / "again")
    assert again.task == task
    assert (again.frame["status"] == "ok").all()
    before = manifest_of(run)
    table = cleaned_table(VerdictStore(run))
    kept = table[table["decision"] != "drop"].set_index("capro_id")
    assert 0 < len(kept) < len(table)
    found = again.samples.set_index("id")
    assert sorted(found.index) == sorted(kept.index)
    old = before.samples.set_index("id").loc[found.index]
    wanted = kept.loc[found.index, "label" if task == "single" else "labels"]
    assert [labels[0] if task == "single" else list(labels) for labels in found["labels"]] == (
        wanted.tolist()
    )
    for column in ("sha256", "title", "description", "tags", "split"):
        assert found[column].tolist() == old[column].tolist(), column
    given = _given(tmp_path / "out", to, task)
    changed = sum(given[i] != list(old.loc[i, "labels"]) for i in found.index)
    assert changed == 0  # reversible: the given labels are in the export


# words that Hugging Face takes for a split, names that differ by case or by their end, devices of Windows
ODD_NAMES = ["train", "test", "val", "validation", "train station", "my-eval", "dev2"]
# (a space at the end is taken off when the data are read)
ODD_NAMES += ["Nut", "nut", "nut.", "fig ", "con", "NUL", "aux", "com1", "testx"]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("odd"), names=ODD_NAMES)


@pytest.fixture(scope="module")
def odd_multi(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("odd-multi"), names=ODD_NAMES, multi=True)


@pytest.mark.parametrize("task", ["single", "multi"])
@pytest.mark.parametrize("to", WRITERS)
def test_odd_class_names_come_back(to: str, task: str, odd: Run, odd_multi: Run, tmp_path: Path) -> None:
    run = odd if task == "single" else odd_multi
    note = export_data(run, tmp_path / "out", to=to, images="copy")
    kept = cleaned_table(VerdictStore(run)).query("decision != 'drop'").set_index("capro_id")
    column = "label" if task == "single" else "labels"
    wanted = [[names] if task == "single" else list(names) for names in kept[column]]
    assert {name for names in wanted for name in names} >= {name.strip() for name in ODD_NAMES}
    again = rescan(note, tmp_path / "out", tmp_path / "again")
    assert (again.frame["status"] == "ok").all()
    assert again.task == task
    found = again.samples.set_index("id")["labels"].map(list)
    assert len(found) == len(kept)
    assert found.loc[kept.index].tolist() == wanted


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # datasets leaves a file open
@pytest.mark.parametrize("task", ["single", "multi"])
def test_imagefolder_of_hugging_face_loads_every_row_with_its_label(
    task: str, odd: Run, odd_multi: Run, tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets")
    run = odd if task == "single" else odd_multi
    note = export_data(run, tmp_path / "out", to="folder", images="copy")
    kept = cleaned_table(VerdictStore(run)).query("decision != 'drop'").set_index("capro_id")
    column = "label" if task == "single" else "labels"
    for number, source in enumerate(
        ({"path": "imagefolder", "data_dir": str(tmp_path / "out")}, {"path": str(tmp_path / "out")})
    ):
        found = datasets.load_dataset(**source, cache_dir=str(tmp_path / f"cache{number}"))
        assert list(found) == ["train"]
        assert len(found["train"]) == note["samples"]
        labels = dict(zip(found["train"]["capro_id"], found["train"][column], strict=True))
        read = {sample: name if task == "single" else json.loads(name) for sample, name in labels.items()}
        assert read == kept[column].to_dict()


def test_folders_of_classes_have_names_that_windows_takes(odd: Run, tmp_path: Path) -> None:
    export_data(odd, tmp_path / "out", to="folder")
    folders = [path.name for path in (tmp_path / "out" / "train").iterdir() if path.is_dir()]
    assert len(folders) == len({name.casefold() for name in folders}) == len(ODD_NAMES)
    assert not {name.casefold() for name in folders} & {"con", "nul", "aux", "com1", "train", "test", "val"}


def test_an_export_can_be_evaluated_on(single: Run, tmp_path: Path) -> None:
    note = export_data(single, tmp_path / "out", to="folder")
    (reader,) = find_to_evaluate(config.load().data, str(tmp_path / "out"))
    rows = [*reader.rows()]
    assert len(rows) == note["samples"]
    assert {name for row in rows for name in row.labels} <= {*CLASSES}


def _given(out: Path, to: str, task: str) -> dict[str, list[str]]:
    """Given labels by id, read from an export with no code of ours."""
    column = "given_label" if task == "single" else "given_labels"
    if to in ("csv", "folder"):
        rows = pd.read_csv(out / ("samples.csv" if to == "csv" else "train/metadata.csv"))
        records = rows.to_dict("records")
    elif to in ("parquet", "hf"):
        name = "samples.parquet" if to == "parquet" else "train-00000-of-00001.parquet"
        records = pd.read_parquet(out / name).to_dict("records")
    elif to == "webdataset":
        with tarfile.open(out / "train-000000.tar") as tar:
            files = [tar.extractfile(m) for m in tar if m.name.endswith(".json")]
            records = [json.loads(file.read()) for file in files if file]
    else:
        records = list(json.loads((out / "labels.json").read_text())["capro"].values())

    def names(value: Any) -> list[str]:
        if task == "single":
            return [value]
        return json.loads(value) if isinstance(value, str) else list(value)

    return {row["capro_id"]: names(row[column]) for row in records}


def test_dropped_samples_are_listed_with_their_evidence(single: Run, tmp_path: Path) -> None:
    note = export_data(single, tmp_path / "out", to="csv")
    dropped = pd.read_csv(tmp_path / "out" / "dropped.csv")
    verdicts = single.issues()
    assert set(dropped["capro_id"]) == set(verdicts.loc[verdicts["decision"] == "drop", "id"])
    assert note["dropped"] == len(dropped) > 0
    assert dropped["evidence"].str.startswith("Dropped").all()


def test_hugging_face_loads_it_with_class_names(single: Run, multi: Run, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for run, column in ((single, "label"), (multi, "labels")):
        out = tmp_path / column
        export_data(run, out, to="hf")
        data = datasets.load_dataset(str(out), cache_dir=str(tmp_path / "cache"))["train"]
        feature = data.features[column]
        assert getattr(feature, "feature", feature).names == CLASSES
        assert data[0]["image"].size == (20, 16)


def test_fiftyone_layout_is_the_documented_one(single: Run, multi: Run, tmp_path: Path) -> None:
    export_data(single, tmp_path / "copy", to="fiftyone", images="copy")
    labels = json.loads((tmp_path / "copy" / "labels.json").read_text())
    assert labels["classes"] == CLASSES
    files = {path.stem: path for path in (tmp_path / "copy" / "data").iterdir()}
    assert files.keys() == labels["labels"].keys()
    assert {target["label"] for target in labels["labels"].values()} <= {0, 1, 2}
    assert all("given_label" in target["attributes"] for target in labels["labels"].values())
    export_data(multi, tmp_path / "multi", to="fiftyone")
    several = json.loads((tmp_path / "multi" / "labels.json").read_text())["labels"]
    given = [one["attributes"]["given_labels"] for each in several.values() for one in each]
    assert given
    assert all(isinstance(names, list) and set(names) <= set(CLASSES) for names in given)
    export_data(single, tmp_path / "none", to="fiftyone")
    places = json.loads((tmp_path / "none" / "data.json").read_text())
    assert all(Path(path).is_file() for path in places.values())


def test_fiftyone_paths_are_not_followed_out_of_the_root(single: Run, tmp_path: Path) -> None:
    note = export_data(single, tmp_path / "out", to="fiftyone")
    places = json.loads((tmp_path / "out" / "data.json").read_text())
    first = next(iter(places))
    places[first] = "/etc/passwd"
    (tmp_path / "out" / "data.json").write_text(json.dumps(places))
    again = rescan(note, tmp_path / "out", tmp_path / "again")
    assert again.frame["reason"].tolist()[0] == "outside-folder"
    assert len(again.samples) == len(places) - 1


def test_webdataset_is_the_same_bytes_each_time(single: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        export_data(single, tmp_path / name, to="webdataset")
    shard = "train-000000.tar"
    assert (tmp_path / "a" / shard).read_bytes() == (tmp_path / "b" / shard).read_bytes()


def test_links_share_the_file_and_copies_do_not(single: Run, tmp_path: Path) -> None:
    for images, count in (("link", 2), ("copy", 1)):
        export_data(single, tmp_path / images, to="folder", images=images)
        pictures = list((tmp_path / images).glob("train/*/*.png"))
        assert pictures
        assert {path.stat().st_nlink >= count for path in pictures} == {True}
        assert not any(path.is_symlink() for path in pictures)
    copy = next((tmp_path / "copy").glob("train/*/*.png"))
    assert copy.stat().st_nlink == 1


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"to": "cvs"}, "no format 'cvs'", "did you mean 'csv'?"),
        ({"to": "csv", "images": "move"}, "--images 'move'", "known"),
        ({"to": "folder", "images": "none"}, "--to folder holds images", "--images link or copy"),
        ({"to": "hf", "images": "link"}, "--to hf holds images", "--images copy"),
    ],
)
def test_mistakes_have_hints(
    single: Run, tmp_path: Path, options: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(CaproError, match=message) as caught:
        export_data(single, tmp_path / "out", **options)  # type: ignore[arg-type]
    assert hint in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(single: Run, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export_data(single, tmp_path / "out", to="csv")  # an empty folder is fine
    before = (tmp_path / "out" / "samples.csv").read_bytes()
    with pytest.raises(CaproError, match="exists already"):
        export_data(single, tmp_path / "out", to="parquet")
    assert (tmp_path / "out" / "samples.csv").read_bytes() == before


def test_a_failure_leaves_nothing_behind(
    single: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []

    def progress(count: int) -> None:
        done.append(count)
        if len(done) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_data(single, tmp_path / "out", to="folder", progress=progress)
    assert list(tmp_path.iterdir()) == []


def test_images_in_tars_can_be_copied_but_not_left_in_place(single: Run, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    note = export_data(single, shards, to="webdataset")
    manifest = rescan(note, shards, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    verdicts = single.issues().set_index("id").loc[manifest.samples["id"]].reset_index()
    fake_stage(run, "classes", lambda here: write_json(here / CLASSES_FILE.file, single.read(CLASSES_FILE)))
    fake_stage(run, "clean", lambda here: write_table(here / VERDICTS.file, verdicts))
    for to, images in (("csv", "none"), ("folder", "link")):
        with pytest.raises(CaproError) as caught:
            export_data(run, tmp_path / "no", to=to, images=images)
        assert caught.value.hint == "use --images copy"
    export_data(run, tmp_path / "yes", to="folder", images="copy")
    assert len(list((tmp_path / "yes").glob("train/*/*.png"))) == len(manifest.samples)


def test_classes_with_one_safe_name_keep_apart(single: Run, tmp_path: Path) -> None:
    export_data(single, tmp_path / "out", to="folder")
    table = pd.read_csv(tmp_path / "out/train/metadata.csv")
    folders = table["file_name"].str.split("/").str[0]
    assert table.groupby(folders)["label"].nunique().max() == 1
    assert folders.nunique() == table["label"].nunique()
    assert np.unique(table["file_name"]).size == len(table)


# --- pictures that changed since the scan ---------------------------------------------------------


@pytest.fixture
def own(single: Run, tmp_path: Path) -> Iterator[Run]:
    """A run whose pictures and verdicts a test may change: they are put back."""
    folders = [single.path.parent / "data", single.folder("clean")]
    for number, folder in enumerate(folders):
        shutil.copytree(folder, tmp_path / "as it was" / str(number))
    yield single
    for number, folder in enumerate(folders):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "as it was" / str(number), folder)


def _kept_pictures(run: Run) -> list[Path]:
    manifest = manifest_of(run)
    table = cleaned_table(VerdictStore(run))
    kept = table[table["decision"] != "drop"]
    return [Path(manifest.sources[row["source"]].root, row["path"]) for row in kept.to_dict("records")]


def _replace_by_link(picture: Path) -> None:
    secret = picture.parents[3] / "secret.png"
    secret.write_bytes(b"private")
    picture.unlink()
    picture.symlink_to(secret)


def _replace_by_link_to_a_copy(picture: Path) -> None:
    copy = picture.parents[3] / "copy.png"
    copy.write_bytes(picture.read_bytes())
    picture.unlink()
    picture.symlink_to(copy)


def _replace_by_pipe(picture: Path) -> None:
    picture.unlink()
    os.mkfifo(picture)


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "content": (lambda picture: picture.write_bytes(b"another"), "its content has changed"),
    "link": (_replace_by_link, "it is a link out of the data folder"),
    "link to the same": (_replace_by_link_to_a_copy, "it is a link out of the data folder"),
    "gone": (Path.unlink, r"it is gone \(No such file or directory\)"),
    "pipe": (_replace_by_pipe, "it is not a file"),
}


@pytest.mark.parametrize(("to", "images"), [("folder", "link"), ("folder", "copy"), ("hf", None)])
@pytest.mark.parametrize("change", CHANGES)
def test_a_picture_that_changed_since_the_scan_is_not_exported(
    own: Run, tmp_path: Path, change: str, to: str, images: str | None
) -> None:
    """Pictures that were replaced by links to other files were exported."""
    act, why = CHANGES[change]
    picture = _kept_pictures(own)[2]
    act(picture)
    out = tmp_path / "out"
    with pytest.raises(DataError, match=rf"1 of \d+ pictures changed since the scan \(.*: {why}\)") as caught:
        export_data(own, out, to=to, images=images)
    assert f"`capro scan --run {own.path} --force`, then `capro run --run {own.path}`" in caught.value.hint
    assert "--skip-changed" in caught.value.hint
    assert not out.exists()
    note = export_data(own, out, to=to, images=images, skip_changed=True)
    listed = pd.read_csv(out / "changed.csv").to_dict("records")
    assert [(row["path"], note["changed"]) for row in listed] == [(f"images/{picture.name}", 1)]
    assert re.fullmatch(why, listed[0]["problem"])
    assert note["samples"] == len(_kept_pictures(own)) - 1
    assert len(rescan(note, out, tmp_path / "again").samples) == note["samples"]
    assert not any(b"private" in file.read_bytes() for file in out.rglob("*") if file.is_file())


def test_many_changed_pictures_are_counted_and_the_first_are_named(own: Run, tmp_path: Path) -> None:
    pictures = _kept_pictures(own)
    for picture in pictures:
        picture.unlink()
    with pytest.raises(DataError, match=rf"{len(pictures)} of .*; and {len(pictures) - 5} more\)$"):
        export_data(own, tmp_path / "out", to="folder")
    with pytest.raises(DataError, match=f"all {len(pictures)} pictures have changed"):
        export_data(own, tmp_path / "out", to="folder", skip_changed=True)


def test_a_link_within_the_data_is_exported_as_the_scan_read_it(own: Run, tmp_path: Path) -> None:
    picture = _kept_pictures(own)[0]
    moved = picture.with_name("moved.bin")
    picture.rename(moved)
    picture.symlink_to(moved)
    for images in ("link", "copy"):
        note = export_data(own, tmp_path / images, to="folder", images=images)
        assert not any(file.is_symlink() for file in (tmp_path / images).rglob("*"))
        assert note["changed"] == 0


def test_a_damaged_verdict_table_stops_the_export(own: Run, tmp_path: Path) -> None:
    """Also where size and time are those of the whole file."""
    file = own.file(VERDICTS)
    before, data = file.stat(), bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(CaproError, match=r"verdicts\.parquet: damaged since the clean stage wrote it"):
        export_data(own, tmp_path / "out", to="csv")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", WRITERS)
def test_an_export_holds_no_absolute_path(single: Run, tmp_path: Path, to: str) -> None:
    """export.json had those of the run, the pictures and the export."""
    out = tmp_path / "out"
    note = export_data(single, out, to=to)
    data = str(single.path.resolve().parent).encode()
    places = {"data.json"} if to == "fiftyone" else set()  # FiftyOne needs them where no picture is copied
    for file in out.rglob("*"):
        if file.is_file() and file.name not in places:
            assert data not in file.read_bytes(), file
            assert str(tmp_path).encode() not in file.read_bytes(), file
    assert note["run"] == "run"
    assert json.loads((out / "export.json").read_text()) == note


HOSTILE = [
    "a\rb",
    "\r",
    "a\r\nb",
    "\n",
    "=1+1",
    "'=1+1",
    "+x",
    "-1",
    "-x",
    "@a",
    "\tb",
    '"',
    'a"b',
    ",;\t",
    " x ",
]
HOSTILE += ["\0", "sep=;", "[1]", "'", "=\r\n"]


@pytest.mark.parametrize("formulas", ["escape", "keep"])
@pytest.mark.parametrize("to", ["csv", "folder", "parquet", "fiftyone", "webdataset", "hf"])
def test_hostile_texts_come_back(
    single: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, formulas: str
) -> None:
    """Carriage returns and formulas of an export are read back as they were."""
    before = manifest_of(single)
    table = before.table
    for shift, column in enumerate(("title", "description", "tags")):
        texts = [HOSTILE[(number + 7 * shift) % len(HOSTILE)] for number in range(len(table))]
        table = table.set_column(table.schema.get_field_index(column), column, pa.array(texts))
    changed = Manifest(table)
    read = VerdictStore._read

    def changed_texts(store: VerdictStore, artefact: Any, columns: list[str]) -> pa.Table:
        return table.select(columns) if artefact is MANIFEST else read(store, artefact, columns)

    monkeypatch.setattr(VerdictStore, "_read", changed_texts)
    note = export_data(single, tmp_path / "out", to=to, images="copy", formulas=formulas)
    again = rescan(note, tmp_path / "out", tmp_path / "again").samples.set_index("id")
    assert len(again) == note["samples"]
    wanted = changed.samples.set_index("id").loc[again.index]
    for column in ("title", "description", "tags"):
        assert again[column].tolist() == wanted[column].tolist(), column
    if to in ("csv", "folder"):
        rows = pd.read_csv(
            tmp_path / "out" / ("samples.csv" if to == "csv" else "train/metadata.csv"), dtype=str
        )
        shown = [text for text in rows["title"].dropna() if text.startswith(("=", "+", "@", "-x", "\t"))]
        assert bool(shown) == (formulas == "keep")


def test_kept_formulas_need_no_further_column(single: Run, tmp_path: Path) -> None:
    for formulas in ("escape", "keep"):
        export_data(single, tmp_path / formulas, to="csv", formulas=formulas)
        columns = pd.read_csv(tmp_path / formulas / "samples.csv").columns
        assert ("capro_escaped" in columns) == (formulas == "escape")
    with pytest.raises(CaproError, match="--formulas 'quote'"):
        export_data(single, tmp_path / "other", to="csv", formulas="quote")
