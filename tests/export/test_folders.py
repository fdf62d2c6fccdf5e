"""Names of folders."""

from __future__ import annotations

from capro.export.folders import safe_name, safe_names


def test_safe_names() -> None:
    hostile = ["", ".", "..", "/", "a/../b", "CON", "x" * 300, "a\0b", "\n", "-rf", "é", "e\u0301"]
    names = safe_names(hostile)
    assert len({name.casefold() for name in names.values()}) == len(hostile)
    for name in names.values():
        assert name
        assert not set(name) & set("/\\\0\n. ")
        assert not name.startswith("-")
        assert len(name.encode()) < 200
    assert safe_name("tiger cat") == "tiger_cat"
