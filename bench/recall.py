"""Measures the quality of recall, and its cost in long sessions.

    python -m bench.recall [--quick] [--json FILE]

It uses a fresh embedded store and generated conversations (bench/conversations.py), with questions whose
answers are known turns; recall@10 is the share of these among the first ten results. The same run measures
FTS5's BM25 on single turns with the same words and, if `wordllama` is installed, vectors of single
turns.
"""

import argparse
import sqlite3
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import anyio

from bench.conversations import BEGIN, TOPICS, Conversation, Said, conversation
from bench.marks import Figure, marked, report
from bench.measuring import spread, timed
from bench.process import other_cores
from gateway.domain.facts import Claim, fact_view, scope_of, words_of
from gateway.domain.ids import AgentId, MessageId, NodeId, RunId, SessionKey
from gateway.domain.inbox import Ending, NewEntry
from gateway.domain.messages import Message, Node
from gateway.domain.ports import Stores
from gateway.host.clock import SystemClock
from gateway.memory.recall import STOP_WORDS, Indexer, Recall
from gateway.store.opening import open_store

FOUND = 10
AGAINST_BM25, AGAINST_SHORT, LONG_MS = 1.15, 1.5, 5.0
AT_ONCE = 500  # messages per commit
SHORT, ROUNDS = 1_000, 9

Find = Callable[[str], Awaitable[Sequence[int]]]


def key_of(number: int) -> SessionKey:
    return SessionKey(AgentId("a"), "websocket", "local", f"p{number}")


def name_of(key: SessionKey, number: int) -> NodeId:
    return NodeId(f"{key.peer}-{number}")


async def say(stores: Stores, key: SessionKey, turns: Sequence[Said]) -> None:
    """Stores messages as runs do, many per commit."""
    head = None
    for start in range(0, len(turns), AT_ONCE):
        run = RunId(f"{key.peer}-run-{start}")
        nodes = [
            Node(name_of(key, number), None, run, Message(said.role, said.text), said.at, 20)
            for number, said in enumerate(turns[start : start + AT_ONCE], start)
        ]
        at = nodes[-1].created_at
        entry = NewEntry(MessageId(f"m-{run}"), run, key, "", at)
        await stores.inbox.accept(entry, begin=True)
        ending = Ending(
            run,
            key,
            "done",
            "answered",
            tuple(nodes),
            head,
            take_head=True,
            journal=bytes,
            summary="{}",
            finished_at=at,
        )
        await stores.inbox.finish(ending)
        head = nodes[-1].id
    await Indexer(stores.facts, SystemClock()).catch_up(key)


async def finding(stores: Stores, many: int) -> list[Figure]:
    ours, bm25 = [], []
    for seed in range(many):
        made, key = conversation(seed), key_of(seed)
        await say(stores, key, made.turns)
        recall = Recall(stores.facts)

        async def find(
            question: str, key: SessionKey = key, recall: Recall = recall
        ) -> Sequence[int]:
            found = await recall.of(question, key, fact_view(key, None), limit=FOUND)
            return [int(one.id.rpartition("-")[2]) for one in found if one.kind == "turn"]

        ours.append(await recalled(made, find))
        with closing(sqlite3.connect(":memory:")) as db:
            bm25.append(await recalled(made, plain_bm25(made, db)))
    name, told = f"recall@{FOUND}", median(bm25)
    ratio = Figure(f"{name} against BM25", "share", median(ours), told, base="BM25")
    return [
        marked(ratio, AGAINST_BM25, ratio=True, at_least=True),
        *(await vectors(many, median(ours))),
    ]


async def recalled(made: Conversation, find: Find) -> float:
    shares = []
    for question in made.questions:
        found = set((await find(question.text))[:FOUND])
        shares.append(len(question.evidence & found) / len(question.evidence))
    return sum(shares) / len(shares)


