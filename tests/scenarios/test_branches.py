"""The conversation as a tree: going on from an older place, side by side, and page by page."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.client import WAIT_S, Client
from tests.fakes.model_server import Asked, Reply
from tests.scenarios.scripts import echo, history_of, shown, talking

pytestmark = pytest.mark.shared_store

KEY = "main:websocket:local:main"


async def talk(client: Client, *questions: str) -> list[str]:
    """The ids of the answers."""
    return [(await client.ask(question))["message_id"] for question in questions]


async def history(client: Client, **more: object) -> dict[str, Any]:
    page: dict[str, Any] = await client.call("chat.history", session_key=KEY, **more)
    return page


async def test_two_branches_do_not_see_each_other(tmp_path: Path) -> None:
    async with talking(echo, tmp_path) as (model, _site, client):
        first, *_ = await talk(client, "one", "left")
        branched = await client.call(
            "session.branch", session_key=KEY, node_id=first, label="crossing"
        )
        right = await talk(client, "right")
        on_the_right = shown(await history(client))
        tree = await client.call("session.tree", session_key=KEY)

    assert branched == {"head": first, "label": "crossing"}
    assert history_of(model.requests[-1]) == [
        ("user", "one"),
        ("assistant", "answer to one"),
        ("user", "right"),
    ]
    assert [text for role, text in on_the_right if role == "user"] == ["one", "right"]
    children = [node for node in tree["nodes"] if node["parent_id"] == first]
    assert len(children) == 2
    assert [node["label"] for node in tree["nodes"] if node["id"] == first] == ["crossing"]
    assert (len(tree["nodes"]), tree["head"]) == (6, right[-1])


async def test_checkout_goes_back_to_the_other_branch_by_id_or_label(tmp_path: Path) -> None:
    async with talking(echo, tmp_path) as (model, _site, client):
        first, left = await talk(client, "one", "left")
        await client.call("session.branch", session_key=KEY, node_id=first, label="crossing")
        await talk(client, "right")
        moved = await client.call("session.checkout", session_key=KEY, node_id=left)
        await talk(client, "more left")
        by_id = history_of(model.requests[-1])
        await client.call("session.checkout", session_key=KEY, label="crossing")
        await talk(client, "a third")
        by_label = history_of(model.requests[-1])
        unknown = await client.refused("session.checkout", session_key=KEY, node_id="m_0")
        both = await client.refused("session.checkout", session_key=KEY, node_id=left, label="x")

    assert moved == {"head": left}
    assert [text for role, text in by_id if role == "user"] == ["one", "left", "more left"]
    assert [text for role, text in by_label if role == "user"] == ["one", "a third"]
    assert (unknown.code, both.code) == (-32004, -32602)


@pytest.mark.requirement("S-002-Query-03", "S-002-E2E-10")
async def test_a_context_id_goes_on_from_that_place_and_moves_head_there(tmp_path: Path) -> None:
    async with talking(echo, tmp_path) as (model, _site, client):
        first, *_ = await talk(client, "one", "two", "three")
        end = await client.ask("instead of two", context_id=first)
        await talk(client, "and then")
        page = await history(client)
        unknown = await client.refused("chat.send", content="x", context_id="m_0")

    questions = [text for role, text in history_of(model.requests[3]) if role == "user"]
    after = [text for role, text in history_of(model.requests[4]) if role == "user"]
    assert questions == ["one", "instead of two"]
    assert after == ["one", "instead of two", "and then"]
    assert [text for role, text in shown(page) if role == "user"] == after
    assert end["context_id"] in {one["id"] for one in page["messages"]}
    assert unknown.code == -32004
    assert len(model.requests) == 5


async def test_a_place_in_another_session_is_not_found(tmp_path: Path) -> None:
    async with talking(echo, tmp_path) as (_model, _site, client):
        elsewhere = (await client.ask("hi", peer="other"))["message_id"]
        await talk(client, "here")
        errors = [
            await client.refused("chat.send", content="x", context_id=elsewhere),
            await client.refused("session.checkout", session_key=KEY, node_id=elsewhere),
            await client.refused("session.branch", session_key=KEY, node_id=elsewhere),
            await client.refused("chat.history", session_key=KEY, before=elsewhere),
        ]

    assert [error.code for error in errors] == [-32004] * 4


@pytest.mark.requirement("S-004-Msg-04", "S-004-Scale-01")
async def test_history_is_read_page_by_page_along_the_path(tmp_path: Path) -> None:
    async with talking(echo, tmp_path) as (_model, _site, client):
        questions = [f"q{number}" for number in range(12)]
        first, *_ = await talk(client, *questions)
        await client.call("session.branch", session_key=KEY, node_id=first)
        await talk(client, "elsewhere")
        await client.call("session.checkout", session_key=KEY, node_id=first)
        head = (await client.ask("again", context_id=first))["message_id"]
        for question in questions[1:]:
            head = (await client.ask(question))["message_id"]
        whole = await history(client, limit=500)
        read: list[dict[str, Any]] = []
        more, before = True, None
        while more:
            page = await history(client, limit=5, **({"before": before} if before else {}))
            read = [*page["messages"], *read]
            more, before = page["more"], page["messages"][0]["id"]
            assert len(page["messages"]) <= 5

    path = ["q0", "again", *questions[1:]]
    assert read == whole["messages"]
    assert (whole["more"], whole["head"]) == (False, head)
    assert [one["content"] for one in read if one["role"] == "user"] == path
    assert [one["parent_id"] for one in read] == [None, *(one["id"] for one in read[:-1])]
    assert all(one["token_count"] > 0 for one in read)
    seqs = [one["seq"] for one in read]
    assert seqs == sorted(set(seqs))


async def test_a_label_says_where_to_go_on_as_well_as_an_id(tmp_path: Path) -> None:
    async with talking(echo, tmp_path) as (model, _site, client):
        first, *_ = await talk(client, "one", "two")
        await client.call("session.branch", session_key=KEY, node_id=first, label="crossing")
        end = await client.ask("from the crossing", context_id="crossing")

    assert end["response"] == "answer to from the crossing"
    assert len(history_of(model.requests[-1])) == 3


async def test_head_may_be_moved_while_a_turn_runs_and_nothing_is_lost(tmp_path: Path) -> None:
    gate = anyio.Event()

    def script(asked: Asked) -> Reply:
        return Reply("late", gate=gate) if asked.last_text == "three" else echo(asked)

    async with talking(script, tmp_path) as (model, _site, client):
        first, second = await talk(client, "one", "two")
        sent = await client.send("three")
        with anyio.fail_after(WAIT_S):
            await model.wait_for(3)
        await client.call("session.checkout", session_key=KEY, node_id=first)
        gate.set()
        end = (await client.ended(sent["run_id"]))[-1]
        moved = await history(client)
        tree = await client.call("session.tree", session_key=KEY)
        await client.ask("from one")
        await client.call("session.checkout", session_key=KEY, node_id=end["message_id"])
        page = shown(await history(client))

    ids = {node["id"] for node in tree["nodes"]}
    assert moved["head"] == first
    assert {first, second, end["message_id"]} <= ids
    assert [text for role, text in history_of(model.requests[-1]) if role == "user"] == [
        "one",
        "from one",
    ]
    assert [text for role, text in page if role == "user"] == ["one", "two", "three"]
