"""Paths that may be addresses of an object store (``s3://``, ``gs://``), by fsspec, with time limits and retries."""

from __future__ import annotations

import errno
import fnmatch
import io
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

from capro.errors import ConfigError, StoreError, first_line
from capro.files import NotAFileError, open_regular

T = TypeVar("T")
PROTOCOLS = {"s3": "s3fs", "gs": "gcsfs", "memory": "fsspec"}  # and the package of each
WAITS = (0.5, 1.0, 2.0, 4.0)  # seconds before a request is repeated
LIMIT = 60.0  # seconds for a request, and for a transfer one more for each SLOWEST bytes
LISTING = 600.0  # seconds for a listing: a thousand objects are a request of their own
SLOWEST = 1 << 20
# answers about the object itself: the request is not repeated
ANSWERS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, FileExistsError)
_FINAL = (PermissionError, ValueError, TypeError, NotImplementedError, ImportError)
_CREDENTIALS = re.compile(r"Credential|RefreshError|ProfileNotFound|TokenRetrieval|SSO")  # in names of errors


def masked(text: str) -> str:
    """A text without what may be a password or a signature.

    >>> masked("PUT https://me:secret@host/a?X-Amz-Signature=12ab&x=1 failed")
    'PUT https://***@host/a?X-Amz-Signature=***&x=1 failed'
    """
    text = re.sub(r"//[^/\s@]+@", "//***@", text)
    secret = r"([?&](?:X-Amz-[\w-]+|X-Goog-[\w-]+|AWSAccessKeyId|Signature|sig|[\w-]*token)=)[^&\s'\"]+"
    return re.sub(secret, r"\1***", text, flags=re.IGNORECASE)


def request(
    path: ObjectPath,
    call: Callable[[Any], T],
    *,
    size: int = 0,
    seconds: float | None = None,
    retry_missing: bool = False,
) -> T:
    """The answer of a store; retryable errors are repeated.

    Args:
        path: Named in the error.
        call: Gets the file system.
        size: Bytes that are transferred: they lengthen the time limit.
        seconds: The time limit without them; LIMIT if unset.
        retry_missing: The object was written just now: that it is missing is a retryable error.
    """
    store = _file_system(path.protocol, os.getpid())
    for pause in (*WAITS, None):
        try:
            return _within(lambda: call(store), (seconds or LIMIT) + size / SLOWEST)
        except Exception as error:
            missing = retry_missing and isinstance(error, FileNotFoundError)
            if isinstance(error, ANSWERS) and not missing:
                raise _answered(path, error) from None
            if _is_final(error) or pause is None:
                raise _explained(path, error) from None
        time.sleep(pause)
    raise AssertionError("unreachable")  # the last pause is None


def _answered(path: ObjectPath, error: OSError) -> OSError:
    """An answer with a number, a text and the address, as errors of a disk have them; stores leave them out."""
    number, text = {
        FileNotFoundError: (errno.ENOENT, "no such object"),
        FileExistsError: (errno.EEXIST, "exists already"),
        IsADirectoryError: (errno.EISDIR, "is a folder, not a file"),
    }.get(type(error), (errno.ENOTDIR, "is below a file"))
    return type(error)(number, text, str(path))


def _within(call: Callable[[], T], seconds: float) -> T:
    """The result of a call within a time limit; the thread of one that hangs is left behind."""
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # raised again by whoever waits
            answer.set_exception(error)

    threading.Thread(target=work, daemon=True, name="capro-store").start()
    if not wait([answer], seconds).done:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return answer.result()


def _is_final(error: Exception) -> bool:
    """Whether a store would give the same error again."""
    return isinstance(error, _FINAL) or _CREDENTIALS.search(type(error).__name__) is not None


