from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capro.errors import ConfigError, DataError
from capro.models import classes, wordnet
from capro.models.classes import ClassSpec, class_text, draft, has_meaning, load_classes, save_classes
from capro.models.senses import Candidate, Suggestion

TIGER = wordnet.resolve("n02129604")


def write(tmp_path, text):
    path = tmp_path / "classes.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_load_reads_names_and_mappings(tmp_path):
    path = write(
        tmp_path,
        "- tiger\n"
        "- {name: no, sense: n02123159, ambiguous: true}\n"
        "- name: 101\n"
        "  definition: 'a: colon'\n"
        "  query: hundred one\n"
        "  sense:\n"
        "- {name: Tops, sense: top.n.10, ambiguous: no}\n",
    )
    assert load_classes(path) == [
        ClassSpec("tiger"),
        ClassSpec("no", sense="n02123159", ambiguous=True),  # text, not a boolean
        ClassSpec("101", definition="a: colon", query="hundred one"),
        ClassSpec("Tops", sense="top.n.10", ambiguous=False),
    ]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", ": not a list of classes", "- name: tiger"),
        ("name: tiger", ": not a list of classes", "- name: tiger"),
        ("- {name: a}\n- {nam: b}", ":2: class 2: unknown key 'nam'", "did you mean 'name'?"),
        ("- name: a\n  senses: b", ":2: class 1: unknown key 'senses'", "did you mean 'sense'?"),
        ("- {sense: tiger}", ":1: class 1 has no name", "add 'name"),
        ("- {name: ''}", ":1: class 1 has no name", "add 'name"),
        ("-", ":1: class 1 has no name", "add 'name"),
        ("- [a, b]", ":1: class 1 is a list", "- name: tiger"),
        ("- a\n- b\n- a", ":3: class 3: 'a' is there already, in line 1", "remove one"),
        ("- {name: a, name: b}", ":1: class 1: 'name' is there twice", "remove one"),
        ("- {name: [a]}", ":1: class 1: 'name' is not a text", "one line"),
        (
            "- name: x\n  sense: tigerr_cat.n.02",
            ":2: class 1 'x': 'tigerr_cat.n.02' is not a noun of WordNet 3.0",
            "did you mean 'tiger_cat'",
        ),
        ("- {name: x, sense: n00000001}", "no noun sense at n00000001", "WordNet 3.0"),
        ("- {name: x, ambiguous: perhaps}", "'ambiguous' is 'perhaps'", "ambiguous: true"),
        ("- name: a: b", ":1: not valid YAML", "quotes"),
        ("- !!python/object/apply:os.system [ls]", "class 1 is a list", ""),
        ("- \x07", "not valid YAML", "quotes"),
        ("[" * 5000, ":1: not valid YAML: nested more than 40 levels", ""),
        ("- &a {name: a}\n- *a", ":2: not valid YAML: the alias *a is not accepted", "quotes"),
        ("- ? [a, b]\n  : c", ":1: class 1: a key is a list or a mapping", "- name: tiger"),
        ("- {name: a, " + "k" * 900 + ": b}", "unknown key 'kkk", ""),
    ],
)
def test_errors_name_file_line_and_entry(tmp_path, text, message, hint):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_classes(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert hint in caught.value.hint
    assert caught.value.hint
    assert len(str(caught.value)) < 500


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(ConfigError, match="no such file") as caught:
        load_classes(tmp_path / "absent.yaml")
    assert "capro classes suggest" in caught.value.hint
    with pytest.raises(ConfigError, match="is a folder, not a file"):
        load_classes(tmp_path)
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match="is a named pipe, not a file"):
        load_classes(tmp_path / "pipe.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"- caf\xe9")
    with pytest.raises(ConfigError, match="byte 5 is not UTF-8"):
        load_classes(tmp_path / "latin.yaml")
    with pytest.raises(ConfigError, match="No such file"):
        save_classes(tmp_path / "no" / "classes.yaml", [ClassSpec("a")])


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
TEXT = TEXT.map(str.strip).filter(bool)
SPECS = st.builds(
    ClassSpec,
    name=TEXT,
    sense=st.none() | st.sampled_from(["n02123159", "tiger_cat.n.02", "tiger"]),
    definition=st.none() | TEXT,
    query=st.none() | TEXT,
    ambiguous=st.none() | st.booleans(),
    rejected=st.lists(TEXT, max_size=2).map(tuple),
)


@settings(max_examples=100)
@given(specs=st.lists(SPECS, min_size=1, max_size=4, unique_by=lambda spec: spec.name))
def test_save_and_load_are_inverse(tmp_path_factory, specs):
    path = tmp_path_factory.mktemp("classes") / "classes.yaml"
    save_classes(path, specs)
    assert load_classes(path) == specs
    assert [each.name for each in path.parent.iterdir()] == ["classes.yaml"]


@pytest.mark.parametrize("name", ["no", "~", "null", "1", "# x", "- x", "a: b", "'", "\n", "x\ny"])
def test_awkward_names_survive(tmp_path, name):
    spec = ClassSpec("x" + name + "x" if not name.strip() else name)
    save_classes(tmp_path / "c.yaml", [spec])
    assert load_classes(tmp_path / "c.yaml") == [spec]


def test_the_draft_lists_the_other_senses(tmp_path):
    person = wordnet.resolve("tiger.n.01")
    ranked = (Candidate(TIGER, 0.4, 3.0, True), Candidate(person, 0.34, 2.0, True))
    suggestions = [
        Suggestion("tiger", ranked, True, 9),
        Suggestion("Ice\nTiger", ranked[1:], False, 9, head="Tiger"),
        Suggestion("qwxyz", (), False, 0),
    ]
    path = tmp_path / "classes.yaml"
    save_classes(path, [draft(each) for each in suggestions], suggestions=suggestions)
    assert load_classes(path) == [
        ClassSpec("tiger", sense="n02129604", ambiguous=True),
        ClassSpec("Ice\nTiger"),
        ClassSpec("qwxyz"),
    ]
    text = path.read_text()
    assert "  sense: n02129604  # tiger.n.02: large feline of forests" in text
    assert "?" in text
    assert "n10710632 0.34 tiger.n.01 (person): a fierce or audacious person" in text
    assert "no sense of 'Ice Tiger': add a definition; senses of 'Tiger':" in text
    assert "no sense of 'qwxyz': add a definition" in text


def test_class_text():
    sense = wordnet.sense_text(TIGER)
    assert class_text(ClassSpec("x", sense="tiger.n.02")) == sense
    assert class_text(ClassSpec("x", definition="stripes")) == "stripes"
    both = ClassSpec("x", sense="n02129604", definition="stripes")
    assert class_text(both) == f"stripes; {sense}"
    assert class_text(ClassSpec("n02129604")) == sense  # as WebVision names its classes
    assert class_text(ClassSpec("ice_tiger")) == "ice tiger"
    assert [has_meaning(spec) for spec in (both, ClassSpec("n02129604"), ClassSpec("ice_tiger"))] == [
        True,
        True,
        False,
    ]


@pytest.mark.shared
@pytest.mark.parametrize(("name", "count"), [("queryweb32", 33), ("cococap64", 17), ("shopweb64", 24)])
def test_the_shared_files_load(shared, name, count):
    specs = load_classes(shared / name / "classes.yaml")
    assert len(specs) == count
    assert all(has_meaning(spec) for spec in specs)


def test_a_list_says_which_classes_are_ambiguous(tmp_path):
    """The authors' file has id, sense and definition; ids of classes that are not here are left out."""
    path = tmp_path / "list.txt"
    path.write_text(
        "n02123159\tSynset('tiger_cat.n.02')\ta cat\n# none\nn99999999\tx\ngreen apple # a name\n"
    )
    specs = [
        ClassSpec("tiger cat", sense="tiger_cat.n.02"),
        ClassSpec("mouse", sense="n02330245", ambiguous=True),
        ClassSpec("green apple"),
    ]
    found = classes.marked_ambiguous(specs, classes.ambiguous_names(path))
    assert [spec.ambiguous for spec in found] == [True, False, True]
    with pytest.raises(ConfigError, match="names no class of 1 class"):
        classes.marked_ambiguous(specs[1:2], classes.ambiguous_names(path))
    with pytest.raises(DataError, match="cannot be read"):
        classes.ambiguous_names(tmp_path / "absent.txt")


def test_what_a_class_is_not(tmp_path):
    first = "- {name: dog, sense: dog.n.01, not: [hot dog, a drawn dog]}\n"
    path = write(tmp_path, first + "- {name: bus, not: bus stop}\n- cat\n")
    dog, bus, cat = load_classes(path)
    assert (dog.rejected, bus.rejected, cat.rejected) == (("hot dog", "a drawn dog"), ("bus stop",), ())
    save_classes(path, [dog, bus, cat])
    assert load_classes(path) == [dog, bus, cat]
    rivals = classes.rival_senses(dog)
    assert {sense.offset for sense in wordnet.senses("hot dog")} <= {sense.offset for sense in rivals}
    assert wordnet.resolve("dog.n.01") not in rivals
    assert classes.rival_senses(cat) == []  # no sense was chosen, so none was rejected
    texts, owners = classes.other_senses([dog, bus, cat])
    assert "a drawn dog" in texts
    assert set(owners) == {0, 1}


@pytest.mark.parametrize("value", ["{a: b}", "[[a]]"])
def test_what_a_class_is_not_is_a_text_or_a_list(value, tmp_path):
    with pytest.raises(ConfigError, match="'not' is neither a text nor a list") as error:
        load_classes(write(tmp_path, f"- name: dog\n  not: {value}\n"))
    assert ":2: class 1" in str(error.value)
    assert "not: [hot dog]" in error.value.hint


def test_not_twice_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="'not' is there twice"):
        load_classes(write(tmp_path, "- name: dog\n  not: a\n  not: b\n"))
