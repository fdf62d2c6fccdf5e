"""Publishing a folder on the Hugging Face hub: what becomes public, what changes there, and the one commit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from capro import __version__
from capro.data.readers.table_files import class_labels, open_parquet, whole_records
from capro.errors import CaproError, ConfigError, DataError, StoreError, first_line
from capro.export.model_config import own_file, parse_model_config, read_model_config
from capro.files import read_regular
from capro.models.folders import quiet_hub
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
# whose errors are those of the network
FOREIGN = ("httpx", "httpcore", "requests", "urllib3", "huggingface_hub", "hf_xet")


@dataclass(frozen=True)
class Target:
    """A repository as it is now.

    Attributes:
        repo: OWNER/NAME.
        exists: Whether there is one already.
        private: Whether it is, or will be, seen by its owner alone.
        head: The commit that was looked at; None where there is none.
        changes: What publishing does to its files.
    """

    repo: str
    exists: bool
    private: bool
    head: str | None
    changes: Changes

    def lines(self) -> Iterator[str]:
        """Sentences about where it goes, who sees it and what changes."""
        seen = "private: you alone, or your organisation" if self.private else "PUBLIC: everybody"
        yield f"repository: {self.repo}, {'exists already' if self.exists else 'new'}"
        yield f"visible to: {seen}"
        if self.exists:
            yield from self.changes.lines()


def push(
    folder: Path, repo: str, *, private: bool = False, agree: Callable[[Sequence[str]], bool]
) -> dict[str, Any] | None:
    """Publish a model folder or an exported data set.

    Args:
        folder: Of `capro export-model`, or `capro export --to hf`.
        repo: OWNER/NAME; without an owner it is the user's.
        private: Of a new repository: nobody else sees it.
        agree: Is shown the sentences about what becomes public, and says whether to go on.

    Returns:
        What was done: repository, address, commit and the names of changed files; None where it was not agreed to.
    """
    contents = contents_of(folder)
    api = _api()
    with _hub_errors(repo):
        found = _target(api, contents, repo, private)
    if not agree([*found.lines(), *contents.lines()]):
        return None
    done: dict[str, Any] = {"repository": found.repo, "kind": contents.kind, "private": found.private}
    done |= {name: getattr(found.changes, name) for name in ("added", "replaced", "removed")}
    with _hub_errors(found.repo):
        if found.changes.nothing:
            return done | {"url": _address(api, contents, found), "commit": found.head}
        if not found.exists:
            found = _create(api, contents, found)
        commit = _commit(api, contents, found)
    return done | {"url": _address(api, contents, found), "commit": commit.oid}


def _api() -> Any:
    from huggingface_hub import HfApi, get_token

    token = get_token()
    if not token:
        raise ConfigError("no token for the Hugging Face hub", hint=LOGIN)
    return HfApi(token=token, library_name="capro", library_version=__version__)


def _address(api: Any, contents: Contents, target: Target) -> str:
    return f"{api.endpoint}/{'datasets/' if contents.kind == 'dataset' else ''}{target.repo}"


def _target(api: Any, contents: Contents, repo: str, private: bool) -> Target:
    """The repository, asked for under the name of the user whose token it is."""
    from huggingface_hub.errors import RepositoryNotFoundError

    user = api.whoami()["name"]
    name = repo if "/" in repo else f"{user}/{repo}"
    try:
        info = api.repo_info(name, repo_type=contents.kind, files_metadata=True)
    except RepositoryNotFoundError:
        return Target(name, False, private, None, changes(contents, [], []))
    if private and not info.private:
        raise ConfigError(
            f"{name}: the repository is public already, --private is for a new one",
            hint="give another name, make it private in its settings on the hub, or leave --private out",
        )
    there = {each.rfilename: each for each in info.siblings or []}
    there.pop(".gitattributes", None)  # the hub's own
    same = {name for name in there if name in contents.files and _same(contents, name, there[name])}
    return Target(name, True, bool(info.private), info.sha, changes(contents, [*there], same))


def _create(api: Any, contents: Contents, target: Target) -> Target:
    """Make the repository, and look at it before anything is uploaded: private must mean private."""
    api.create_repo(target.repo, repo_type=contents.kind, private=target.private)
    made = api.repo_info(target.repo, repo_type=contents.kind)
    if target.private and not made.private:
        raise StoreError(
            f"{target.repo}: the hub made the repository public, and nothing was uploaded",
            hint="make it private in its settings on the hub, then give the same command again",
        )
    return replace(target, head=made.sha)


def _same(contents: Contents, name: str, there: Any) -> bool:
    """Whether a file of the repository has the content of the folder's: large files by SHA-256, others as git does."""
    path, size = contents.folder / name, contents.files[name]
    if there.size is not None and there.size != size:
        return False
    if there.lfs is not None:
        return bool(there.lfs.sha256 == sha256_of(str(path)))
    blob = hashlib.sha1(b"blob %d\0" % size + path.read_bytes(), usedforsecurity=False)
    return bool(there.blob_id == blob.hexdigest())


