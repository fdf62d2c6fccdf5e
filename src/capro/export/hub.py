"""Publishing a folder on the Hugging Face hub: what becomes public, what changes there, and the one commit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from capro import __version__
from capro.data.readers.table_files import class_labels, open_parquet, whole_records
from capro.errors import CaproError, ConfigError, DataError, StoreError, first_line
from capro.export.model_config import own_file, parse_model_config, read_model_config
from capro.files import read_regular
from capro.models.folders import quiet_logger
from capro.pipeline.artefacts import (
    CARD,
    EXPORT_CHANGED,
    EXPORT_DROPPED,
    EXPORT_NOTE,
    FIELDS,
    MODEL_CONFIG,
    MODEL_ONNX,
    MODEL_VERDICTS,
    MODEL_WEIGHTS,
)
from capro.pipeline.checksums import sha256_of
from capro.wording import byte_size, many, plain, some

LOGIN = "`hf auth login`, or a token with the right to write in HF_TOKEN (huggingface.co/settings/tokens)"
NETWORK = (ConnectionError, json.JSONDecodeError)  # errors of the network, and
FOREIGN = ("httpx", "httpcore", "requests", "urllib3", "huggingface_hub", "hf_xet")  # those of these packages

CHANGES = {  # what becomes of a file in the repository, in words
    "added": "added",
    "replaced": "REPLACED",
    "removed": "REMOVED",  # of an earlier export, not in this one
    "unchanged": "left as they are",  # with the same content, or not written by capro
}


@dataclass(frozen=True)
class Target:
    """A repository as it is now, and what publishing does to its files.

    Attributes:
        repo: OWNER/NAME.
        private: Whether it is, or will be, seen by its owner alone.
        head: The commit that was looked at; None: there is no repository yet.
        changes: Names of files by what happens to them, a key of `CHANGES`.
    """

    repo: str
    private: bool
    head: str | None
    changes: dict[str, list[str]]

    def lines(self) -> Iterator[str]:
        """Sentences about where it goes, who sees it and what changes."""
        seen = "private: you alone, or your organisation" if self.private else "PUBLIC: everybody"
        yield f"repository: {self.repo}, {'exists already' if self.head else 'new'}"
        yield f"visible to: {seen}"
        for change, names in self.changes.items():
            if self.head and names:
                yield f"  {CHANGES[change]}: {some([plain(name) for name in names], SHOWN_FILES)}"


def push(
    folder: Path, repo: str, *, private: bool = False, agree: Callable[[Sequence[str]], None]
) -> dict[str, Any]:
    """Publish a model folder or an exported dataset.

    Args:
        folder: Of `capro export-model`, or `capro export --to hf`.
        repo: OWNER/NAME; without an owner it is the user's.
        private: Of a new repository: nobody else sees it.
        agree: Is shown the sentences about what becomes public, and raises an error where they are not agreed to.

    Returns:
        What was done: repository, address, commit and the names of changed files.
    """
    contents = contents_of(folder)
    api = _api()
    with _hub_errors(repo):
        target = _target(api, contents, repo, private)
    agree([*target.lines(), *contents.lines()])
    head = target.head
    done = {change: target.changes[change] for change in ("added", "replaced", "removed")}
    if any(done.values()):
        with _hub_errors(target.repo):
            head = _commit(api, contents, target, parent=head or _create(api, contents, target))
    return {
        "repository": target.repo,
        "kind": contents.kind,
        "private": target.private,
        **done,
        "url": f"{api.endpoint}/{'datasets/' if contents.kind == 'dataset' else ''}{target.repo}",
        "commit": head,
    }


def _api() -> Any:
    from huggingface_hub import HfApi, get_token

    token = get_token()
    if not token:
        raise ConfigError("no token for the Hugging Face hub", hint=LOGIN)
    return HfApi(token=token, library_name="capro", library_version=__version__)


def _target(api: Any, contents: Contents, repo: str, private: bool) -> Target:
    """The repository, asked for under the name of the user whose token it is."""
    from huggingface_hub.errors import RepositoryNotFoundError

    user = api.whoami()["name"]
    name = repo if "/" in repo else f"{user}/{repo}"
    changes: dict[str, list[str]] = {change: [] for change in CHANGES}
    try:
        info = api.repo_info(name, repo_type=contents.kind, files_metadata=True)
    except RepositoryNotFoundError:
        return Target(name, private, None, changes | {"added": [*contents.files]})
    if private and not info.private:
        raise ConfigError(
            f"{name}: the repository is public already, --private is for a new one",
            hint="give another name, make it private in its settings on the hub, or leave --private out",
        )
    there = {each.rfilename: each for each in info.siblings or []}
    there.pop(".gitattributes", None)  # the hub's own
    for file in contents.files:
        if file not in there:
            changes["added"].append(file)
        else:
            changes["unchanged" if _same(contents, file, there[file]) else "replaced"].append(file)
    for file in sorted(there.keys() - contents.files.keys()):
        changes["removed" if _is_ours(contents.kind, file) else "unchanged"].append(file)
    return Target(name, bool(info.private), info.sha, changes)


def _create(api: Any, contents: Contents, target: Target) -> Any:
    """Make the repository, and look at it before anything is uploaded: private must mean private.

    Returns:
        Its first commit.
    """
    api.create_repo(target.repo, repo_type=contents.kind, private=target.private)
    made = api.repo_info(target.repo, repo_type=contents.kind)
    if target.private and not made.private:
        raise StoreError(
            f"{target.repo}: the hub made the repository public, and nothing was uploaded",
            hint="make it private in its settings on the hub, then give the same command again",
        )
    return made.sha


def _same(contents: Contents, name: str, there: Any) -> bool:
    """Whether a file of the repository has the content of the folder's: large files by SHA-256, others as git does."""
    path, size = contents.folder / name, contents.files[name]
    if there.size is not None and there.size != size:
        return False
    if there.lfs is not None:
        return bool(there.lfs.sha256 == sha256_of(str(path)))
    blob = hashlib.sha1(b"blob %d\0" % size + path.read_bytes(), usedforsecurity=False)
    return bool(there.blob_id == blob.hexdigest())


