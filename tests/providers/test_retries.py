"""A failed call is tried again when that is safe and worth it, and never sooner than told."""

from collections.abc import Sequence

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import RETRYABLE, FailureKind, ModelFailed
from gateway.domain.model import ModelReply, ModelRequest, OnDelta, ProviderDef
from gateway.domain.ports import HttpFailed
from gateway.providers.client import ProviderClient, pause_s
from tests.fakes.clock import FakeClock
from tests.fakes.http import ScriptedHttp
from tests.providers.asking import Heard, a_request

REPLY = ModelReply("p", "m", "ok")


def failed(
    kind: FailureKind = "rate", *, started: bool = False, after: float | None = None
) -> ModelFailed:
    return ModelFailed("p", kind, "no", started=started, retry_after_s=after)


class Attempts:
    def __init__(self, *outcomes: ModelFailed | ModelReply) -> None:
        self.outcomes = list(outcomes)
        self.count = 0
        self.left_s: list[float] = []

    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        self.left_s.append(request.deadline_s)
        self.count += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, ModelFailed):
            raise outcome
        return outcome


async def run(
    attempts: Attempts, *, most: int = 3, deadline_s: float = 60, random: float = 0.5
) -> tuple[ModelReply | ModelFailed, Sequence[float]]:
    """What it comes to, and the pauses; the clock moves as soon as someone sleeps."""
    clock = FakeClock()
    definition = ProviderDef("p", "openai", "http://127.0.0.1:1/v1", max_retries=most)
    nobody = ScriptedHttp(HttpFailed("network", "not asked"))
    client = ProviderClient(definition, nobody, clock, lambda: random, lambda _: attempts)
    ended: list[ModelReply | ModelFailed] = []

    async def ask() -> None:
        try:
            ended.append(await client.reply(a_request(deadline_s=deadline_s), Heard()))
        except ModelFailed as error:
            ended.append(error)
        group.cancel_scope.cancel()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            while True:
                await clock.until_someone_sleeps()
                clock.move(clock.slept[-1])
    return ended[0], clock.slept


async def test_each_try_is_told_how_much_time_is_left() -> None:
    attempts = Attempts(failed(), failed(), REPLY)
    _, slept = await run(attempts, deadline_s=60)

    assert attempts.left_s == [60, 60 - slept[0], 60 - sum(slept)]


async def test_a_call_is_tried_again_with_growing_pauses() -> None:
    attempts = Attempts(failed(), failed("server"), failed("network"), REPLY)

    outcome, slept = await run(attempts)

    assert outcome == REPLY
    assert slept == [0.25, 0.5, 1.0]
    assert attempts.count == 4


async def test_after_the_last_retry_the_failure_stands() -> None:
    last = failed("overloaded")

    outcome, slept = await run(Attempts(failed(), failed(), failed(), last))

    assert outcome is last
    assert len(slept) == 3


async def test_what_was_heard_is_never_said_again() -> None:
    outcome, slept = await run(Attempts(failed("truncated", started=True), REPLY))

    assert isinstance(outcome, ModelFailed)
    assert slept == []


@pytest.mark.parametrize(
    "kind", ["auth", "bad_request", "context_overflow", "not_found", "protocol", "refused_key"]
)
async def test_what_cannot_get_better_is_not_tried_again(kind: FailureKind) -> None:
    outcome, slept = await run(Attempts(failed(kind), REPLY))

    assert isinstance(outcome, ModelFailed)
    assert slept == []


@pytest.mark.parametrize("kind", sorted(RETRYABLE))
async def test_what_may_get_better_is_tried_again(kind: FailureKind) -> None:
    assert (await run(Attempts(failed(kind), REPLY)))[0] == REPLY


async def test_a_wait_that_was_asked_for_is_kept() -> None:
    outcome, slept = await run(Attempts(failed(after=20.0), REPLY))

    assert outcome == REPLY
    assert len(slept) == 1
    assert 20.0 <= slept[0] <= 21.0


async def test_a_wait_beyond_the_deadline_gives_up_at_once_and_says_until_when() -> None:
    outcome, slept = await run(Attempts(failed(after=61.0), REPLY))

    assert isinstance(outcome, ModelFailed)
    assert outcome.retry_after_s == 61.0
    assert slept == []


@given(st.floats(0, 1e6), st.floats(0, 1, exclude_max=True), st.integers(0, 5), st.floats(0, 200))
def test_nobody_is_asked_sooner_than_they_said_nor_after_the_deadline(
    told: float, random: float, tried: int, left: float
) -> None:
    pause = pause_s(failed(after=told), tried, left, lambda: random)

    assert pause is None or told <= pause < left


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 30))
def test_without_a_word_the_pause_is_bounded(random: float, tried: int) -> None:
    pause = pause_s(failed(), tried, 1000.0, lambda: random)

    assert pause is not None
    assert 0 <= pause <= min(8.0, 0.5 * 2.0**tried)
