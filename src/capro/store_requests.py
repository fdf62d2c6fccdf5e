"""Requests to an object store, through fsspec.

A request has a time limit, is repeated with growing waits while its error may pass, and then is a ``StoreError``
that names the address. That an object is not there is an answer, not such an error: it stays a ``FileNotFoundError``.
Nothing is imported from fsspec before a request is made.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from capro.errors import ConfigError, StoreError, first_line

T = TypeVar("T")
PROTOCOLS: dict[str, str | None] = {"s3": "s3fs", "gs": "gcsfs", "memory": None}  # and the package of each
WAITS = (0.5, 1.0, 2.0, 4.0)  # seconds before a request is repeated
LIMIT = 60.0  # seconds for a request, and for a transfer one more for each SLOWEST bytes
LISTING = 600.0  # seconds for a listing: a thousand objects are a request of their own
SLOWEST = 1 << 20
# answers about the object itself: nothing is gained by asking again
FACTS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, FileExistsError)
_FINAL = (PermissionError, ValueError, TypeError, NotImplementedError, ImportError)
_CREDENTIALS = re.compile(r"Credential|RefreshError|ProfileNotFound|TokenRetrieval|SSO")  # in names of errors


class Address(Protocol):
    """What a request is about; its text names it in errors."""

    @property
    def protocol(self) -> str:
        """Before ``://``."""


def masked(text: str) -> str:
    """A text without what may be a password or a signature.

    >>> masked("PUT https://me:secret@host/a?X-Amz-Signature=12ab&x=1 failed")
    'PUT https://***@host/a?X-Amz-Signature=***&x=1 failed'
    """
    text = re.sub(r"//[^/\s@]+@", "//***@", text)
    secret = r"([?&](?:X-Amz-[\w-]+|X-Goog-[\w-]+|AWSAccessKeyId|Signature|sig|[\w-]*token)=)[^&\s'\"]+"
    return re.sub(secret, r"\1***", text, flags=re.IGNORECASE)


def ask(
    path: Address,
    call: Callable[[Any], T],
    *,
    size: int = 0,
    seconds: float | None = None,
    missing_may_pass: bool = False,
) -> T:
    """What a store answers.

    Args:
        path: Named in the error.
        call: Gets the file system.
        size: Bytes that are transferred: they lengthen the time limit.
        seconds: The time limit without them; LIMIT if unset.
        missing_may_pass: An object that is not there was written just now: ask again.
    """
    store = _file_system(path.protocol, os.getpid())
    for wait in (*WAITS, None):
        try:
            return _within(lambda: call(store), (seconds or LIMIT) + size / SLOWEST)
        except Exception as error:
            passing = missing_may_pass and isinstance(error, FileNotFoundError)
            if isinstance(error, FACTS) and not passing:
                raise _answered(path, error) from None
            if _refused(error) or wait is None:
                raise _explained(path, error) from None
        time.sleep(wait)
    raise AssertionError("unreachable")  # the last wait is None


def _answered(path: Address, error: OSError) -> OSError:
    """An answer with a number, a text and the address, as errors of a disk have them; stores leave them out."""
    number, text = {
        FileNotFoundError: (errno.ENOENT, "no such object"),
        FileExistsError: (errno.EEXIST, "exists already"),
        IsADirectoryError: (errno.EISDIR, "is a folder, not a file"),
    }.get(type(error), (errno.ENOTDIR, "is below a file"))
    return type(error)(number, text, str(path))


def _within(call: Callable[[], T], seconds: float) -> T:
    """What a call returns within a time; one that hangs is left to itself."""
    found: list[T] = []
    problem: list[BaseException] = []

    def work() -> None:
        try:
            found.append(call())
        except BaseException as error:  # raised again by whoever waits
            problem.append(error)

    thread = threading.Thread(target=work, daemon=True, name="capro-store")
    thread.start()
    thread.join(seconds)
    if problem:
        raise problem[0]
    if not found:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return found[0]


def _refused(error: Exception) -> bool:
    """Whether a store will say the same again."""
    return isinstance(error, _FINAL) or _CREDENTIALS.search(type(error).__name__) is not None


def _explained(path: Address, error: Exception) -> StoreError:
    said = masked(first_line(error))
    if isinstance(error, PermissionError) or _CREDENTIALS.search(type(error).__name__):
        return StoreError(
            f"{path}: access denied: {said}",
            hint=f"check the credentials for {path.protocol}:// and the rights to this address (docs/storage.md)",
        )
    if _refused(error):
        return StoreError(f"{path}: {type(error).__name__}: {said}", hint="check the address")
    return StoreError(
        f"{path}: the store cannot be reached, tried {len(WAITS) + 1} times: {said}",
        hint="check the network, then give the same command again: it continues where it stopped",
    )


@lru_cache(maxsize=16)
def _file_system(protocol: str, _process: int) -> Any:
    """The file system of fsspec, one for all threads; a forked process needs its own."""
    package = PROTOCOLS[protocol]
    missing = ConfigError(
        f"{protocol}:// needs the package {package}", hint=f'pip install "capro[{protocol}]"'
    )
    try:
        import fsspec

        return fsspec.filesystem(protocol, use_listings_cache=False, skip_instance_cache=True)
    except ImportError:
        if package is None:
            raise
        raise missing from None
    except Exception as error:  # each package has its own for settings that it does not like
        raise StoreError(
            f"{protocol}://: {type(error).__name__}: {masked(first_line(error))}",
            hint="check the settings of this store (docs/storage.md)",
        ) from None
