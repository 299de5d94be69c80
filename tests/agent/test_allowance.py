"""Nobody who works for a run is given what another has, and the run keeps a share itself."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import anyio
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.agents import Limits
from gateway.domain.messages import ToolCall
from gateway.domain.ports import Allowance
from tests.agent.test_driver import AGENT, Stage
from tests.fakes.model import ScriptedModel, says
from tests.fakes.tools import FakeTool

REPLY = 10  # tokens of each


class Sharing:
    """Delegates that ask for their share one after the other, and answer once all of their step
    have it. `shares` are in the order in which they asked."""

    def __init__(self) -> None:
        self.shares: list[Allowance] = []
        self._places: dict[object, tuple[anyio.Event, anyio.Event, anyio.Event]] = {}

    def step(self, *names: str, order: Sequence[int] = ()) -> Sequence[ToolCall]:
        """The calls of one step, which have their turn in this order, or in another."""
        first = len(self._places)
        calls = [ToolCall(f"{n}", name, f'{{"n":{n}}}') for n, name in enumerate(names, first)]
        order = order or range(first, first + len(names))
        turns = [anyio.Event() for _ in range(len(order) + 1)]
        turns[0].set()
        for place, number in enumerate(order):
            self._places[number] = (turns[place], turns[place + 1], turns[-1])
        return calls

    def tool(self, name: str) -> FakeTool:
        async def act(arguments: Mapping[str, object]) -> str:
            mine, following, last = self._places[arguments["n"]]
            await mine.wait()
            scope = next(scope for given, scope in tool.calls if given == arguments)
            assert scope.allowance is not None
            if name != "echo":
                self.shares.append(scope.allowance())
            following.set()
            await last.wait()
            return "ok"

        tool = FakeTool(name, act)
        return tool


async def run(sharing: Sharing, left: int, *steps: Sequence[ToolCall]) -> Sequence[int]:
    """The shares, of a run that has so many tokens left after its first reply."""
    names = ("delegate_a", "delegate_b", "echo")
    most = {"max_parallel_tools": 20, "max_tool_calls_per_turn": 20}
    limits = Limits(token_budget=left + REPLY, **most)
    agent = replace(AGENT, tools=names, limits=limits)
    model = ScriptedModel(*(says("", *calls, tokens=REPLY) for calls in steps), says("done"))
    await Stage(model, *map(sharing.tool, names), agent=agent).drive()
    return [share.tokens for share in sharing.shares]


async def test_each_that_waits_gets_as_much_as_the_run_keeps() -> None:
    sharing = Sharing()

    shares = await run(sharing, 9_000, sharing.step("delegate_a", "delegate_b", "echo"))

    assert shares == [3_000, 3_000]


async def test_what_one_did_not_use_is_there_for_the_next() -> None:
    sharing = Sharing()

    shares = await run(sharing, 9_000, sharing.step("delegate_a"), sharing.step("delegate_b"))

    assert shares == [4_500, (9_000 - REPLY) // 2]


async def test_each_has_all_the_time_that_is_left() -> None:
    sharing = Sharing()

    await run(sharing, 9_000, sharing.step("delegate_a"))

    assert [share.seconds for share in sharing.shares] == [AGENT.limits.timeout_seconds]


@given(st.integers(1_000, 1_000_000), st.permutations(range(20)), st.integers(1, 20))
def test_together_they_never_have_more_than_is_left(
    left: int, places: list[int], count: int
) -> None:
    order = [place for place in places if place < count]

    async def share() -> Sequence[int]:
        sharing = Sharing()
        return await run(sharing, left, sharing.step(*["delegate_a"] * count, order=order))

    shares = anyio.run(share)

    assert len(shares) == count
    assert min(shares) >= 0
    assert sum(shares) <= left
    assert max(shares) - min(shares) <= 1
