"""YAML that others wrote."""

from __future__ import annotations

import random

import pytest
import yaml

from capro.files import compose_yaml, parse_yaml, problem_of

BOMB = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (BOMB, 2, "the alias *a is not accepted"),
        ("x: 1\ny: " + "[" * 5000 + "]" * 5000, 2, "nested more than 40 levels"),
        ("\nwhen: 2024-13-45", 2, "'2024-13-45' is not a valid timestamp"),
        ("n: " + "9" * 5000, 1, "is not a valid int"),
        ("x: !!bool maybe", 1, "'maybe' is not a valid bool"),
        ("x: !!timestamp now", 1, "is not a valid timestamp"),
        ("x: !!int ''", 1, "is not a valid int"),
        ("x: !!python/object/apply:os.system [ls]", 1, "could not determine a constructor"),
        ("a: b\x00", None, "not allow"),
    ],
)
def test_what_is_refused_with_its_line(text: str, line: int | None, problem: str) -> None:
    with pytest.raises(yaml.YAMLError) as caught:
        parse_yaml(text)
    found, wrong = problem_of(caught.value)
    assert problem in wrong
    assert len(wrong) < 300
    assert found == line
    if "alias" in problem or "levels" in problem:
        with pytest.raises(yaml.YAMLError):
            compose_yaml(text)


def test_any_text_is_values_or_an_error_of_yaml() -> None:
    pieces = [
        "a",
        ": ",
        "\n",
        "- ",
        "[",
        "]",
        "{",
        "}",
        "&a ",
        "*a ",
        "2024-99-99",
        "'",
        '"',
        "<<",
        "? ",
        "|",
        "0x",
    ]
    pieces += ["1_", ".inf", "~", "\t", "%", "@", "!!int ", "!!set ", "!!omap ", "!!binary ", "!!float "]
    draw = random.Random(0)
    for _ in range(4000):
        text = "".join(draw.choices(pieces, k=draw.randrange(1, 9)))
        try:
            parse_yaml(text)
        except yaml.YAMLError as error:
            problem_of(error)
