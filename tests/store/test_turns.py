"""The index of what was said: whose conversation a message belongs to, and what is left of it."""

import contextlib
import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.facts import FoundTurns, Trail, stem_of, words_of
from gateway.store.opening import open_store
from gateway.store.tables import WORDS, migrate
from gateway.store.turns import PAGE_BYTES, KnownStems, TurnIndex, trail_of
from gateway.store.writer import Engine, open_to_read
from tests.conformance.test_turns import HERE, THERE, everything, found_by, index, say
from tests.fakes.clock import FakeClock
from tests.fakes.store import NOON, InlineReaders
from tests.forms import is_long
from tests.store.versions import of_version

BEFORE_TURNS = 4  # version of the schema
FORKS = "SELECT place & 0xffffffff, parent & 0xffffffff FROM node INDEXED BY node_fork WHERE parent IS NOT place - 1 ORDER BY place"

Tree = list[int | None]  # of each message, in time, the number of its parent


@st.composite
def trees(draw: st.DrawFn) -> tuple[Tree, int | None]:
    parents: Tree = []
    for seq in range(1, draw(st.integers(1, 30)) + 1):
        last = seq - 1 or None
        other = st.none() | st.integers(1, seq - 1) if last else st.none()
        parents.append(draw(st.just(last) | other))
    return parents, draw(st.none() | st.integers(1, len(parents)))


def above(parents: Tree, seq: int | None) -> set[int]:
    seen = set()
    while seq is not None:
        seen.add(seq)
        seq = parents[seq - 1]
    return seen


def blocks_of(file: Path) -> bytes:
    with contextlib.closing(sqlite3.connect(file)) as db:
        return b"".join(row[0] for row in db.execute("SELECT block FROM turn_data"))


@given(trees())
def test_a_trail_is_the_path_and_the_last_word_of_each_earlier_conversation(
    grown: tuple[Tree, int | None],
) -> None:
    parents, head = grown
    forks = [(seq, up) for seq, up in enumerate(parents, 1) if up is None or up != seq - 1]
    path = above(parents, head)
    newest = {min(above(parents, seq)): seq for seq in range(1, len(parents) + 1)}
    earlier = [tip for root, tip in newest.items() if not path or root < min(path)]
    expected = sorted(path.union(*(above(parents, tip) for tip in earlier)))

    trail = trail_of(forks, head, len(parents))

    seen = [seq for seq in range(1, len(parents) + 1) if trail.depth_of(seq) is not None]
    assert seen == expected
    assert [trail.depth_of(seq) for seq in seen] == list(range(trail.length))
    assert [trail.seq_at(depth) for depth in range(trail.length)] == seen
    assert trail.depth_of(0) is None
    assert trail.depth_of(len(parents) + 1) is None


def test_a_conversation_from_before_there_was_an_index_is_found(tmp_path: Path) -> None:
    db = of_version(BEFORE_TURNS, tmp_path / "old.db")
    db.execute("INSERT INTO session (id, key, agent, channel, account, peer, created_at, updated_at)"
               " VALUES (1, 'a:b:c:d', 'a', 'b', 'c', 'd', 1, 1)")  # fmt: skip
    for seq, parent in [(1, None), (2, 1), (3, 1), (4, 3), (5, None)]:
        up = None if parent is None else 1 << 32 | parent
        row = (1 << 32 | seq, f"n{seq}", up)
        db.execute("INSERT INTO node VALUES (?, ?, ?, 'r', 'user', 't', NULL, 'complete', 1, NULL, 1, NULL)", row)  # fmt: skip

    migrate(db)

    assert db.execute(FORKS).fetchall() == [(1, None), (3, 1), (5, None)]
    db.close()


