"""Frames: what is seen from where, and what a write is checked against."""

import pytest

from gateway.control.trees.engine import (
    BadWrite,
    LeafRegistry,
    TreeFrame,
    TreeHost,
    TreeState,
    read_type,
)
from gateway.control.trees.loading import load
from gateway.control.trees.nodes import LeafCall


def board(**watched: bool) -> TreeState:
    host = TreeHost(now=lambda: 0.0, roots={"usage": {"tokens": 1}})
    return TreeState(host, watched=frozenset(watched), is_awake=False)


def test_what_is_not_here_is_outside_and_then_among_the_roots() -> None:
    shared = board()
    outer = TreeFrame(shared, {"a": 1, "b": 2}, {})
    inner = TreeFrame(shared, {"a": 3}, {}, outer)

    assert [inner.get(name) for name in ("a", "b", "usage", "absent", "failure")] == [
        *(3, 2, {"tokens": 1}, None, None)
    ]
    inner.set("a", 4)
    inner.set("b", 5)
    assert (inner.values, outer.values) == ({"a": 4}, {"a": 1, "b": 5})


def test_a_linked_key_is_the_others() -> None:
    shared = board()
    outer = TreeFrame(shared, {"x": 1}, {"x": read_type("int")})
    inner = TreeFrame(shared, {}, {}, links={"in": (outer, "x")})

    inner.set("in", 2)

    assert (inner.get("in"), outer.get("x"), inner.get("x")) == (2, 2, None)
    with pytest.raises(BadWrite):
        inner.set("in", "text")


def test_unknown_keys_roots_and_wrong_types_are_not_written() -> None:
    shared = board()
    frame = TreeFrame(shared, {"n": 1}, {"n": read_type("int")})

    for key, value in (("n", "x"), ("m", 1), ("usage", {}), ("failure", None)):
        with pytest.raises(BadWrite):
            frame.set(key, value)


def test_only_a_changed_watched_key_rings() -> None:
    shared = board(n=True)
    frame = TreeFrame(shared, {"n": 1, "m": 1}, {})

    frame.set("m", 2)
    frame.set("n", 1)
    assert not shared.is_awake
    frame.set("n", 2)
    assert shared.is_awake


def test_the_result_of_an_item_is_given_from_inside() -> None:
    shared = board()
    outer = TreeFrame(shared, {"result": ""}, {"result": read_type("string")})  # a key of the tree
    item = TreeFrame(shared, {"item": 1, "result": None}, {}, outer, is_item=True)
    registry = LeafRegistry()
    registry.action("give")(lambda call: None)
    plan = load('(tree "t" (action give))', registry=registry).root

    for frame in (outer, TreeFrame(shared, {}, {}, item)):
        LeafCall(plan, frame).set_result("found")

    assert (item.values["result"], outer.values["result"]) == ("found", "")