def _explained(path: ObjectPath, error: Exception) -> StoreError:
    message = masked(first_line(error))
    if isinstance(error, PermissionError) or _CREDENTIALS.search(type(error).__name__):
        return StoreError(
            f"{path}: access denied: {message}",
            hint=f"check the credentials for {path.protocol}:// and the rights to this address (docs/storage.md)",
        )
    if _is_final(error):
        return StoreError(f"{path}: {type(error).__name__}: {message}", hint="check the address")
    return StoreError(
        f"{path}: the store cannot be reached, tried {len(WAITS) + 1} times: {message}",
        hint="check the network, then give the same command again: it continues where it stopped",
    )


@lru_cache(maxsize=16)
def _file_system(protocol: str, _process: int) -> Any:
    """The file system of fsspec, one for all threads; a forked process needs its own."""
    import fsspec

    try:
        return fsspec.filesystem(protocol, use_listings_cache=False, skip_instance_cache=True)
    except ImportError:
        raise ConfigError(
            f"{protocol}:// needs the package {PROTOCOLS[protocol]}", hint=f'pip install "capro[{protocol}]"'
        ) from None
    except Exception as error:  # each package has its own for settings that it does not like
        raise StoreError(
            f"{protocol}://: {type(error).__name__}: {masked(first_line(error))}",
            hint="check the settings of this store (docs/storage.md)",
        ) from None


TEXT_BUFFER = 8 << 20  # bytes that a file which is read from begin to end asks for at once
INFO = "info"  # the attribute of an address that holds what the store has answered about its object
TIMES = ("LastModified", "mtime", "updated", "created")  # as stores call them
VERSIONS = ("ETag", "etag", "md5Hash", "generation", *TIMES)
_ADDRESS = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://(.*)$", re.DOTALL)


def is_address(text: object) -> bool:
    """Whether a text is an address rather than a path of this machine.

    >>> is_address("s3://bucket/data"), is_address("data/train"), is_address("hub:owner/name")
    (True, False, False)
    """
    return isinstance(text, ObjectPath) or (isinstance(text, str) and _ADDRESS.match(text) is not None)


def refuse_credentials(text: str, shown: str) -> None:
    """Refuse an address with a user's name or a password: it would be printed and written down.

    >>> refuse_credentials("s3://bucket/a@b.jpg", "data.source")
    >>> refuse_credentials("s3://me:secret@bucket/data", "data.source")
    Traceback (most recent call last):
    capro.errors.ConfigError: data.source: an address with a user's name or a password
    """
    match = _ADDRESS.match(text)
    if match is not None and "@" in match[2].partition("/")[0]:
        raise ConfigError(
            f"{shown}: an address with a user's name or a password",
            hint="leave them out; give credentials in the environment or in the store's own files (docs/storage.md)",
        )


def any_path(text: str | AnyPath) -> AnyPath:
    """A path of this machine, or an address that has been checked."""
    if not isinstance(text, str):
        return text
    match = _ADDRESS.match(text)
    if match is None:
        return Path(text)
    protocol, key = match[1].lower(), match[2].strip("/")
    refuse_credentials(text, masked(text))
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"{text}: no protocol {protocol!r}",
            hint=f"known: {', '.join(f'{name}://' for name in PROTOCOLS)}",
        )
    if _leaves(key):
        raise ConfigError(f"{text}: not an address", hint=f"{protocol}://BUCKET/FOLDER, without empty parts")
    return ObjectPath(protocol, key)


def _leaves(key: str) -> bool:
    """Whether a key has parts that are empty or lead to another folder."""
    return any(part in ("", ".", "..") for part in key.split("/"))


def local_path(text: str | Path, option: str) -> Path:
    """A path of this machine, for what cannot be an address."""
    if is_address(text):
        raise ConfigError(
            f"{option} {masked(str(text))}: cannot be an address of an object store",
            hint="copy it to this machine, and give its path",
        )
    return Path(text)


