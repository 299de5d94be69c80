"""What is erased is in no table, no index and no byte of a file; who erased, and how much, stays."""

import zlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from gateway.domain.errors import Busy, NotFound
from gateway.domain.events import Notice
from gateway.domain.facts import Claim, FactQuery, FactView, SaidSource, scope_of
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.inbox import NewDelivery
from gateway.domain.messages import Message, ToolCall
from gateway.domain.ports import Stores
from gateway.domain.sessions import Erased
from gateway.store.opening import open_store
from tests.fakes.clock import FakeClock
from tests.fakes.store import NOON, an_ending, an_entry, an_exchange, session_key

Open = Callable[[], AbstractAsyncContextManager[Stores]]
CANARY = "kanarienvogel"
MINE, OTHERS = session_key(), session_key("other")


async def talk(stores: Stores, key: SessionKey, word: str) -> None:
    """An exchange, with a trace of it in every corner."""
    name = key.peer
    new = an_entry(name, key, platform_id=name, digest=f"digest of {word}", content=word)
    await stores.inbox.accept(replace(new, whence=word), begin=True)
    await stores.journal.append(new.run_id, 0, lambda: uncompressed(f'["text","{word}"]'))
    question, answer = an_exchange(name, word, f"{word} it is")
    calls = (ToolCall("c", "echo", f'{{"text": "{word}"}}'),)
    answer = replace(answer, message=Message("assistant", f"{word} it is", calls), label=word)
    delivery = NewDelivery(f"d-{name}", "chat", "bot", "p", None, word, word)
    ending = an_ending(name, key, nodes=(question, answer), deliveries=[delivery])
    told = Notice(word, id=f"n-{name}", to="both")
    left = replace(ending, summary=f'{{"said": "{word}"}}', part=1)
    left = replace(left, journal=lambda: uncompressed(f'{{"content":"{word}"}}'))
    left = replace(left, posts=(told,), person="ann", rule_state=f'{{"w": "{word}"}}')
    await stores.inbox.finish(left)
    source = SaidSource(question.id, key, NOON, word, "ann")
    claim = Claim("user", "says", word, True, NOON, key, source=source)
    await stores.facts.add_facts(scope_of(key, None), [claim], ids=[f"f-{name}"], now=NOON)
    while keys := await stores.facts.unindexed(limit=9):
        await stores.facts.index_turns(keys, limit=99)


def uncompressed(line: str) -> bytes:
    """A part of a journal in which every word can be found."""
    return zlib.compress(line.encode(), 0)


async def erased(stores: Stores, *, dry_run: bool = False) -> Erased:
    return await stores.sessions.erase(MINE, by="ann", dry_run=dry_run, now=NOON)


async def known(stores: Stores, key: SessionKey, word: str) -> list[bool]:
    """Where the word still is."""
    run_id = an_entry(key.peer).run_id
    run = await stores.inbox.find_run(run_id)
    assert run is not None
    parts = await stores.journal.read(run_id)
    path = await stores.sessions.path(key, limit=9)
    node = await stores.sessions.node(key, f"{key.peer}-1")
    tree = await stores.sessions.tree(key, limit=9, archived=True)
    found = await stores.facts.find_turns(key, [word], limit=9)
    facts = await stores.facts.select_facts(
        FactQuery(FactView(scope_of(key, None)), with_history=True)
    )
    due = await stores.outbox.due("chat", now=NOON.replace(year=2030), limit=9)
    told = [run.entry.new.content, run.entry.new.whence or "", run.log.decode(), run.summary]
    return [
        *(word in text for text in told),
        bool(parts),
        bool(path.nodes),
        node is not None,
        bool(tree),
        bool(found.words),
        bool(facts),
        any(one.session_key == key for one in due),
        await stores.journal.rule_state(key) is not None,
    ]


async def test_nothing_of_an_erased_conversation_is_left_and_all_of_another_is(
    opened: Open,
) -> None:
    async with opened() as stores:
        await talk(stores, MINE, CANARY)
        await talk(stores, OTHERS, "spatz")

        would = await erased(stores, dry_run=True)
        before = await known(stores, MINE, CANARY)
        did = await erased(stores)
        after = await known(stores, MINE, CANARY)

        assert (would.messages, would.facts, would.tombstone) == (2, 1, None)
        assert (did.messages, did.facts) == (2, 1)
        assert did.tombstone
        assert all(before)
        assert not any(after)
        assert all(await known(stores, OTHERS, "spatz"))
        posted = await stores.journal.claim_notices(
            "ann", session_key("third"), an_entry("z").run_id, now=NOON
        )
        assert [one.content for one in posted] == ["spatz"]