def plain_bm25(made: Conversation, db: sqlite3.Connection) -> Find:
    db.execute("CREATE VIRTUAL TABLE said USING fts5 (text, tokenize = 'porter unicode61')")
    rows = [(number, said.text) for number, said in enumerate(made.turns)]
    db.executemany("INSERT INTO said (rowid, text) VALUES (?, ?)", rows)

    async def find(question: str) -> Sequence[int]:
        words = [word for word in words_of(question) if word not in STOP_WORDS]
        query = " OR ".join(f'"{word}"' for word in words)
        best = "SELECT rowid FROM said WHERE said MATCH ? ORDER BY bm25(said) LIMIT ?"
        return [row[0] for row in db.execute(best, (query, FOUND))]

    return find


async def vectors(many: int, ours: float) -> list[Figure]:
    try:
        import wordllama  # type: ignore[import-not-found]  # noqa: PLC0415  # optional
    except ImportError:
        print("wordllama is not installed, so vectors are not compared", file=sys.stderr)
        return []
    # It searches a wrong path for its weights, and then downloads them.
    here = Path(wordllama.__file__).parent
    llama, shares = wordllama.WordLlama.load(cache_dir=here, disable_download=True), []
    for seed in range(many):
        made = conversation(seed)
        turns = llama.embed([said.text for said in made.turns], norm=True)

        async def find(question: str, turns: Any = turns) -> Sequence[int]:
            alike = turns @ llama.embed([question], norm=True)[0]
            return [int(number) for number in (-alike).argsort()[:FOUND]]

        shares.append(await recalled(made, find))
    return [Figure(f"recall@{FOUND} against vectors", "share", ours, median(shares))]


async def cost(stores: Stores, long: int) -> list[Figure]:
    """Measures the same questions in a short and in a long session, alternating."""
    recall = Recall(stores.facts)
    questions = [question.text for question in conversation(0).questions]
    keys = {length: key_of(number) for number, length in enumerate((SHORT, long), 1000)}
    for length, key in keys.items():
        await say(stores, key, long_talk(length))
        await learn(stores, key)
    took: dict[int, list[float]] = {length: [] for length in keys}
    for _ in range(ROUNDS):
        for length, key in keys.items():
            asked = iter(questions)
            ask = partial(_ask, recall, asked, key)
            took[length].append(median(await timed(ask, len(questions))))
    short, far = took[SHORT], took[long]
    name = f"recall p50 in {long:,} messages"
    told = Figure(name, "ms", median(far), spread=spread(far))
    ratio = Figure(f"{name} against {SHORT:,}", "ms", median(far), median(short), base="short")
    return [marked(told, LONG_MS), marked(ratio, AGAINST_SHORT, ratio=True)]


async def _ask(recall: Recall, asked: Iterator[str], key: SessionKey) -> object:
    return await recall.of(next(asked), key, fact_view(key, None))


async def learn(stores: Stores, key: SessionKey) -> None:
    """Adds a few facts of each topic, so that recall includes facts."""
    claims = [
        Claim("user", f"{noun}_{number}", value, functional=True, valid_from=BEGIN, session_key=key)
        for nouns, values in TOPICS
        for noun in nouns
        for number, value in enumerate(values)
    ]
    ids = [f"{key.peer}-fact-{number}" for number in range(len(claims))]
    await stores.facts.add_facts(scope_of(key, None), claims, ids=ids, now=BEGIN)


def long_talk(length: int) -> list[Said]:
    turns: list[Said] = []
    seed = 0
    while len(turns) < length:
        turns += conversation(seed).turns
        seed += 1
    return turns[:length]


async def measure(home: Path, many: int, long: int) -> list[Figure]:
    print(f"other load: {other_cores():.2f} cores", file=sys.stderr)
    async with open_store("embedded", home, clock=SystemClock()) as stores:
        return await finding(stores, many) + await cost(stores, long)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--micro", action="store_true", help="only whether it runs")
    parser.add_argument("--json", type=Path, help="where to put the figures too")
    args = parser.parse_args()
    many, long = (1, 2_000) if args.micro else (3, 20_000) if args.quick else (10, 100_000)
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        figures = anyio.run(measure, Path(home), many, long, backend_options={"use_uvloop": True})
    report(figures, args.json)


if __name__ == "__main__":
    main()