def _commit(api: Any, contents: Contents, target: Target) -> Any:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    wanted = [*target.changes.added, *target.changes.replaced]
    add = [CommitOperationAdd(name, contents.folder / name) for name in wanted]
    delete = [CommitOperationDelete(name) for name in target.changes.removed]
    try:
        return api.create_commit(
            target.repo,
            [*add, *delete],
            repo_type=contents.kind,
            commit_message=f"capro {__version__}: {many(len(add), 'file')}",
            parent_commit=target.head,
        )
    except ValueError as error:  # the hub's word on the metadata of the card
        said = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"{contents.folder}: the hub refuses it: {said}", hint="correct README.md, or export it again"
        ) from error


@contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    """Errors of the hub and of the network as messages; those of the program stay what they are."""
    from huggingface_hub.errors import HFValidationError

    try:
        with quiet_hub():
            yield
    except CaproError:
        raise
    except HFValidationError as error:
        raise ConfigError(f"{repo}: {first_line(error)}", hint="give OWNER/NAME") from None
    except Exception as error:
        chain = [*_chain(error)]
        status = next((found for each in chain if (found := _status(each)) is not None), None)
        if status is not None:
            raise _refusal(repo, status, first_line(chain[-1])) from error
        if any(_is_foreign(each) for each in chain):
            raise StoreError(
                f"{repo}: the Hugging Face hub cannot be reached: {first_line(chain[-1])}",
                hint="check the network, then give the same command again; "
                "files are published all together or not at all",
            ) from error
        raise


