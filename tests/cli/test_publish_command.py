"""`capro push`, against a stand-in for the hub."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import typer
from huggingface_hub import constants
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from capro.errors import CaproError
from capro.export.dataset import export_data
from capro.export.hub import push
from capro.export.model import export_model
from capro.pipeline.run import Run
from capro.stages.threshold import threshold
from tests.commands import Capro, capro
from tests.hub import TOKEN, Hub, Repository, serving
from tests.made_up import CLASSES, make_run

__all__ = ["capro"]
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>'")  # huggingface_hub with httpx


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model folder and an exported dataset."""
    folder = tmp_path_factory.mktemp("made")
    run = make_run(folder / "r")
    export_model(run, folder / "model", open_set=threshold(run), license="apache-2.0")
    export_data(run, folder / "dataset", to="hf", license="cc-by-4.0")
    export_data(run, folder / "csv", to="csv")
    return {"run": run.path, **{name: folder / name for name in ("model", "dataset", "csv")}}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving() as found:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "ENDPOINT", found.address)
        monkeypatch.setattr(
            constants, "HF_HUB_DISABLE_XET", True
        )  # a protocol of its own, behind the same commit
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        impatient = SimpleNamespace(**vars(time) | {"sleep": lambda _: None})
        monkeypatch.setattr("huggingface_hub.utils._http.time", impatient)  # between two tries
        bars = not are_progress_bars_disabled()
        if bars:
            disable_progress_bars()  # as the program does before it imports the package
        yield found
        if bars:
            enable_progress_bars()


def test_a_model_is_published_with_its_card(made: dict[str, Path], hub: Hub, capro: Capro) -> None:
    code, out, err = capro("push", made["model"], "ann/m", "--yes")
    assert (code, out) == (0, f"{hub.address}/ann/m\n"), err
    there = hub.repositories["models/ann/m"]
    assert not there.private
    assert there.files.pop(".gitattributes")
    assert there.files == {path.name: path.read_bytes() for path in made["model"].iterdir()}
    for piece in ("repository: ann/m, new", "visible to: PUBLIC: everybody", "labels: 3 classes", "pictures: none",
                  "model.safetensors, ", "files: 3, "):  # fmt: skip
        assert piece in err