async def test_a_tombstone_stays_and_the_record_of_who_wanted_it(opened: Open) -> None:
    async with opened() as stores:
        await talk(stores, MINE, CANARY)

        did = await erased(stores)

        (entry,) = await stores.audit.newest(kind="memory.erased")
        record = await stores.sessions.find_session(MINE)
        assert entry.actor == "ann"
        assert did.tombstone is not None
        assert did.tombstone in entry.detail
        assert CANARY not in entry.detail
        assert record is not None
        assert (record.state, record.head, record.message_count) == ("closed", None, 0)


async def test_a_message_that_is_sent_again_is_still_known(opened: Open) -> None:
    again = an_entry("main", MINE, platform_id="main", digest=f"digest of {CANARY}", content=CANARY)
    async with opened() as stores:
        await talk(stores, MINE, CANARY)
        await erased(stores)

        accepted = await stores.inbox.accept(
            replace(again, run_id=an_entry("new").run_id), begin=False
        )

        assert accepted.duplicate


async def test_talk_goes_on_after_an_erasure(opened: Open) -> None:
    async with opened() as stores:
        await talk(stores, MINE, CANARY)
        await erased(stores)
        await stores.inbox.accept(an_entry("b"), begin=True)
        await stores.inbox.finish(an_ending("b"))

        path = await stores.sessions.path(MINE, limit=9)
        tree = await stores.sessions.tree(MINE, limit=9)
        again = await erased(stores)

        assert [node.id for node in path.nodes] == [node.id for node in tree] == ["b-1", "b-2"]
        assert path.nodes[0].parent_id is None
        assert again.messages == 2


async def test_nobody_can_go_on_from_an_erased_message(opened: Open) -> None:
    async with opened() as stores:
        await talk(stores, MINE, CANARY)
        await erased(stores)

        with pytest.raises(NotFound):
            await stores.sessions.move_head(MINE, NodeId("main-1"), expected=None)
        with pytest.raises(NotFound):
            await stores.sessions.label_node(MINE, NodeId("main-1"), "again")


async def test_nothing_is_learned_from_a_message_that_was_erased_meanwhile(opened: Open) -> None:
    source = SaidSource("main-1", MINE, NOON, CANARY, "ann")
    claim = Claim("user", "says", CANARY, True, NOON, MINE, source=source)
    async with opened() as stores:
        await talk(stores, MINE, CANARY)
        await erased(stores)

        told = await stores.facts.add_facts(scope_of(MINE, None), [claim], ids=["late"], now=NOON)

        assert told == []
        assert not any(await known(stores, MINE, CANARY))


async def test_while_a_message_is_not_answered_nothing_is_erased(opened: Open) -> None:
    async with opened() as stores:
        await talk(stores, MINE, CANARY)
        await stores.inbox.accept(an_entry("b"), begin=False)

        with pytest.raises(Busy, match="abort"):
            await erased(stores)

        assert all(await known(stores, MINE, CANARY))


async def test_a_session_that_is_not_there_cannot_be_erased(opened: Open) -> None:
    async with opened() as stores:
        for dry_run in (True, False):
            with pytest.raises(NotFound):
                await erased(stores, dry_run=dry_run)


async def test_no_byte_of_it_is_left_on_the_disk(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with open_store("embedded", tmp_path, clock=FakeClock()) as stores:
            await talk(stores, OTHERS, "spatz")
            await talk(stores, MINE, CANARY)
            written = await to_thread.run_sync(files_with, tmp_path, CANARY)
            await erased(stores)
            left = await to_thread.run_sync(files_with, tmp_path, CANARY)
            kept = await to_thread.run_sync(files_with, tmp_path, "spatz")

    assert written
    assert left == []
    assert kept
    assert (
        await to_thread.run_sync(files_with, tmp_path, CANARY[:8]) == []
    )  # nor what stemming made of it


def files_with(folder: Path, word: str) -> list[str]:
    return [
        one.name for one in folder.rglob("*") if one.is_file() and word.encode() in one.read_bytes()
    ]