def _commit(api: Any, contents: Contents, target: Target, *, parent: str | None) -> str:
    """Exactly the changes that were shown, in one commit on the one that was looked at."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    new = target.changes["added"] + target.changes["replaced"]
    add = [CommitOperationAdd(name, contents.folder / name) for name in new]
    delete = [CommitOperationDelete(name) for name in target.changes["removed"]]
    try:
        commit = api.create_commit(
            target.repo,
            [*add, *delete],
            repo_type=contents.kind,
            commit_message=f"capro {__version__}: {many(len(add), 'file')}",
            parent_commit=parent,
        )
    except ValueError as error:  # what the hub says of the card's metadata
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"{contents.folder}: the hub refuses it: {reason}", hint="correct README.md, or export it again"
        ) from error
    return str(commit.oid)


@contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    """Errors of the hub and of the network as messages; those of the program stay what they are."""
    from huggingface_hub.errors import HFValidationError

    try:
        with quiet_logger("huggingface_hub"):
            yield
    except CaproError:
        raise
    except HFValidationError as error:
        raise ConfigError(f"{repo}: {first_line(error)}", hint="give OWNER/NAME") from None
    except Exception as error:
        chain: list[Any] = [error]  # and those that it was raised for
        while cause := chain[-1].__cause__ or chain[-1].__context__:
            chain.append(cause)
        answers = [each.response for each in chain if getattr(each, "response", None) is not None]
        if answers:
            raise _refusal(repo, answers[0].status_code, first_line(chain[-1])) from error
        if any(isinstance(each, NETWORK) or type(each).__module__.startswith(FOREIGN) for each in chain):
            raise StoreError(
                f"{repo}: the Hugging Face hub cannot be reached: {first_line(chain[-1])}",
                hint="check the network, then give the same command again; "
                "files are published all together or not at all",
            ) from error
        raise


def _refusal(repo: str, status: int, reason: str) -> StoreError:
    """What an answer of the hub means."""
    if status == 401:
        text, hint = "the hub does not accept the token", LOGIN
    elif status == 403:
        text, hint = "the token may not write there", f"give a repository of your own, or {LOGIN}"
    elif status in (409, 412):
        text = "the repository was changed by somebody else in the meantime, so nothing was uploaded"
        hint = "give the same command again: it shows what is there now"
    elif status == 429 or status >= 500:
        text = f"the hub answers {status}"
        hint = "give the same command again later; files are published all together or not at all"
    else:
        text, hint = f"the hub answers {status}: {reason}", "check the name, and the rights of the token"
    return StoreError(f"{repo}: {text}", hint=hint)


SHARDS = "train-*.parquet"
# what an export leaves: of an earlier one in the same repository it goes, where this one lacks it
OURS = {
    "model": (CARD, MODEL_CONFIG, MODEL_WEIGHTS, MODEL_ONNX, MODEL_VERDICTS, "params.json"),
    "dataset": (CARD, EXPORT_NOTE, EXPORT_DROPPED, EXPORT_CHANGED, SHARDS),
}
SHOWN_FILES, SHOWN_LABELS = 12, 8


@dataclass(frozen=True)
class Contents:
    """What is in a folder that can be published.

    Attributes:
        kind: As the hub calls it.
        folder: The folder.
        files: Bytes by name, relative to the folder.
        labels: Names of the classes.
        about: Sentences about pictures and texts.
    """

    kind: Literal["model", "dataset"]
    folder: Path
    files: dict[str, int]
    labels: Sequence[Any]
    about: list[str]

    def lines(self) -> Iterator[str]:
        """Sentences about what becomes public."""
        names = [plain(str(name), clip=40) for name in self.labels]
        yield f"labels: {many(len(names), 'class', 'classes')}: {some(names, SHOWN_LABELS)}"
        yield from self.about
        yield f"files: {len(self.files):,}, {byte_size(sum(self.files.values()))}"
        largest = sorted(self.files, key=lambda name: (-self.files[name], name))
        foreign = [name for name in largest if not _is_ours(self.kind, name)]
        ours = [name for name in largest if name not in foreign]
        for name in [*foreign, *ours[:SHOWN_FILES]]:
            remark = ", not written by capro" if name in foreign else ""
            yield f"  {plain(name)}, {byte_size(self.files[name])}{remark}"
        if len(ours) > SHOWN_FILES:
            yield f"  and {len(ours) - SHOWN_FILES:,} smaller ones"


def _is_ours(kind: str, name: str) -> bool:
    """Whether an export leaves a file of this name."""
    return any(fnmatch(name, pattern) for pattern in OURS[kind])


def contents_of(folder: Path) -> Contents:
    """Look through a folder that is to be published; one that capro has not made is refused."""
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: no such folder", hint="give a folder made by capro export-model or export"
        )
    if (folder / MODEL_CONFIG).exists():
        for name in (CARD, MODEL_WEIGHTS):
            own_file(folder, name)
        config = parse_model_config(read_model_config(folder), str(folder))
        files = _files(folder)
        about = ["pictures: none; texts: the class names, and the card with the settings of the run"]
        if MODEL_VERDICTS in files:
            with open_parquet(folder / MODEL_VERDICTS) as table:
                samples = many(table.metadata.num_rows, "training sample")
            about.append(f"{MODEL_VERDICTS}: ids, labels and evidence of {samples}")
        return Contents("model", folder, files, config.classes, about)
    if (folder / EXPORT_NOTE).exists():
        return _dataset_contents(folder)
    raise ConfigError(
        f"{folder}: neither a model folder nor an exported dataset",
        hint="make one with `capro export-model RUN --out DIR` or `capro export RUN --out DIR --to hf`",
    )


def _dataset_contents(folder: Path) -> Contents:
    try:
        export = json.loads(read_regular(folder / EXPORT_NOTE))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{folder / EXPORT_NOTE}: {first_line(error)}", hint="export the dataset again"
        ) from None
    kind = export.get("format") if isinstance(export, dict) else None
    if kind != "hf":
        raise ConfigError(
            f"{folder}: a dataset in the format {str(kind)[:40]}, which the hub does not show",
            hint="export it with `capro export RUN --out DIR --to hf`",
        )
    files = _files(folder)
    shards = [folder / name for name in files if fnmatch(name, SHARDS)]
    if not shards or CARD not in files:
        missing = CARD if shards else SHARDS
        raise DataError(f"{folder}: {missing} is missing", hint="export the dataset again")
    pictures, labels, texts = 0, list[Any](), dict.fromkeys(FIELDS, 0)  # texts: how many samples have each
    for shard in shards:
        with open_parquet(shard) as file:
            pictures += file.metadata.num_rows
            names = class_labels(file.schema_arrow)
            labels = names.get("label") or names.get("labels") or labels
            for name in texts.keys() & file.schema_arrow.names:
                cells = file.read(columns=[name])[name].to_pylist()
                texts[name] += sum(bool(cell) for cell in cells)
    listed = 0  # without a picture, since they were dropped or had changed
    for name in (EXPORT_DROPPED, EXPORT_CHANGED):
        for row in whole_records(folder / name) if name in files else []:
            listed += 1
            for column in FIELDS:
                texts[column] += bool(row.cells.get(column))
    counts = [f"{name} of {many(count, 'sample')}" for name, count in texts.items() if count]
    about = [
        f"pictures: {pictures:,}, unchanged, as in the source",
        f"texts of the web: {', '.join(counts) or 'none'}",
    ]
    if listed:
        about.append(f"listed without a picture, with ids and texts: {many(listed, 'sample')}")
    return Contents("dataset", folder, files, labels, about)


def _files(folder: Path) -> dict[str, int]:
    """The files of a folder; links and hidden files are refused, since nobody expects them to be published."""
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_symlink() or any(part.startswith(".") for part in name.parts):
            kind = "a link" if path.is_symlink() else "a hidden file"
            raise ConfigError(f"{path}: {kind}, which is not published", hint="move it out of the folder")
        if path.is_file():
            files[name.as_posix()] = path.stat().st_size
        elif not path.is_dir():
            raise ConfigError(f"{path}: not a file", hint="move it out of the folder")
    return files