def test_a_data_set_is_published_and_read_back(made: dict[str, Path], hub: Hub, capro: Capro) -> None:
    code, out, err = capro("push", made["dataset"], "d", "--private", "--yes", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["repository"] == "ann/d"  # of the user whose token it is
    assert found["url"] == f"{hub.address}/datasets/ann/d"
    there = hub.repositories["datasets/ann/d"]
    assert there.private
    assert (
        {*found["added"]}
        == {path.name for path in made["dataset"].iterdir()}
        == {*there.files} - {".gitattributes"}
    )
    note = json.loads((made["dataset"] / "export.json").read_text())
    assert f"pictures: {note['samples']}, unchanged" in err
    assert "visible to: private" in err
    assert f"listed without a picture, with ids and texts: {note['dropped']} samples" in err
    texts = next(line for line in err.splitlines() if line.startswith("texts of the web"))
    whole = note["samples"] + note["dropped"]
    assert f"tags of {whole} samples" in texts  # each has a tag
    assert 0 < int(texts.partition("title of ")[2].split()[0]) < whole  # some have no title
    assert all(name in err for name in CLASSES)


def test_an_existing_repository_is_shown_with_what_changes(
    made: dict[str, Path], hub: Hub, capro: Capro, tmp_path: Path
) -> None:
    here = shutil.copytree(made["dataset"], tmp_path / "d")
    assert capro("push", here, "ann/d", "--yes")[0] == 0
    there = hub.repositories["datasets/ann/d"]
    there.files |= {"train-00001-of-00002.parquet": b"of an earlier export", "NOTICE": b"mine"}
    (here / "dropped.csv").write_text("capro_id\n")
    (here / "picture.txt").write_text("new")
    commits = len(there.commits)
    code, _, err = capro("push", here, "ann/d", "--yes")
    assert code == 0, err
    assert "  picture.txt, 3 bytes, not written by capro" in err.splitlines()
    for line in ("repository: ann/d, exists already", "  added: picture.txt", "  REPLACED: dropped.csv",
                 "  REMOVED: train-00001-of-00002.parquet"):  # fmt: skip
        assert line in err.splitlines()
    assert "left as they are: " in err
    assert "NOTICE" in err
    assert "train-00001-of-00002.parquet" not in there.files  # the hub would show it as part of the data
    assert there.files["NOTICE"] == b"mine"
    assert there.files["dropped.csv"] == b"capro_id\n"
    assert len(there.commits) == commits + 1
    code, _, err = capro("push", here, "ann/d", "--yes")
    assert (code, len(there.commits)) == (0, commits + 1)
    assert "has these files already; nothing was uploaded" in err


def test_a_public_repository_does_not_become_private(made: dict[str, Path], hub: Hub, capro: Capro) -> None:
    hub.repositories["models/ann/m"] = Repository(private=False)
    code, _, err = capro("push", made["model"], "ann/m", "--private", "--yes")
    assert (code, "public already" in err, "hint: " in err) == (2, True, True)
    hub.repositories["models/ann/m"].private = True
    code, _, err = capro("push", made["model"], "ann/m", "--yes")
    assert (code, "visible to: private" in err) == (0, True)


def test_a_hub_that_makes_a_private_repository_public_gets_nothing(
    made: dict[str, Path], hub: Hub, capro: Capro
) -> None:
    hub.deaf = True
    code, _, err = capro("push", made["model"], "ann/m", "--private", "--yes")
    assert (code, "the hub made the repository public, and nothing was uploaded" in err) == (2, True), err
    assert [*hub.repositories["models/ann/m"].files] == [".gitattributes"]


def test_nothing_is_published_without_a_yes(
    made: dict[str, Path], hub: Hub, capro: Capro, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = capro("push", made["model"], "ann/m")
    assert (code, out) == (2, "")
    assert "repository: ann/m, new" in err  # it is shown first
    assert "error: cannot ask whether to publish this: stdin is not a terminal\nhint: add --yes" in err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    asked: list[str] = []
    monkeypatch.setattr(typer, "confirm", lambda text, **_: asked.append(text))
    code, out, err = capro("push", made["model"], "ann/m")
    assert (code, out, asked) == (1, "", ["publish this?"])
    assert "nothing was published" in err
    assert not hub.repositories
    monkeypatch.setattr(typer, "confirm", lambda *_, **options: options["default"] is False)
    assert capro("push", made["model"], "ann/m")[0] == 0
    assert hub.repositories


def test_a_missing_token_is_one_sentence(
    made: dict[str, Path], hub: Hub, capro: Capro, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    code, _, err = capro("push", made["model"], "ann/m", "--yes")
    assert code == 2
    assert err.startswith("error: no token for the Hugging Face hub\nhint: `hf auth login`")
    assert not hub.asked


REFUSALS: dict[str, tuple[dict[str, int], str]] = {
    "another token": ({"whoami": 401}, "does not accept the token"),
    "no right to write": ({"commit": 403}, "may not write there"),
    "a limit": ({"preupload": 413}, "the hub answers 413"),
    "an error of the hub": ({"whoami": 500}, "the hub answers 500"),
    "an error while large files go": ({"PUT /stored": 503}, "the hub answers 503"),
    "a line that is cut at once": ({"whoami": 0}, "cannot be reached"),
    "a line that is cut while large files go": ({"PUT /stored": 0}, "cannot be reached"),
    "a line that is cut at the commit": ({"commit": 0}, "cannot be reached"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_and_cut_lines_are_messages(
    name: str, made: dict[str, Path], hub: Hub, capro: Capro
) -> None:
    hub.faults, said = REFUSALS[name]
    code, out, err = capro("push", made["model"], "ann/m", "--yes")
    lines = [line for line in err.splitlines() if line.startswith(("error: ", "hint: "))]
    assert (code, out, len(lines)) == (2, "", 2), err
    assert said in lines[0]
    assert TOKEN not in err
    there = hub.repositories.get("models/ann/m")
    assert there is None or [*there.files] == [".gitattributes"]  # nothing is half published
    hub.faults = {}
    code, _, err = capro("push", made["model"], "ann/m", "--yes")  # and the same command goes on
    assert code == 0, err
    assert len(hub.repositories["models/ann/m"].files) == 4


def test_a_foreign_owner_and_a_bad_name(made: dict[str, Path], hub: Hub, capro: Capro) -> None:
    code, _, err = capro("push", made["model"], "bob/m", "--yes")
    assert (code, "bob/m: the token may not write there" in err) == (2, True)
    code, _, err = capro("push", made["model"], "ann/a/b", "--yes")
    assert (code, "hint: give OWNER/NAME" in err) == (2, True)


def test_what_somebody_else_commits_meanwhile_is_not_overwritten(
    made: dict[str, Path], hub: Hub, capro: Capro
) -> None:
    hub.repositories["models/ann/m"] = there = Repository(private=False)
    hub.meanwhile = lambda: there.commits.append("f" * 40)
    code, _, err = capro("push", made["model"], "ann/m", "--yes")
    assert (code, "changed by somebody else in the meantime" in err) == (2, True)
    assert [*there.files] == [".gitattributes"]


def test_a_card_that_the_hub_refuses(made: dict[str, Path], hub: Hub, capro: Capro) -> None:
    hub.card_errors = ['"license" must be one of [apache-2.0, mit]']
    code, _, err = capro("push", made["model"], "ann/m", "--yes")
    assert (code, "the hub refuses it" in err, '"license" must be one of' in err) == (2, True, True), err


def test_an_interrupted_upload_publishes_nothing_and_goes_on(
    made: dict[str, Path], hub: Hub, capro: Capro
) -> None:
    """A process of its own, with the address in HF_ENDPOINT, that gets SIGINT while the commit is on its way."""
    environment = os.environ | {"HF_ENDPOINT": hub.address, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    words = [sys.executable, "-m", "capro", "push", str(made["model"]), "ann/m", "--yes"]
    process = subprocess.Popen(
        words, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )

    def interrupt() -> None:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        raise ConnectionError  # the hub never takes the commit

    hub.meanwhile = interrupt
    _, err = process.communicate(timeout=100)
    assert process.returncode == 130, err
    assert "error: interrupted\nhint: give the same command again" in err
    assert [*hub.repositories["models/ann/m"].files] == [".gitattributes"]
    hub.meanwhile = lambda: None
    code, _, err = capro("push", made["model"], "ann/m", "--yes")
    assert (code, "exists already" in err) == (0, True), err
    assert (
        sum(asked.startswith("PUT /stored") for asked in hub.asked) == 1
    )  # what had arrived is not sent again


def _break(folder: Path, name: str) -> None:
    if name == "a link":
        (folder / "more.txt").symlink_to("/etc/hostname")
    elif name == "a hidden file":
        (folder / ".env").write_text("SECRET=1")
    elif name == "README.md":
        (folder / "README.md").unlink()
    elif name == "train-*.parquet":
        (folder / "train-00000-of-00001.parquet").unlink()


BAD: dict[str, tuple[str, str]] = {
    "a link": ("model", "a link, which is not published"),
    "a hidden file": ("dataset", "a hidden file, which is not published"),
    "README.md": ("dataset", "README.md is missing"),
    "train-*.parquet": ("dataset", "train-*.parquet is missing"),
    "another format": ("csv", "a dataset in the format csv"),
    "a run": ("run", "neither a model folder nor an exported dataset"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_folder_that_is_not_published(
    name: str, made: dict[str, Path], hub: Hub, capro: Capro, tmp_path: Path
) -> None:
    kind, said = BAD[name]
    folder = shutil.copytree(made[kind], tmp_path / "f")
    _break(folder, name)
    code, _, err = capro("push", folder, "ann/x", "--yes")
    assert (code, said in err, "hint: " in err) == (2, True, True), err
    assert not hub.asked


def test_from_python(made: dict[str, Path], hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    from capro import CAPro
    from capro.export.predictor import Predictor

    model = CAPro()
    model._take(Predictor.load(made["model"]))
    model.run_ = Run.open(made["run"])
    with pytest.raises(CaproError, match="nothing was published") as caught:
        model.push("ann/p")
    assert caught.value.hint == "push('ann/p', yes=True) publishes what was printed"
    assert "repository: ann/p, new" in capsys.readouterr().err
    assert model.push("ann/p", private=True, yes=True, license="mit") == f"{hub.address}/ann/p"
    assert b"license: mit" in hub.repositories["models/ann/p"].files["README.md"]
    model.save(made["model"].parent / "saved")
    shown: list[str] = []

    def refuse(lines: Sequence[str]) -> None:
        shown.extend(lines)
        raise CaproError("no")

    with pytest.raises(CaproError, match=r"^no$"):
        push(made["model"].parent / "saved", "ann/q", agree=refuse)
    assert "models/ann/q" not in hub.repositories
    assert any(line.startswith("issues.parquet: ids, labels and evidence of 24") for line in shown)
    with pytest.raises(CaproError, match="is in a folder already"):
        CAPro.load(made["model"]).push("ann/q", yes=True)
