"""What keys may hold."""

import pytest

from gateway.control.trees.engine import BadType, KeyType, read_type, type_of


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        ("string", ["", "a"], [1, None]),
        ("int", [0, -3], [True, 1.0, "1"]),
        ("float", [1, 1.5], [True, "1"]),
        ("bool", [True], [1, None]),
        ("any", [None, 1, []], []),
        ("map", [{}], [[], None]),
        ("list", [[], ["a", 1], (1,)], ["ab", {}]),
        ("(list int)", [[], [1]], [["a"], [None]]),
        ("(option string)", [None, "a"], [1]),
        ("(list (option int))", [[None, 1]], [["a"]]),
        ("option", [None, 3], []),
    ],
)
def test_a_type_takes_its_values(text: str, right: list[object], wrong: list[object]) -> None:
    kind = read_type(text)

    assert str(kind) in {text, "(option any)"}
    assert all(kind.accepts(value) for value in right)
    assert not any(kind.accepts(value) for value in wrong)


@pytest.mark.parametrize("text", ["", "()", "strin", "(map int)", "(list", "model:Persn"])
def test_what_is_no_type_is_refused(text: str) -> None:
    if text == "(list":  # brackets are only for the eye
        assert str(read_type(text)) == "list"
        return
    with pytest.raises(BadType):
        read_type(text)


def test_types_that_can_meet_may_hold_each_other() -> None:
    def may(ours: str, theirs: str) -> bool:
        return read_type(ours).may_hold(read_type(theirs))

    assert may("float", "int")
    assert not may("int", "float")
    assert may("string", "(option string)")
    assert may("list", "(list int)")
    assert not may("(list int)", "(list string)")
    assert may("any", "map")


def test_a_default_says_its_type() -> None:
    defaults: list[object] = ["", 1, 1.0, True, None, [], {}]

    assert [str(type_of(value)) for value in defaults] == [
        *("string", "int", "float", "bool", "(option any)", "list", "map")
    ]
    assert type_of(object()) == KeyType("any")
