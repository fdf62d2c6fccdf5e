"""Tars by their headers: hostile sizes, damaged headers, long names."""

from __future__ import annotations

import io
import os
import random
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capro.data.readers.tar_members import READ_AHEAD, Gap, Member, members, open_shard, read_at
from tests.data.scanning import write_tar

CONTENT = bytes(os.urandom(READ_AHEAD)) * 3


def read(path: Path) -> list[Member | Gap]:
    with open_shard(path) as file:
        return [*members(file)]


def with_size(path: Path, size: bytes, name: bytes = b"b.txt") -> None:
    """Give a member another size, with the right checksum."""
    data = bytearray(path.read_bytes())
    at = data.index(name)
    data[at + 124 : at + 136] = size
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    path.write_bytes(data)


NEGATIVE = b"\xff" * 10 + b"\xfc\x00"  # -1024 as a binary number: back to the header before


@pytest.mark.parametrize(
    "size", [NEGATIVE, b"-0000002000\0", b"\x80" + b"\xff" * 11, b"77777777777\0", b"9999\0" * 2 + b"\0\0"]
)
def test_a_member_of_negative_or_impossible_size_ends(tmp_path: Path, size: bytes) -> None:
    write_tar(tmp_path / "s.tar", [(f"{key}.txt", b"hello") for key in "abc"])
    with_size(tmp_path / "s.tar", size)
    first, gap, last = read(tmp_path / "s.tar")
    assert (first.name, last.name) == ("a.txt", "c.txt")
    assert isinstance(gap, Gap)
    assert not gap.final


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_and_places_are_those_of_tarfile(tmp_path: Path, form: int) -> None:
    names = ["a.jpg", "ü.txt", f"{'d' * 80}/{'n' * 90}.json", "x" * 99]
    names += [] if form == tarfile.USTAR_FORMAT else ["long" * 100 + ".txt", "ä" * 120]
    with tarfile.open(tmp_path / "s.tar", "w", format=form) as tar:
        for number, name in enumerate(names):
            info = tarfile.TarInfo(name)
            info.size = number * 300
            info.pax_headers = {"comment": "ü\n" * number} if form == tarfile.PAX_FORMAT else {}
            tar.addfile(info, io.BytesIO(b"x" * info.size))
        tar.addfile(_typed("folder", tarfile.DIRTYPE))
        tar.addfile(_typed("link", tarfile.SYMTYPE))
    with tarfile.open(tmp_path / "s.tar") as tar:
        expected = [(info.name, info.offset_data, info.size) for info in tar if info.isfile()]
    found = [each for each in read(tmp_path / "s.tar") if isinstance(each, Member)]
    assert [(each.name, each.offset, each.size) for each in found if each.kind == "file"] == expected
    assert [each.kind for each in found if each.kind != "file"] == ["folder", "other"]


def _typed(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    return info


@pytest.mark.parametrize("records", [
    {"GNU.sparse.map": "a,b,c", "GNU.sparse.size": "5"},
    {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "x", "GNU.sparse.name": "a.jpg"},
])  # fmt: skip
def test_sparse_maps_are_not_followed(tmp_path: Path, records: dict[str, str]) -> None:
    with tarfile.open(tmp_path / "s.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.jpg")
        info.size, info.pax_headers = 5, records
        tar.addfile(info, io.BytesIO(b"hello"))
        tar.addfile(tarfile.TarInfo("b.txt"))
    found = read(tmp_path / "s.tar")
    assert [each.name for each in found] == ["a.jpg", "b.txt"]
    assert isinstance(found[0], Member)
    assert found[0].kind == "sparse"


def test_a_tar_behind_another_is_read(tmp_path: Path) -> None:
    write_tar(tmp_path / "s.tar", [("a.txt", b"1")])
    (tmp_path / "s.tar").write_bytes((tmp_path / "s.tar").read_bytes() * 2)
    assert [each.name for each in read(tmp_path / "s.tar")] == ["a.txt", "a.txt"]


def test_a_pax_size_that_is_no_number(tmp_path: Path) -> None:
    write_tar(tmp_path / "s.tar", [("a.txt", b"1")])
    with tarfile.open(tmp_path / "p.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("b.txt")
        info.pax_headers = {"size": "-512"}
        tar.addfile(info)
    found = read(tmp_path / "p.tar")
    assert any(isinstance(each, Gap) and "'-512'" in each.detail for each in found)


def test_mutated_tars_end_and_stay_within_the_file(tmp_path: Path) -> None:
    write_tar(tmp_path / "s.tar", [(f"{key}.txt", b"hello" * 50) for key in "abcdef"])
    whole, draw = (tmp_path / "s.tar").read_bytes()[:7000], random.Random(0)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        (tmp_path / "m.tar").write_bytes(damaged[: draw.randrange(len(damaged))])
        length = (tmp_path / "m.tar").stat().st_size
        found = read(tmp_path / "m.tar")
        assert len(found) <= 8
        assert all(each.offset + each.size <= length for each in found if isinstance(each, Member))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranges") / "file"
    path.write_bytes(CONTENT)
    return path


@given(st.lists(st.tuples(st.integers(0, len(CONTENT) + 10), st.integers(0, 2 * READ_AHEAD)), max_size=30))
@settings(deadline=None)
def test_bytes_are_those_of_the_file(file: Path, asked: list[tuple[int, int]]) -> None:
    with open_shard(file) as shard:
        for at, size in asked:
            assert read_at(shard, at, size) == CONTENT[at : at + size]