async def test_no_word_of_what_is_forgotten_stays_in_the_file(tmp_path: Path) -> None:
    async with open_store("embedded", tmp_path, clock=FakeClock()) as stores:
        await say(stores, "a", *(f"unspeakable{number} word" for number in range(50)))
        await index(stores, HERE)
        await say(stores, "b", "harmless word", "fine", key=THERE)
        await index(stores, THERE)

        await stores.sessions.erase(HERE, by="ann", dry_run=False, now=NOON)

        assert await found_by(stores, "word") == {}
        assert await found_by(stores, "word", key=THERE) == {"word": {"b-1"}}
    kept = await to_thread.run_sync(blocks_of, tmp_path / "store.db")
    assert b"unspeak" not in kept
    assert b"harmless" in kept


async def test_where_the_index_stopped_is_known_after_a_restart(tmp_path: Path) -> None:
    async with open_store("embedded", tmp_path, clock=FakeClock()) as stores:
        await say(stores, "a", "one word", "two words", "three words")
        await stores.facts.index_turns([HERE], limit=2)

    async with open_store("embedded", tmp_path, clock=FakeClock()) as stores:
        assert await found_by(stores, "word") == {"word": {"a-1", "a-2"}}
        assert list(await stores.facts.unindexed(limit=9)) == [HERE]
        await index(stores, HERE)
        assert await found_by(stores, "word") == {"word": {"a-1", "a-2", "a-3"}}


@pytest.mark.parametrize("limit", [0, 1, 9])
async def test_what_is_erased_before_all_of_it_is_indexed_harms_no_index(
    tmp_path: Path, limit: int
) -> None:
    async with open_store("embedded", tmp_path, clock=FakeClock()) as stores:
        await say(stores, "a", "one word", "another word", "fine")
        await stores.facts.index_turns([HERE], limit=limit)

        earlier = NOON.replace(year=2020)  # so that what is said at noon is not forgotten with it
        await stores.sessions.erase(HERE, by="ann", dry_run=False, now=earlier)
        await say(stores, "b", "new word")
        await index(stores, HERE)

        assert await found_by(stores, "word") == {"word": {"b-1"}}


def test_of_a_session_in_which_nothing_is_answered_yet_nothing_is_seen() -> None:
    assert trail_of((), None, 1) == Trail()


async def test_of_a_session_that_an_earlier_process_indexed_every_word_is_asked_for(
    tmp_path: Path,
) -> None:
    async with open_store("embedded", tmp_path, clock=FakeClock()) as stores:
        await say(stores, "a", "one word")
        await index(stores, HERE)
        assert not stores.facts.may_find(HERE, ["other"], 0)

    async with open_store("embedded", tmp_path, clock=FakeClock()) as stores:
        await say(stores, "b", "more words", after="a-1")
        await index(stores, HERE)
        assert stores.facts.may_find(HERE, ["other"], 0)


async def test_a_session_with_too_many_new_words_at_once_is_searched_for_every_word(
    tmp_path: Path,
) -> None:
    async with open_store("embedded", tmp_path, clock=FakeClock()) as stores:
        await say(stores, "a", " ".join(f"w{number}" for number in range(4_001)))
        await say(stores, "b", "few words", key=THERE)
        await stores.facts.index_turns([HERE, THERE], limit=9)

        assert stores.facts.may_find(HERE, ["other"], 0)
        assert not stores.facts.may_find(THERE, ["other"], 0)
        assert (await found_by(stores, "w4000")) == {"w4000": {"a-1"}}


ENDINGS = st.sampled_from(
    [
        "s",
        "es",
        "ies",
        "sses",
        "ed",
        "eed",
        "ing",
        "y",
        "e",
        "ll",
        "at",
        "ational",
        "izer",
        "bli",
        "logi",
        "ness",
        "icate",
        "ful",
        "al",
        "ence",
        "able",
        "ement",
        "ion",
        "ous",
    ]
)
FORMS = st.tuples(st.text("abdeilostuyz1", max_size=5), st.lists(ENDINGS, max_size=3))


