"""Text to forms, with a place for everything that is wrong."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.control.trees.reader import (
    MAX_BYTES,
    MAX_DEPTH,
    TreeForm,
    TreeInvalid,
    TreeSource,
    decode_file,
    read,
)
from tests.forms import examples


def forms(text: str) -> tuple[TreeForm, ...]:
    source = TreeSource("t.bt", text)
    found = read(source)
    assert not source.has_errors, source.problems()
    return found


def wrong(text: str) -> list[str]:
    source = TreeSource("t.bt", text)
    read(source)
    return [f"{p.line}:{p.column} {p.code}" for p in source.problems()]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ('"a\\n\\u00e9"', "string", "a\né"),
        ('"over\ntwo lines"', "string", "over\ntwo lines"),
        ("-12", "int", -12),
        ("1.5e3", "float", 1500.0),
        ("250ms", "duration", 0.25),
        ("1.5h", "duration", 5400.0),
        ("true", "bool", True),
        ("nil", "nil", None),
        (":max-ticks", "keyword", "max-ticks"),
        ("$call.name", "ref", ("call", "name")),
        ("set!", "symbol", "set!"),
        ("has-tools?", "symbol", "has-tools?"),
        ("model:Person", "symbol", "model:Person"),
    ],
)
def test_an_atom_is_what_it_looks_like(text: str, kind: str, value: object) -> None:
    [form] = forms(text)

    assert (form.kind, form.value) == (kind, value)
    assert (form.start, form.end) == (0, len(text))


def test_lists_vectors_and_maps_nest_and_commas_are_space() -> None:
    [form] = forms("(a, [1 2] {:k (b)})")

    assert form.head == "a"
    assert [part.kind for part in form.parts] == ["symbol", "vector", "map"]


def test_comments_are_kept_beside_the_parts() -> None:
    [form] = forms("(a ; one\n #| two #| nested |# |# b #;(not this) c)")

    assert [part.value for part in form.parts] == ["a", "b", "c"]
    assert [item.value for item in form.items if item.kind == "comment"] == [
        "; one",
        "#| two #| nested |# |#",
        "#;(not this)",
    ]


def test_two_discards_in_a_row_leave_out_two_forms() -> None:
    [form] = forms("(a #; #; b c d)")

    assert [part.value for part in form.parts] == ["a", "d"]


def test_bom_and_crlf_are_tolerated() -> None:
    [form] = forms("\ufeff(a\r\n  b) ; end\r\n")[:1]

    assert [part.value for part in form.parts] == ["a", "b"]


def test_all_errors_are_found_at_once_with_their_places() -> None:
    text = '(a "\\q" 1x\n  ] 99999999999999999999 #\n (b [c)'

    assert wrong(text) == [
        "1:1 BT005",
        "1:5 BT004",
        "1:9 BT001",
        "2:3 BT005",
        "2:5 BT003",
        "2:26 BT001",
        "3:7 BT005",
    ]


@pytest.mark.parametrize(
    "text",
    ['"abc', "#| abc", "(#;)", "#;", ")", "(a", '"\\ud800"', '"\\u0000"', "1e999", "1e999s", "-5s"],
)
def test_what_cannot_be_read_is_an_error(text: str) -> None:
    assert wrong(text)


def test_depth_is_bounded() -> None:
    forms("(" * MAX_DEPTH + ")" * MAX_DEPTH)

    assert wrong("(" * 100_000)[0].endswith("BT006")


def test_size_is_bounded_and_bytes_have_to_be_utf_8() -> None:
    with pytest.raises(TreeInvalid) as large:
        decode_file(b" " * (MAX_BYTES + 1), "t.bt")
    with pytest.raises(TreeInvalid) as odd:
        decode_file(b"(a\n \xff)", "t.bt")

    assert large.value.problems[0].code == "BT006"
    [problem] = odd.value.problems
    assert (problem.code, problem.line, problem.column) == ("BT007", 2, 2)
    assert wrong("é" * MAX_BYTES) == ["1:1 BT006"]


def test_a_problem_is_shown_with_its_line_and_a_caret() -> None:
    source = TreeSource("t.bt", "(ok)\n(a  ])")
    read(source)

    assert (
        source.problems()[0].render()
        == 't.bt:2:5: error BT005: "]" closes nothing\n  (a  ])\n      ^'
    )


def test_problems_are_bounded() -> None:
    source = TreeSource("t.bt", "] " * 500)
    read(source)

    assert (len(source.problems()), source.left_out) == (100, 400)


MARKS = ["#|", "|#", "#;", ":a", "$b", "\0", "\ufeff", "é", "1e9", "9" * 40]
WORDS = ["tree", "sequence", "action", "nil"]
PIECES = st.sampled_from([*'()[]{}";\\\n\r 1s,.-', *MARKS, *WORDS])


@given(st.one_of(st.lists(PIECES, max_size=60).map("".join), st.text(max_size=80)))
@settings(max_examples=examples(300))
def test_no_text_breaks_the_reader(text: str) -> None:
    source = TreeSource("t.bt", text)
    found = read(source)

    assert source.has_errors or all(0 <= form.start < form.end <= len(text) for form in found)
    for problem in source.problems():
        assert problem.line >= 1
        assert problem.column >= 1