@dataclass(frozen=True, order=True)
class ObjectPath:
    """An address in an object store, with the part of ``pathlib.Path`` that readers use.

    What is known of the object is what it was when it was first looked at.

    >>> shard = ObjectPath("s3", "bucket/shards/00001.tar")
    >>> str(shard), shard.name, shard.stem, shard.suffix, str(shard.parent), str(shard.parent / "a.csv")
    ('s3://bucket/shards/00001.tar', '00001.tar', '00001', '.tar', 's3://bucket/shards', 's3://bucket/shards/a.csv')
    """

    protocol: str
    key: str

    def __str__(self) -> str:
        return f"{self.protocol}://{self.key}"

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.protocol, f"{self.key}/{name}".rstrip("/"))

    @property
    def name(self) -> str:
        """The last part."""
        return PurePosixPath(self.key).name

    @property
    def stem(self) -> str:
        """The last part without its ending."""
        return PurePosixPath(self.key).stem

    @property
    def suffix(self) -> str:
        """The ending, with its dot."""
        return PurePosixPath(self.key).suffix

    @property
    def parent(self) -> ObjectPath:
        """The folder; that of a bucket is the bucket."""
        return ObjectPath(self.protocol, self.key.rpartition("/")[0] or self.key)

    def resolve(self) -> ObjectPath:
        """An address has no links."""
        return self

    # --- looking ----------------------------------------------------------------------------------

    @property
    def _info(self) -> Mapping[str, Any]:
        """What the store says of it; empty where it is not there."""
        if INFO not in self.__dict__:  # no cached_property: Python 3.11 lets one thread at a time compute it
            try:
                self.__dict__[INFO] = request(self, lambda store: store.info(self.key))
            except (FileNotFoundError, NotADirectoryError):
                self.__dict__[INFO] = {}
        info: Mapping[str, Any] = self.__dict__[INFO]
        return info

    def exists(self) -> bool:
        """Whether it is an object or has objects below it."""
        return bool(self._info)

    def is_file(self) -> bool:
        """Whether it is an object."""
        return self._info.get("type") == "file"

    def is_dir(self) -> bool:
        """Whether it has objects below it."""
        return self._info.get("type") == "directory"

    @property
    def size(self) -> int:
        """Bytes of the object, which must be one."""
        if not self._info:
            raise FileNotFoundError(errno.ENOENT, "no such object", str(self))
        if not self.is_file():
            raise IsADirectoryError(errno.EISDIR, "is a folder, not a file", str(self))
        if not isinstance(self._info.get("size"), int):
            raise NotAFileError(errno.EINVAL, "has no size, so it is not a file", str(self))
        return int(self._info["size"])

    @property
    def version(self) -> str:
        """What changes with the content: a hash, a generation or a time, as the store offers it."""
        name = next((name for name in VERSIONS if self._info.get(name)), None)
        if name is None:
            return ""
        value = self._info[name]  # a listing may give a number where a look at the object gives a time
        return f"{name}={value.timestamp() if hasattr(value, 'timestamp') else value}".replace('"', "")

    @property
    def modified(self) -> float:
        """When it was written, in seconds; 0 where the store does not say."""
        value = next((self._info[name] for name in TIMES if self._info.get(name)), 0.0)
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        return float(moment.timestamp() if isinstance(moment, datetime) else moment)

    def iterdir(self) -> Iterator[ObjectPath]:
        """What is in a folder, sorted by name. One listing."""
        listing = request(self, lambda store: store.ls(self.key, detail=True), seconds=LISTING)
        return iter(sorted(self._with_info(info) for info in listing if info["name"].strip("/") != self.key))

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """The objects in a folder (none below it) whose names fit a pattern."""
        return (each for each in self.iterdir() if fnmatch.fnmatchcase(each.name, pattern) and each.is_file())

    def below(self) -> dict[str, ObjectPath]:
        """All objects below a folder by their name in it; empty where it is not there.

        Names that would leave a folder of this machine (``a/../b``) are left out.
        """
        try:
            listing = request(self, lambda store: store.find(self.key, detail=True), seconds=LISTING)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        objects = [self._with_info(info) for info in listing.values() if info.get("type") == "file"]
        named = {
            each.key.removeprefix(f"{self.key}/"): each for each in sorted(objects) if each.key != self.key
        }
        return {name: each for name, each in named.items() if not _leaves(name)}

    def _with_info(self, info: Mapping[str, Any]) -> ObjectPath:
        path = ObjectPath(self.protocol, info["name"].strip("/"))
        path.__dict__[INFO] = info
        return path

    # --- reading ----------------------------------------------------------------------------------

    def read_range(self, offset: int, size: int) -> bytes:
        """Bytes of an object that has at least so many; fewer than asked for is a retryable error."""
        if size <= 0:
            return b""

        def read(store: Any) -> bytes:
            data: bytes = store.cat_file(self.key, start=offset, end=offset + size)
            return _whole(data, size)

        return request(self, read, size=size)

    def read_bytes(self, most: int | None = None) -> bytes:
        """The content of an object, but no more than ``most`` bytes."""
        return self.read_range(0, self.size if most is None else min(self.size, most))

    def read_now(self) -> bytes:
        """The content of a small object that others may replace meanwhile, as it is now."""

        def read(store: Any) -> bytes:
            size = store.info(self.key)["size"]
            return _whole(bytes(store.cat_file(self.key)), size)  # the object may be replaced between the two

        return request(self, read)

    def open(self, *, buffering: int = TEXT_BUFFER) -> BinaryIO:
        """The object as a file to read bytes from; each request asks for ``buffering`` bytes, 0: as asked for."""
        raw = _ObjectFile(self)
        return raw if buffering == 0 else io.BufferedReader(raw, buffering)  # type: ignore[return-value]

    def fetch(self, target: Path) -> None:
        """Copy the object to a file of this machine; whoever calls renames it."""

        def get(store: Any) -> None:
            store.get_file(self.key, str(target))
            if target.stat().st_size != self.size:
                raise OSError(f"{target.stat().st_size} bytes came instead of {self.size}")

        request(self, get, size=self.size)

    # --- writing ----------------------------------------------------------------------------------

    def upload(self, source: Path) -> ObjectPath:
        """Copy a file of this machine to the object; returns it as it is now."""
        size = source.stat().st_size
        return self._written(size, lambda store: store.put_file(str(source), self.key))

    def write_bytes(self, data: bytes, *, new: bool = False) -> ObjectPath:
        """Write a small object.

        ``new`` refuses one that exists (FileExistsError), in one step where the store can. After a retry it may be
        our own that exists.
        """
        mode = {"mode": "create"} if new else {}
        return self._written(len(data), lambda store: store.pipe_file(self.key, data, **mode))

    def _written(self, size: int, write: Callable[[Any], None]) -> ObjectPath:
        """Write, then look whether the store has all of it."""

        def put(store: Any) -> ObjectPath:
            write(store)
            info = store.info(self.key)
            if info.get("size") != size:
                raise OSError(f"the store has {info.get('size')} bytes of {size}")
            return self._with_info({**info, "name": self.key})

        return request(self, put, size=size, retry_missing=True)

    def remove(self) -> None:
        """Remove the object, if it is there."""
        try:
            request(self, lambda store: store.rm_file(self.key))
        except FileNotFoundError:
            return


AnyPath = Path | ObjectPath


def _whole(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise OSError(f"{len(data)} bytes came instead of {size}")
    return data


class _ObjectFile(io.RawIOBase):
    """An object as a seekable file; its length is what it was at the beginning."""

    def __init__(self, path: ObjectPath) -> None:
        super().__init__()
        self._path, self._length, self._at = path, path.size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = max(0, begin + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._path.read_range(self._at, min(len(buffer), self._length - self._at))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def open_bytes(path: AnyPath, *, buffering: int | None = None) -> BinaryIO:
    """A regular file or an object, to read bytes from."""
    if isinstance(path, ObjectPath):
        return path.open(buffering=TEXT_BUFFER if buffering is None else buffering)
    return open_regular(path, buffering=-1 if buffering is None else buffering)


def state_of(path: AnyPath) -> tuple[int, int | str]:
    """Size, and time or version: another one after the file was changed."""
    if isinstance(path, ObjectPath):
        return path.size, path.version
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns
