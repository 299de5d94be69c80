"""Facts, plugin stores and notes are one person's: that of the conversation's peer."""

import contextlib
import json
import re
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from gateway.domain.ports import PluginSpace
from tests.fakes.client import connected, http
from tests.fakes.gateway import Setup, running
from tests.fakes.mcp_client import mcp_client, text_of
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.scenarios.chats import LONG_S
from tests.scenarios.scripts import memory_of
from tests.scenarios.test_memory import TOKENS
from tests.scenarios.test_memory_sources import OPERATOR, READS_ALL, Crowd
from tests.scenarios.test_souls import system_of

pytestmark = pytest.mark.shared_store

ANN = "ann-ann-ann-ann-ann-ann"
UPGRADING = (Path(__file__).parents[2] / "docs" / "how-to" / "upgrade.md").read_text(
    encoding="utf-8"
)
(BY_TOKEN,) = re.findall(r"```sql\n(SELECT.*?plugin_value.*?)```", UPGRADING, re.DOTALL)
SERVED = '[mcp.serve]\nenabled = true\ntools = ["notes"]\n'


def noting(asked: Asked) -> Reply:
    """`keep WORD` writes a note of that name, `read WORD` reads it; the answer is what came of it."""
    if asked.body["messages"][-1]["role"] == "tool":
        return Reply(f"told: {asked.last_text}")
    verb, _, word = asked.last_text.partition(" ")
    if verb not in {"keep", "read"}:
        return Reply("noted")
    note = {"path": f"{word}.md"} | ({"content": f"# in {word}"} if verb == "keep" else {})
    tool = "vault_write" if verb == "keep" else "vault_read"
    return Reply("", calls=[("c1", tool, json.dumps(note))])


def setup(url: str, rest: str = "") -> Setup:
    return Setup(url, tools=("notes",), rest=TOKENS + READS_ALL + rest)


def asked_with(requests: Sequence[Asked], text: str) -> Asked:
    return next(one for one in reversed(requests) if one.last_text == text)


@pytest.fixture
async def chat() -> AsyncIterator[Crowd]:
    chat = Crowd("ann", "ann", "nightly")
    async with chat.open():
        yield chat


async def test_two_end_users_of_one_token_share_neither_facts_nor_notes(tmp_path: Path) -> None:
    async with scripted_server(noting) as model:
        async with (
            running(setup(model.url), tmp_path) as site,
            connected(site.url, ANN) as ann,
        ):
            await ann.ask("keep canary", peer="one")
            await ann.ask("My dog is called Luna.", peer="one")
            other = (await ann.ask("read canary", peer="two"))["response"]
            await ann.ask("What is my dog's name?", peer="two")
        async with (
            running(setup(model.url), tmp_path) as site,
            connected(site.url, ANN) as ann,
        ):
            own = (await ann.ask("read canary", peer="one"))["response"]
            await ann.ask("How is my dog?", peer="one")

    stranger = asked_with(model.requests, "What is my dog's name?")
    person = asked_with(model.requests, "How is my dog?")
    assert "# in canary" in own
    assert "# in canary" not in other
    assert "canary" not in system_of(stranger)
    assert "Luna" not in memory_of(stranger)
    assert "- canary.md" in system_of(person)
    assert "user dog_name Luna" in memory_of(person)


async def test_whoever_is_impersonated_has_the_notes_and_facts_of_their_own_chat(
    chat: Crowd, tmp_path: Path
) -> None:
    allowed = f'{chat.toml}\nallow_from = ["ann", "bob"]\n'
    place = {"channel": "ci", "account": "default"}
    with anyio.fail_after(LONG_S):
        async with (
            scripted_server(noting) as model,
            running(setup(model.url, allowed), tmp_path) as site,
        ):
            chat.gateway = site.url
            await chat.says("ann", "keep canary")
            await chat.says("ann", "My dog is called Luna.")
            await chat.says("ann", "keep canaries", room="nightly")
            async with connected(site.url, OPERATOR) as operator:
                await operator.ask("whose?", peer="ann", **place)
                await operator.ask("and whose?", peer="bob", **place)
            await chat.says("bob", "hers?", room="nightly")

    ann, bob, room = (asked_with(model.requests, q) for q in ("whose?", "and whose?", "hers?"))
    assert ("- canary.md" in system_of(ann), "Luna" in memory_of(ann)) == (True, True)
    assert "- canaries.md" in system_of(ann)
    for stranger in (bob, room):
        assert ("canar" in system_of(stranger), "Luna" in memory_of(stranger)) == (False, False)


async def test_notes_of_a_conversation_are_not_those_of_a_client_of_mcp(tmp_path: Path) -> None:
    async with (
        scripted_server(noting) as model,
        running(setup(model.url, SERVED), tmp_path) as site,
        connected(site.url, ANN) as ann,
        mcp_client(site.url, ANN) as client,
    ):
        await ann.ask("keep spoken")
        await client.call_tool("vault_write", {"path": "called.md", "content": "# by a program"})
        listed = [text_of(await client.call_tool("vault_list", {}))]
        await ann.ask("hi")

    told = system_of(asked_with(model.requests, "hi"))
    assert ("called.md" in listed[0], "spoken.md" in listed[0]) == (True, False)
    assert ("called.md" in told, "spoken.md" in told) == (False, True)


async def complete(url: str, content: str, **headers: str) -> str:
    body = {"model": "main", "messages": [{"role": "user", "content": content}]}
    answer = await http(
        f"{url}/v1/chat/completions",
        method="POST",
        token=ANN,
        headers=headers,
        body=json.dumps(body).encode(),
    )
    return str(answer.json["choices"][0]["message"]["content"])


async def test_a_request_to_v1_without_a_conversation_keeps_no_note_and_says_so(
    tmp_path: Path,
) -> None:
    async with scripted_server(noting) as model, running(setup(model.url), tmp_path) as site:
        refused = await complete(site.url, "keep canary")
        read = await complete(site.url, "read canary")
        await complete(site.url, "keep canary", **{"x-exogate-session": "one"})
        own = await complete(site.url, "read canary", **{"x-exogate-session": "one"})
        other = await complete(site.url, "read canary", **{"x-exogate-session": "two"})
        stateless = await complete(site.url, "read canary")

    assert "a request without a conversation" in refused
    assert "# in canary" in own
    for answer in (read, other, stateless):
        assert "# in canary" not in answer


@pytest.mark.embedded_store
async def test_what_was_kept_under_a_token_is_the_operators_to_read_and_nobody_elses(
    tmp_path: Path,
) -> None:
    """By the statement that the documents give."""

    def read() -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(tmp_path / "data" / "store.db")) as db:
            return db.execute(BY_TOKEN).fetchall()

    async with (
        scripted_server(noting) as model,
        running(setup(model.url), tmp_path) as site,
        connected(site.url, ANN) as ann,
    ):
        old = PluginSpace("notes", "notes", "ann")
        await site.rooms.shared.stores.tools.set(old, "note|old.md", "# old")
        await ann.ask("keep new")
        await ann.ask("hi")
        rows = await to_thread.run_sync(read)

    assert rows == [("notes", "notes", "ann", "note|old.md", "# old")]
    assert "old.md" not in system_of(asked_with(model.requests, "hi"))
