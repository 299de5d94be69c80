"""What every store promises about finding what was said."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from gateway.domain.errors import NotFound
from gateway.domain.facts import Claim, Erasure, FoundTurns, SaidSource
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Message, ToolResult
from gateway.domain.ports import Stores
from gateway.store.faults import TextRefused
from tests.fakes.store import NOON, an_ending, an_entry, an_exchange, session_key

Open = Callable[[], AbstractAsyncContextManager[Stores]]
HERE, THERE = session_key("here"), session_key("there")


async def say(
    stores: Stores, name: str, *texts: str, key: SessionKey = HERE, after: str | None = None
) -> None:
    """An exchange of nodes NAME-1, NAME-2, … that HEAD follows."""
    await stores.inbox.accept(an_entry(name, key), begin=True)
    nodes = an_exchange(name, *texts)
    await stores.inbox.finish(an_ending(name, key, grown_from=after, nodes=nodes, take_head=True))


async def index(stores: Stores, *keys: SessionKey) -> None:
    behind: Sequence[SessionKey] = keys or (HERE, THERE)
    while behind:
        behind = await stores.facts.index_turns(behind, limit=3)


async def find(
    stores: Stores, words: Sequence[str], key: SessionKey = HERE, *, limit: int = 9, **more: Any
) -> FoundTurns:
    return await stores.facts.find_turns(key, words, everything, limit=limit, **more)


def everything(found: FoundTurns) -> Mapping[int, float]:
    """Chooses all that is visible."""
    return dict.fromkeys(range(found.trail.length), 1.0)


def ids(found: FoundTurns) -> dict[str, set[str]]:
    names = {turn.depth: turn.id for turn in found.turns}
    return {
        word: {names[depth] for depth in hits.depths if depth in names}
        for word, hits in found.words.items()
    }


async def found_by(stores: Stores, *words: str, key: SessionKey = HERE) -> dict[str, set[str]]:
    return ids(await find(stores, words, key, limit=100))


async def test_what_was_said_is_found_by_any_form_of_its_words(opened: Open) -> None:
    async with opened() as stores:
        await say(stores, "a", "My dogs are called Luna and Otis", "Two dogs!")
        await say(stores, "b", "One dog barks", "ok", after="a-2")
        await index(stores)

        found = await found_by(stores, "dog", "luna", "absent")

    assert found == {"dog": {"a-1", "a-2", "b-1"}, "luna": {"a-1"}}


async def test_writing_without_spaces_is_found_too(opened: Open) -> None:
    async with opened() as stores:
        await say(stores, "a", "我的狗叫小白", "好的")
        await index(stores)

        found = await found_by(stores, "小白", "狗")

    assert found == {"小白": {"a-1"}, "狗": {"a-1"}}


async def test_what_a_tool_said_is_not_found(opened: Open) -> None:
    async with opened() as stores:
        await stores.inbox.accept(an_entry("a", HERE), begin=True)
        asked, told = an_exchange("a", "say it", "secret")
        result = ToolResult("c1", "read", "secret")
        told = replace(told, message=Message("tool", "secret", result=result))
        await stores.inbox.finish(an_ending("a", HERE, nodes=(asked, told)))
        await index(stores)

        found = await find(stores, ["say", "secret"], limit=9)

        assert ids(found) == {"say": {"a-1"}}
        assert [turn.id for turn in found.turns] == ["a-1"]


@pytest.mark.requirement("S-002-CtxTree-02")
async def test_a_sibling_branch_is_never_found(opened: Open) -> None:
    async with opened() as stores:
        await say(stores, "a", "root word", "fine")
        await say(stores, "b", "left word", "fine", after="a-2")
        await say(stores, "c", "right word", "fine", after="a-2")
        await index(stores)

        on_right = await find(stores, ["word"], messages=["b-1", "c-1"], limit=9)
        on_left = await find(stores, ["word"], upto=NodeId("b-2"), limit=9)
        at_root = await find(stores, ["word"], upto=NodeId("a-1"), limit=9)

        assert ids(on_right) == {"word": {"a-1", "c-1"}}
        assert on_right.messages == {"c-1": 2}
        assert ids(on_left) == {"word": {"a-1", "b-1"}}
        assert ids(at_root) == {"word": {"a-1"}}


async def test_going_back_to_a_branch_makes_it_the_one_that_is_found(opened: Open) -> None:
    async with opened() as stores:
        await say(stores, "a", "root word", "fine")
        await say(stores, "b", "left word", "fine", after="a-2")
        await say(stores, "c", "right word", "fine", after="a-2")
        await index(stores)
        await stores.sessions.move_head(HERE, NodeId("b-2"), expected=NodeId("c-2"))

        found = await found_by(stores, "word")

    assert found == {"word": {"a-1", "b-1"}}


async def test_an_earlier_conversation_is_found_and_a_later_one_is_not(opened: Open) -> None:
    async with opened() as stores:
        await say(stores, "a", "first word", "fine")
        await say(stores, "b", "second word", "fine")
        await index(stores)

        newest = await found_by(stores, "word")
        first = await find(stores, ["word"], upto=NodeId("a-2"), limit=9)

        assert newest == {"word": {"a-1", "b-1"}}
        assert ids(first) == {"word": {"a-1"}}


@pytest.mark.requirement("S-003-Memory-10")
async def test_no_other_session_is_ever_looked_into(opened: Open) -> None:
    async with opened() as stores:
        for number in range(5):
            after = f"h{number - 1}-2" if number else None
            await say(stores, f"h{number}", "mine word", "fine", after=after)
            after = f"t{number - 1}-2" if number else None
            await say(stores, f"t{number}", "yours canary word", "fine", key=THERE, after=after)
        await index(stores)

        found = await find(stores, ["word", "canary"], messages=["t1-1"], limit=99)

        assert ids(found) == {"word": {f"h{number}-1" for number in range(5)}}
        assert not found.messages
        assert not [turn for turn in found.turns if "canary" in turn.text]
        with pytest.raises(NotFound):
            await find(stores, ["word"], upto=NodeId("t1-1"), limit=9)


async def test_of_a_frequent_word_the_newest_are_found_and_those_beside_a_rare_one(
    opened: Open,
) -> None:
    async with opened() as stores:
        others = ["else"] * 4
        await say(stores, "a", "frequent rare", *others, *["frequent again", *others] * 20)
        await index(stores)

        found = await find(stores, ["frequent", "rare"], limit=10)

    assert found.words["rare"].depths == {0}
    assert found.words["frequent"].depths >= set(range(55, 105, 5))
    assert 18 <= found.words["frequent"].total <= 24


async def test_a_word_that_most_turns_hold_is_left_out_also_while_the_index_is_behind(
    opened: Open,
) -> None:
    async with opened() as stores:
        await say(stores, "a", "frequent rare", *["frequent", "else"] * 20)
        await index(stores)
        await say(stores, "b", *["else"] * 120, after="a-41")

        found = await find(stores, ["frequent", "rare"], limit=10)

    assert found.words.keys() == {"rare"}


async def test_a_word_is_looked_for_again_once_it_is_no_longer_in_most_turns(opened: Open) -> None:
    async with opened() as stores:
        await say(stores, "a", *["frequent", "else"] * 20)
        await index(stores)
        before = await find(stores, ["frequent"], limit=10)
        await say(stores, "b", *["else"] * 120, "frequent", "else", after="a-40")
        await index(stores)

        found = await find(stores, ["frequent"], limit=10)

    assert not before.words
    assert max(found.words["frequent"].depths) == 160


async def test_an_unknown_session_knows_nothing(opened: Open) -> None:
    async with opened() as stores:
        assert await find(stores, ["word"], limit=9) == FoundTurns()
        assert list(await stores.facts.unindexed(limit=9)) == []
        assert list(await stores.facts.index_turns([HERE], limit=9)) == []


async def test_sessions_are_behind_until_all_that_was_said_is_looked_at(opened: Open) -> None:
    async with opened() as stores:
        await say(stores, "a", "one", "two", "three", "four")
        await say(stores, "b", "five", "six", key=THERE)

        behind = list(await stores.facts.unindexed(limit=9))
        first = await stores.facts.index_turns([HERE, THERE], limit=3)
        then = await stores.facts.index_turns([HERE, THERE], limit=3)

        assert behind == [HERE, THERE]
        assert (list(first), list(then)) == ([HERE, THERE], [])
        assert list(await stores.facts.unindexed(limit=9)) == []


async def test_an_unindexed_session_is_known_to_have_no_turns_until_it_is_indexed(
    opened: Open,
) -> None:
    async with opened() as stores:
        await say(stores, "a", "one", "two")
        unknown = stores.facts.may_find(HERE, ["one"], 2)
        assert not (await find(stores, ["one"])).words
        empty = stores.facts.may_find(HERE, ["one"], 2)
        await index(stores, HERE)

        assert (unknown, empty, stores.facts.may_find(HERE, ["one"], 2)) == (True, False, True)
        assert (await find(stores, ["one"])).words.keys() == {"one"}


async def test_a_word_in_most_indexed_turns_is_left_out_however_far_the_index_is_behind(
    opened: Open,
) -> None:
    async with opened() as stores:
        await say(stores, "a", *["frequent", "else"] * 9, "rare", "else")
        await index(stores)
        await say(stores, "b", *["else"] * 120, after="a-20")

        assert (await find(stores, ["frequent", "rare"], limit=64)).words.keys() == {"rare"}


async def test_a_question_of_common_words_is_not_asked_until_the_session_has_grown_by_a_fifth(
    opened: Open,
) -> None:
    async with opened() as stores:
        await say(stores, "a", *["frequent", "else"] * 9, "rare", "else")
        await index(stores, HERE)
        may = partial(stores.facts.may_find, HERE)
        unasked = may(["else"], 20)
        await find(stores, ["frequent", "else", "rare"])

        asked = [may(["frequent", "else"], length) for length in (0, 19, 20, 24, 25)]
        assert (unasked, asked) == (True, [True, True, False, False, True])
        assert may(["else", "rare"], 20)


async def test_a_word_is_asked_for_if_a_form_of_it_may_be_indexed(
    opened: Open,
) -> None:
    async with opened() as stores:
        unknown = stores.facts.may_find(THERE, ["zebra"], 0)
        await say(stores, "a", "The dogs were running")
        await index(stores, HERE)
        await say(stores, "b", "past the café")
        await index(stores, HERE)

        asked = ["dog", "dogma", "runs", "cafe", "cat", "zebra"]
        seen = [word for word in asked if stores.facts.may_find(HERE, [word], 0)]
        assert (unknown, seen) == (True, ["dog", "runs", "cafe"])
        assert stores.facts.may_find(HERE, ["zebra", "dog"], 0)
        assert not stores.facts.may_find(HERE, [], 0)


async def test_a_word_is_never_a_query(opened: Open) -> None:
    words = [
        '"',
        'a" OR "b',
        "*",
        "a*",
        "NEAR(a b)",
        "words:a",
        "\0",
        "-a",
        "a AND b",
        "",
        "x" * 99,
    ]
    async with opened() as stores:
        await say(stores, "a", "a b words near", 'a" OR "b')
        await index(stores)

        found = [word for word in words if (await find(stores, [word], limit=9)).words]

    assert found == []


async def test_a_text_that_no_row_can_hold_is_refused(opened: Open) -> None:
    async with opened() as stores:
        with pytest.raises(TextRefused):
            await find(stores, ["a"], session_key("\ud800"), limit=9)
        with pytest.raises(TextRefused):
            await find(stores, ["a"], messages=["\ud800"], limit=9)


async def test_a_huge_or_odd_message_does_not_stop_the_others(opened: Open) -> None:
    async with opened() as stores:
        await say(stores, "a", "begin " + "x" * 1_000_000, "a\0b nul", "🙂" * 50, "end")
        await index(stores)

        found = await find(stores, ["begin", "nul", "end"], limit=9)

        assert ids(found) == {"begin": {"a-1"}, "nul": {"a-2"}, "end": {"a-4"}}
        assert len(found.turns[0].text) < 5000


@pytest.mark.parametrize("kind", ["fact", "scope", "session"])
async def test_what_told_a_forgotten_fact_is_not_recalled(opened: Open, kind: str) -> None:
    """Nor what was answered to it; what was said later is."""
    async with opened() as stores:
        await say(stores, "a", "my dog is Luna", "hello Luna")
        await say(stores, "b", "no dog at all", "none", after="a-2")
        await say(stores, "c", "a dog elsewhere", "fine", key=THERE)
        await index(stores)
        source = SaidSource("msg-a", HERE, NOON, "my dog is Luna", HERE.peer)
        claim = Claim("user", "dog name", "Luna", True, NOON, HERE, source=source)
        await stores.facts.add_facts(str(HERE), [claim], ids=["f"], now=NOON)

        what = {
            "fact": Erasure(fact_id="f"),
            "scope": Erasure(scope=str(HERE)),
            "session": Erasure(session_key=HERE),
        }
        await stores.facts.erase_facts(what[kind], dry_run=False, now=NOON + timedelta(days=99))
        found = await found_by(stores, "dog", "luna")
        elsewhere = await found_by(stores, "dog", key=THERE)

    assert found == {"dog": {"b-1"} if kind == "fact" else set(), "luna": set()}
    assert elsewhere == {"dog": {"c-1"}}
