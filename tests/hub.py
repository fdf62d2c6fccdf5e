"""A stand-in for the Hugging Face hub: the requests that `huggingface_hub` makes to publish, on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN, USER = "hf_token_of_a_test", "ann"
LFS = (".safetensors", ".parquet", ".onnx")  # what the hub stores beside git


@dataclass
class Repository:
    """Files by name; each commit has a number."""

    private: bool
    files: dict[str, bytes] = field(default_factory=lambda: {".gitattributes": b"*.parquet lfs\n"})
    commits: list[str] = field(default_factory=lambda: [f"{1:040x}"])

    def info(self, name: str) -> dict[str, Any]:
        return {"id": name, "sha": self.commits[-1], "private": self.private, "tags": [], "downloads": 0, "likes": 0,
                "siblings": [_sibling(*each) for each in self.files.items()]}  # fmt: skip


def _sibling(name: str, data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"rfilename": name, "size": len(data)}
    if name.endswith(LFS):
        found["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return found | {"blobId": "0" * 40}
    return found | {"blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}


@dataclass
class Hub:
    """What it holds, what it was asked, and how it misbehaves.

    Attributes:
        repositories: By kind and name: ``models/ann/m``.
        stored: Large files by their SHA-256.
        asked: Every request, in order.
        faults: A piece of a request -> the status of its answer; 0 closes the connection without one.
        card_errors: What it says about the metadata of a card.
        meanwhile: Called before a commit is taken.
        deaf: Makes public what is to be private.
    """

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    card_errors: list[str] = field(default_factory=list)
    meanwhile: Any = lambda: None
    deaf: bool = False

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if path == "/api/whoami-v2":
            return 200, {"type": "user", "name": USER}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            found = {"errors": [{"message": text} for text in self.card_errors], "warnings": []}
            return 400 if self.card_errors else 200, found
        if path.startswith("/stored/"):
            return self._store(path.rpartition("/")[2], body)
        if found := re.fullmatch(r"/(datasets/)?(.+)\.git/info/lfs/objects/batch", path):
            return 200, {"transfer": "basic", "objects": [*map(self._large, json.loads(body)["objects"])]}
        found = re.fullmatch(r"/api/((?:models|datasets)/[^/]+/[^/]+)(?:/(preupload|commit)/main)?", path)
        if found is None:
            return 400, {"error": f"the stand-in does not know {method} {path}"}
        repository = self.repositories.get(found[1])
        if repository is None:
            return 404, {"error": "Repository not found"}
        if found[2] == "preupload":
            files = json.loads(body)["files"]
            return 200, {"files": [_mode(each["path"]) for each in files]}
        if found[2] == "commit":
            return self._commit(found[1], repository, [json.loads(line) for line in body.splitlines()])
        return 200, repository.info(found[1].partition("/")[2])

    def _create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        owner = asked.get("organization") or USER
        if owner != USER:
            return 403, {"error": f"You don't have the rights to create a repository under {owner}"}
        key = f"{asked.get('type', 'model')}s/{owner}/{asked['name']}"
        if key in self.repositories:
            return 409, {"error": "You already created this repository"}
        private = asked.get("visibility") == "private" or bool(
            asked.get("private")
        )  # newer and older clients
        self.repositories[key] = Repository(private=private and not self.deaf)
        return 200, {
            "url": f"{self.address}/{key.removeprefix('models/')}",
            "name": f"{owner}/{asked['name']}",
        }

    def _large(self, each: dict[str, Any]) -> dict[str, Any]:
        if each["oid"] in self.stored:
            return each
        return each | {"actions": {"upload": {"href": f"{self.address}/stored/{each['oid']}"}}}

    def _store(self, oid: str, body: bytes) -> tuple[int, Any]:
        if hashlib.sha256(body).hexdigest() != oid:
            return 400, {"error": "not the file that was announced"}
        self.stored[oid] = body
        return 200, {}

    def _commit(self, key: str, repository: Repository, lines: list[dict[str, Any]]) -> tuple[int, Any]:
        self.meanwhile()
        parent = lines[0]["value"].get("parentCommit")
        if parent is not None and parent != repository.commits[-1]:
            return 412, {"error": "A commit has happened since. Please refresh and try again."}
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                repository.files[value["path"]] = self.stored[value["oid"]]
            elif line["key"] == "deletedFile":
                del repository.files[value["path"]]
        repository.commits.append(f"{len(repository.commits) + 1:040x}")
        head = repository.commits[-1]
        return 200, {"commitUrl": f"{self.address}/{key}/commit/{head}", "commitOid": head, "success": True}


def _mode(path: str) -> dict[str, Any]:
    return {"path": path, "uploadMode": "lfs" if path.endswith(LFS) else "regular", "shouldIgnore": False}


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub at an address of this machine."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            asked = f"{self.command} {path}"
            hub.asked.append(asked)
            status = next((code for piece, code in hub.faults.items() if piece in asked), None)
            if status == 0:
                self.close_connection = True
                return
            known = self.headers.get("Authorization") == f"Bearer {TOKEN}" or path.startswith("/stored/")
            if status is not None:
                found: tuple[int, Any] = status, {"error": "as the test wants it"}
            else:
                found = (
                    hub.answer(self.command, path, body) if known else (401, {"error": "Invalid credentials"})
                )
            text = json.dumps(found[1]).encode()
            self.send_response(found[0])
            if found[0] == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = handle_any

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