def terms_of(words: Sequence[str]) -> Mapping[str, str]:
    """The term under which the index of the store keeps each word."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.execute(next(one for one in WORDS if "EXISTS turn " in one))
        db.execute("CREATE VIRTUAL TABLE term USING fts5vocab (turn, instance)")
        db.executemany("INSERT INTO turn (rowid, words) VALUES (?, ?)", enumerate(words))
        return {words[place]: term for term, place in db.execute("SELECT term, doc FROM term")}


@given(st.lists(FORMS, min_size=1))
def test_the_stem_of_a_plain_word_is_the_term_of_the_index(forms: list[Any]) -> None:
    words = [word for start, endings in forms for word in words_of(start + "".join(endings))]
    assert {word: stem_of(word) for word in words} == terms_of(words)


def test_words_with_the_same_term_have_the_same_stem_whatever_their_letters() -> None:
    planes = (range(0x20000), range(0x20000, 0x110000, 1 if is_long() else 64))
    letters = (chr(code) for code in chain(*planes) if not 0xD800 <= code < 0xE000)
    words = {*words_of(" ".join(f"ab{letter}s" for letter in letters))}
    stems: dict[str, str] = {}
    assert {
        word
        for word, term in terms_of([*words]).items()
        if stems.setdefault(term, stem_of(word)) != stem_of(word)
    } == set()


def test_the_stems_of_the_newest_sessions_are_kept_if_none_of_their_messages_is_missing() -> None:
    known = KnownStems(most=4)
    known.add(HERE, 0, 2, ["one"])
    known.add(THERE, 0, 2, ["one", "two"])
    known.add(HERE, 2, 4, ["one", "three"])
    assert (known.get(HERE), known.get(THERE)) == ({"one", "three"}, {"one", "two"})

    known.add(HERE, 4, 6, ["four"])
    assert (known.get(HERE), known.get(THERE)) == ({"one", "three", "four"}, None)

    known.add(HERE, 8, 9, ["five"])
    assert known.get(HERE) is None


def longest_block(file: Path) -> int:
    with contextlib.closing(sqlite3.connect(file)) as db:
        return int(db.execute("SELECT max(length(block)) FROM turn_data").fetchone()[0])


async def test_the_index_is_kept_in_small_pages_however_much_was_said(tmp_path: Path) -> None:
    """All of a page is read to find one place in it, whoever said the rest of it."""
    async with open_store("embedded", tmp_path, clock=FakeClock()) as stores:
        for number in range(10):
            texts = [f"common words of everybody {number}"] * 100
            await say(stores, f"t{number}", *texts, key=THERE)
        await index(stores)

        assert await found_by(stores, "common", key=HERE) == {}
    assert await to_thread.run_sync(longest_block, tmp_path / "store.db") <= 2 * PAGE_BYTES


NOTHING: Any = None  # of the engine


async def asked_for(file: Path, words: Sequence[str]) -> tuple[FoundTurns, int]:
    """What is found, and how many times the index was asked."""
    asked: list[str] = []
    db = await to_thread.run_sync(partial(open_to_read, file, any_thread=True))
    db.set_trace_callback(asked.append)
    turns = TurnIndex(Engine(NOTHING, InlineReaders(db, file), NOTHING, NOTHING))
    found = await turns.find_turns(HERE, words, everything, limit=9)
    await to_thread.run_sync(db.close)
    return found, sum("FROM turn WHERE turn MATCH" in one for one in asked)


async def test_the_index_is_asked_once_for_all_words_and_once_for_where_they_meet(
    tmp_path: Path,
) -> None:
    async with open_store("embedded", tmp_path, clock=FakeClock()) as stores:
        some = [f"word{number} {'often' if number % 9 == 0 else ''}" for number in range(100)]
        await say(stores, "a", *some)
        await index(stores, HERE)
    words = [f"word{number}" for number in range(20)]

    rare, once = await asked_for(tmp_path / "store.db", words)
    both, twice = await asked_for(tmp_path / "store.db", [*words, "often"])

    assert rare.words.keys() == set(words)
    assert once == 1
    assert both.words["often"].depths >= {0, 9, 18, 99}
    assert twice == 2
