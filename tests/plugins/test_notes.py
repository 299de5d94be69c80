"""The notes keep to the store's sizes: long threads go on in another value, long notes are refused."""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.plugins.running import Guest, Json

TOOL = Path(__file__).parent.parent.parent / "plugins" / "notes" / "tool.wasm"


@pytest.fixture
def notes() -> Guest:
    return Guest.load(TOOL)


def said(notes: Guest, tool: str, arguments: Mapping[str, Json]) -> Json:
    did, text = notes.run({"call": {"tool": tool, "arguments": arguments}})
    assert did, text
    return json.loads(text)


def refused(notes: Guest, tool: str, arguments: Mapping[str, Json]) -> str:
    did, text = notes.run({"call": {"tool": tool, "arguments": arguments}})
    assert not did
    return text


@pytest.mark.requirement("S-000-Domain-01")
def test_a_long_thread_is_kept_in_several_values_and_read_across_them(notes: Guest) -> None:
    entry = {"thread_id": "long", "author": "oracle", "type": "research"}
    for number in range(1, 31):
        written = said(notes, "thread_write", {**entry, "content": f"{number}:" + "z" * 10_000})
        assert written == {"thread_id": "long", "number": number}

    read = said(notes, "thread_read", {"thread_id": "long", "limit": 12})

    assert [one["number"] for one in read["entries"]] == list(range(19, 31))
    assert [one["content"][:3] for one in read["entries"][:2]] == ["19:", "20:"]
    assert read["total"] == 30
    assert 5 <= len(notes.spaces["notes"]) <= 7


def test_an_entry_with_line_breaks_comes_back_as_it_was(notes: Guest) -> None:
    content = 'first\nsecond\r\n\n{"third": "|"}'
    entry = {"thread_id": "t", "author": "user", "type": "thought", "content": content}

    said(notes, "thread_write", entry)

    assert said(notes, "thread_read", {"thread_id": "t"})["entries"][0]["content"] == content


def test_an_entry_that_is_too_long_is_refused(notes: Guest) -> None:
    entry = {"thread_id": "t", "author": "user", "type": "thought", "content": "x" * 16_385}

    assert "it may have 16384 at most" in refused(notes, "thread_write", entry)
    assert notes.spaces == {}


def test_a_note_has_64_kib_and_appending_keeps_to_that(notes: Guest) -> None:
    whole = said(notes, "vault_write", {"path": "a.md", "content": "x" * 65_536})

    more = {"path": "a.md", "content": "y", "mode": "append"}
    assert whole["bytes"] == 65_536
    assert "would have 65538 bytes" in refused(notes, "vault_write", more)
    assert "65536 at most" in refused(notes, "vault_write", {**more, "content": "x" * 65_537})
    assert len(notes.spaces["notes"]["note|a.md"]) == 65_536


def test_a_full_vault_is_searched_listed_and_indexed(notes: Guest) -> None:
    notes.spaces["notes"] = {
        f"note|area-{number % 20:02}/note-{number:03}.md": f"# Note {number}\n\nwords " * 8
        for number in range(899)
    } | {"note|last.md": "# Last\n\na needle"}

    found = said(notes, "vault_search", {"query": "needle"})
    index = said(notes, "vault_create_index", {"prefix": "area-07"})

    assert [hit["path"] for hit in found["results"]] == ["last.md"]
    assert found["searched"] == 900
    assert index == {"path": "area-07/index.md", "notes": 45}
    assert len(said(notes, "vault_list", {})["notes"]) == 200
    assert said(notes, "vault_list", {})["total"] == 901


def test_what_the_store_refuses_reaches_the_model(notes: Guest) -> None:
    notes.denial = "this store may have at most 1000 keys: delete some first"

    text = refused(notes, "vault_write", {"path": "a.md", "content": "x"})

    assert text == "this store may have at most 1000 keys: delete some first"


AUTHORS = ("user", "claude", "oracle", "librarian")
KINDS = ("thought", "decision", "research", "insight")


@pytest.mark.requirement("S-000-Thread-01", "S-000-Thread-02")
def test_an_entry_has_one_of_the_known_authors_and_types_and_keeps_both(notes: Guest) -> None:
    pairs = list(itertools.product(AUTHORS, KINDS))
    for author, kind in pairs:
        said(
            notes,
            "thread_write",
            {"thread_id": "t", "author": author, "type": kind, "content": "x"},
        )

    read = said(notes, "thread_read", {"thread_id": "t"})["entries"]

    assert [(one["author"], one["type"]) for one in read] == pairs


@pytest.mark.requirement("S-000-Thread-01", "S-000-Thread-02")
@pytest.mark.parametrize(
    ("author", "kind"), [("me", "thought"), ("User", "thought"), ("user", "joke")]
)
def test_any_other_author_or_type_is_refused_and_nothing_written(
    notes: Guest, author: str, kind: str
) -> None:
    entry = {"thread_id": "t", "author": author, "type": kind, "content": "x"}

    assert "has to be" in refused(notes, "thread_write", entry)
    assert notes.spaces == {}
