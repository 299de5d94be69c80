"""Measures the cost of packing a request, in a small and in a large store.

    python -m bench.packing [--quick] [--json FILE]

On a fresh embedded store, it reads the window again, recalls facts and turns for the question, and packs all of
it within the agent's allowance. The same questions alternate between a person with a thousand facts and a
session of a thousand messages, a person with a million facts, and a person with a thousand facts in the same
store, the last two in sessions of 100,000 messages.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from statistics import median

import anyio

from bench.conversations import BEGIN, TOPICS, conversation
from bench.marks import Figure, marked, report
from bench.measuring import rss_mb, spread, timed
from bench.process import other_cores
from bench.recall import key_of, long_talk, say
from gateway.domain.agents import AgentDef
from gateway.domain.facts import Claim, SaidSource, scope_of
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.messages import Message
from gateway.domain.ports import Stores
from gateway.host.clock import SystemClock
from gateway.memory.context import Context, ContextExtras, Episodes, Packer
from gateway.memory.recall import Recall
from gateway.store.opening import open_store

PACK_MS, AGAINST_SMALL, RSS_MB = 5.0, 1.5, 200.0
SMALL, AT_ONCE, ROUNDS = 1_000, 1_000, 9
PACKER = Packer()
AGENT = AgentDef(AgentId("a"), "p", "m")


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    key: SessionKey
    facts: int
    messages: int


def cases(facts: int, messages: int) -> tuple[Case, ...]:
    return (
        Case("small", key_of(1), SMALL, SMALL),
        Case(f"{facts:,} facts of one person", key_of(2), facts, messages),
        Case(f"{SMALL:,} facts beside these", key_of(3), SMALL, messages),
    )


async def learn(stores: Stores, case: Case) -> None:
    """Adds facts about the topics of the conversations, so that each word is in many facts."""
    things = [(noun, value) for nouns, values in TOPICS for noun, value in product(nouns, values)]
    key, source = case.key, SaidSource("elsewhere", case.key, BEGIN, "as I said", case.key.peer)
    first = Claim(
        "user", "p", "o", functional=True, valid_from=BEGIN, session_key=key, source=source
    )
    told = (
        replace(first, predicate=f"{noun}_{number}", object=value)
        for number in range(case.facts)
        for noun, value in things
    )
    for start in range(0, case.facts, AT_ONCE):
        claims = list(islice(told, min(AT_ONCE, case.facts - start)))
        ids = [f"{key.peer}-fact-{number}" for number in range(start, start + len(claims))]
        await stores.facts.add_facts(scope_of(key, None), claims, ids=ids, now=BEGIN)


async def packed(stores: Stores, key: SessionKey, question: str) -> Context:
    episode = await Episodes(stores.sessions).recall(key, AGENT.context)
    found = await Recall(stores.facts).for_turn(question, key, None, AGENT, episode)
    extras = ContextExtras(episode.summary, found)
    return PACKER.pack(AGENT, None, episode.nodes, Message("user", question), (), extras=extras)


async def measured(stores: Stores, cases: tuple[Case, ...]) -> Mapping[str, list[float]]:
    """Returns milliseconds, one median per round."""
    questions = [question.text for question in conversation(0).questions]
    took: dict[str, list[float]] = {case.name: [] for case in cases}
    for _ in range(ROUNDS):
        for case in cases:
            asked = iter(questions)

            async def ask(key: SessionKey = case.key) -> None:
                context = await packed(stores, key, next(asked))  # noqa: B023  # used at once
                assert context.memory is not None, "nothing came to mind"

            took[case.name].append(median(await timed(ask, len(questions))))
    return took


async def measure(home: Path, facts: int, messages: int) -> list[Figure]:
    print(f"other load: {other_cores():.2f} cores", file=sys.stderr)
    small, *large = all_of_them = cases(facts, messages)
    async with open_store("embedded", home, clock=SystemClock()) as stores:
        rss = 0.0
        for case in all_of_them:
            await say(stores, case.key, long_talk(case.messages))
            await learn(stores, case)
            rss = rss or rss_mb(os.getpid())
        took = await measured(stores, all_of_them)
        grown = rss_mb(os.getpid()) - rss
    base, figures = median(took[small.name]), []
    for case in large:
        name, ms = f"packing p50, {case.name}", median(took[case.name])
        figures += [
            marked(Figure(name, "ms", ms, spread=spread(took[case.name])), PACK_MS),
            marked(Figure(name, "ms", ms, base, base="small"), AGAINST_SMALL, ratio=True),
        ]
    return [*figures, marked(Figure("RSS growth", "MB", grown), RSS_MB)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--micro", action="store_true", help="only whether it runs")
    parser.add_argument("--json", type=Path, help="where to put the figures too")
    args = parser.parse_args()
    quick, full = (50_000, 10_000), (1_000_000, 100_000)
    sizes = (1_500, 1_500) if args.micro else quick if args.quick else full
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        figures = anyio.run(measure, Path(home), *sizes, backend_options={"use_uvloop": True})
    report(figures, args.json)


if __name__ == "__main__":
    main()