def _chain(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    found = getattr(response, "status_code", None)
    return found if isinstance(found, int) else None


def _is_foreign(error: BaseException) -> bool:
    theirs = type(error).__module__.startswith(FOREIGN)
    return theirs or isinstance(error, ConnectionError | json.JSONDecodeError)


def _refusal(repo: str, status: int, said: str) -> StoreError:
    """What an answer of the hub means."""
    if status == 401:
        return StoreError(f"{repo}: the hub does not accept the token", hint=LOGIN)
    if status == 403:
        return StoreError(
            f"{repo}: the token may not write there", hint=f"give a repository of your own, or {LOGIN}"
        )
    if status in (409, 412):
        return StoreError(
            f"{repo}: the repository was changed by somebody else in the meantime, so nothing was uploaded",
            hint="give the same command again: it shows what is there now",
        )
    if status == 429 or status >= 500:
        return StoreError(
            f"{repo}: the hub answers {status}",
            hint="give the same command again later; files are published all together or not at all",
        )
    return StoreError(
        f"{repo}: the hub answers {status}: {said}", hint="check the name, and the rights of the token"
    )


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
        pictures: How many are in it.
        texts: Samples with a text of the web, by column; those that were dropped are counted too.
        listed: Samples that are listed without their picture, since they were dropped or had changed.
    """

    kind: Literal["model", "dataset"]
    folder: Path
    files: dict[str, int]
    labels: list[str]
    pictures: int = 0
    texts: dict[str, int] = field(default_factory=dict)
    listed: int = 0

    def lines(self) -> Iterator[str]:
        """Sentences about what becomes public."""
        names = [plain(name, clip=40) for name in self.labels]
        yield f"labels: {many(len(names), 'class', 'classes')}: {some(names, SHOWN_LABELS)}"
        if self.kind == "model":
            yield "pictures: none; texts: the class names, and the card with the settings of the run"
            if self.listed:
                yield f"{MODEL_VERDICTS}: ids, labels and evidence of {many(self.listed, 'training sample')}"
        else:
            yield f"pictures: {self.pictures:,}, unchanged, as in the source"
            texts = ", ".join(
                f"{name} of {many(count, 'sample')}" for name, count in self.texts.items() if count
            )
            yield f"texts of the web: {texts or 'none'}"
            if self.listed:
                yield f"listed without a picture, with ids and texts: {many(self.listed, 'sample')}"
        total = byte_size(sum(self.files.values()))
        yield f"files: {len(self.files):,}, {total}"
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
        listed = 0
        if MODEL_VERDICTS in files:
            with open_parquet(folder / MODEL_VERDICTS) as table:
                listed = table.metadata.num_rows
        return Contents("model", folder, files, config.classes, listed=listed)
    if (folder / EXPORT_NOTE).exists():
        return _data_set(folder)
    raise ConfigError(
        f"{folder}: neither a model folder nor an exported data set",
        hint="make one with `capro export-model RUN --out DIR` or `capro export RUN --out DIR --to hf`",
    )


def _data_set(folder: Path) -> Contents:
    kind = _note(folder).get("format")
    if kind != "hf":
        raise ConfigError(
            f"{folder}: a data set in the format {str(kind)[:40]}, which the hub does not show",
            hint="export it with `capro export RUN --out DIR --to hf`",
        )
    files = _files(folder)
    shards = [folder / name for name in files if fnmatch(name, SHARDS)]
    if not shards or CARD not in files:
        missing = CARD if shards else SHARDS
        raise DataError(f"{folder}: {missing} is missing", hint="export the data set again")
    pictures, labels, texts = 0, list[str](), dict.fromkeys(FIELDS, 0)
    for shard in shards:
        with open_parquet(shard) as file:
            pictures += file.metadata.num_rows
            names = class_labels(file.schema_arrow)
            labels = names.get("label") or names.get("labels") or labels
            columns = [name for name in FIELDS if name in file.schema_arrow.names]
            for name in columns:
                cells = file.read(columns=[name])[name].to_pylist()
                texts[name] += sum(bool(cell) for cell in cells)
    listed = 0
    for name in (EXPORT_DROPPED, EXPORT_CHANGED):
        for row in whole_records(folder / name) if name in files else []:
            listed += 1
            for column in FIELDS:
                texts[column] += bool(row.cells.get(column))
    return Contents("dataset", folder, files, [*map(str, labels)], pictures, texts, listed)


def _note(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_regular(folder / EXPORT_NOTE))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{folder / EXPORT_NOTE}: {first_line(error)}", hint="export the data set again"
        ) from None
    return found if isinstance(found, dict) else {}


def _files(folder: Path) -> dict[str, int]:
    """The files of a folder; links and hidden files are refused, since nobody expects them to be published."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or any(part.startswith(".") for part in path.relative_to(folder).parts):
            kind = "a link" if path.is_symlink() else "a hidden file"
            raise ConfigError(f"{path}: {kind}, which is not published", hint="move it out of the folder")
        if path.is_file():
            found[name] = path.stat().st_size
        elif not path.is_dir():
            raise ConfigError(f"{path}: not a file", hint="move it out of the folder")
    return found


@dataclass(frozen=True)
class Changes:
    """What publishing does to the files of a repository: names, each in one of the lists.

    Attributes:
        added: Not there yet.
        replaced: There with another content.
        removed: Left by an earlier export, and not in this one.
        same: There with this content.
        kept: There, and none of ours: they stay.
    """

    added: list[str]
    replaced: list[str]
    removed: list[str]
    same: list[str]
    kept: list[str]

    @property
    def nothing(self) -> bool:
        """Whether the repository is as it would become."""
        return not (self.added or self.replaced or self.removed)

    def lines(self) -> Iterator[str]:
        """Sentences about a repository that exists."""
        for verb, names in (
            ("added", self.added),
            ("REPLACED", self.replaced),
            ("REMOVED", self.removed),
            ("left as they are", [*self.same, *self.kept]),
        ):
            if names:
                yield f"  {verb}: {some([plain(name) for name in names], SHOWN_FILES)}"


def changes(contents: Contents, there: Sequence[str], same: Sequence[str] | set[str]) -> Changes:
    """Compare a folder with the files of a repository.

    Args:
        contents: Of the folder.
        there: Names of the repository's files.
        same: Those of them whose content is that of the folder's.
    """
    found = set(there)
    gone = sorted(found - contents.files.keys())
    removed = [name for name in gone if _is_ours(contents.kind, name)]
    return Changes(
        added=[name for name in contents.files if name not in found],
        replaced=[name for name in contents.files if name in found and name not in same],
        removed=removed,
        same=[name for name in contents.files if name in found and name in same],
        kept=[name for name in gone if name not in removed],
    )
