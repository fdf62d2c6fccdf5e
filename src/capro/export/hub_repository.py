"""A repository on the Hugging Face hub: what is there, and the one commit that publishes a folder.

All requests go through the `huggingface_hub` package, which knows the token (`hf auth login` or ``HF_TOKEN``) and the
address (``HF_ENDPOINT``). A commit is taken whole or not at all, and only upon the state that was shown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from capro import __version__
from capro.errors import CaproError, ConfigError, StoreError, first_line
from capro.export.publishing import Changes, Contents, changes, contents_of
from capro.model_folders import quiet_hub
from capro.run.checksums import sha256_of
from capro.wording import many

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
