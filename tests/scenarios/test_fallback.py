"""When the model's service fails: how often it is asked again, who answers instead, what is told."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from tests.fakes.client import connected, texts_of, types_of
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, ModelServer, Reply, scripted_server
from tests.scenarios.scripts import history_of, shown

AT_ONCE = {"retry-after": "0"}  # the pauses of retries are not what these walks are about
HALF_WORDS = ("half ", "of it ", "and more")


def failing(
    model: ModelServer, spare: ModelServer | None = None, *, provider: str = "max_retries = 2"
) -> Setup:
    """An agent with, or without, another one behind it."""
    if spare is None:
        return Setup(model.url, provider=provider)
    fallback = '[agent.fallback]\nprovider = "spare"\nmodel = "m-spare"\n'
    rest = f'[providers.spare]\nwire = "anthropic"\nbase_url = "{spare.url}"\napi_key = "sk-2"\n'
    return Setup(model.url, provider=provider, agent=fallback, rest=rest)


BEFORE_ANYTHING: dict[str, Callable[[Asked], Reply]] = {
    "429": lambda _: Reply(status=429, headers=AT_ONCE),
    "500": lambda _: Reply(status=500, headers=AT_ONCE),
    "502": lambda _: Reply(status=502, headers=AT_ONCE),
    "503": lambda _: Reply(status=503, headers=AT_ONCE),
    "529": lambda _: Reply(status=529, headers=AT_ONCE),
    "cut off before the first token": lambda _: Reply("x", stop_after=1, ending="reset"),
    "ends before the first token": lambda _: Reply("x", stop_after=1),
    "says nothing for too long": lambda _: Reply("x", gate=anyio.Event()),
    "stops before the first token": lambda _: Reply("x", gates={1: anyio.Event()}),
}


@pytest.mark.parametrize("how", BEFORE_ANYTHING)
async def test_what_fails_before_the_first_token_is_retried_and_then_answered_by_the_fallback(
    tmp_path: Path, how: str
) -> None:
    async with (
        scripted_server(BEFORE_ANYTHING[how]) as model,
        scripted_server([Reply("from the spare")]) as spare,
    ):
        setup = failing(model, spare, provider="max_retries = 1\nidle_timeout_s = 0.3")
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            sent = await client.send("hi")
            events = await client.ended(sent["run_id"])
            page = await client.call("chat.history", session_key=sent["session_key"])

    assert (len(model.requests), len(spare.requests)) == (2, 1)
    assert spare.requests[0].body["model"] == "m-spare"
    assert types_of(events) == ["context_update", "content", "usage", "done"]
    assert (events[-1]["response"], events[-1]["model"]) == ("from the spare", "m-spare")
    assert shown(page) == [("user", "hi"), ("assistant", "from the spare")]


async def test_a_service_that_refuses_connections_is_replaced_by_the_fallback(
    tmp_path: Path,
) -> None:
    async with scripted_server([Reply("never")]) as gone:
        pass
    async with scripted_server([Reply("from the spare")]) as spare:
        setup = failing(gone, spare, provider="max_retries = 1")
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            end = await client.ask("hi")

    assert end["response"] == "from the spare"


async def test_a_wait_that_is_longer_than_the_deadline_is_not_begun(tmp_path: Path) -> None:
    busy = Reply(status=429, headers={"retry-after": "3600"})
    async with (
        scripted_server([busy]) as model,
        scripted_server([Reply("from the spare")]) as spare,
        running(failing(model, spare), tmp_path) as site,
        connected(site.url) as client,
    ):
        end = await client.ask("hi")

    assert end["response"] == "from the spare"
    assert len(model.requests) == 1


@pytest.mark.requirement("S-004-Err-01")
async def test_a_wait_that_is_too_long_without_a_fallback_is_told_honestly(tmp_path: Path) -> None:
    busy = Reply(status=429, headers={"retry-after": "3600"})
    async with (
        scripted_server([busy]) as model,
        running(failing(model), tmp_path) as site,
        connected(site.url) as client,
    ):
        end = await client.ask("hi")

    assert (end["type"], end["error_type"], end["retryable"]) == ("error", "provider_error", True)
    assert "no capacity" in end["message"]
    assert len(model.requests) == 1


async def test_a_retry_never_comes_sooner_than_the_service_asked(tmp_path: Path) -> None:
    times: list[float] = []

    def script(asked: Asked) -> Reply:
        times.append(anyio.current_time())
        if asked.number == 1:
            return Reply(status=429, headers={"retry-after-ms": "400"})
        return Reply("now")

    async with (
        scripted_server(script) as model,
        running(failing(model), tmp_path) as site,
        connected(site.url) as client,
    ):
        end = await client.ask("hi")

    assert end["response"] == "now"
    assert times[1] - times[0] >= 0.4


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_a_service_is_asked_as_often_as_configured_and_no_oftener(
    tmp_path: Path, retries: int
) -> None:
    async with scripted_server([Reply(status=500, headers=AT_ONCE)]) as model:
        setup = failing(model, provider=f"max_retries = {retries}")
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            end = await client.ask("hi")

    assert end["error_type"] == "provider_error"
    assert len(model.requests) == retries + 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413])
async def test_what_repeating_cannot_help_is_not_repeated(tmp_path: Path, status: int) -> None:
    async with (
        scripted_server([Reply(status=status, headers=AT_ONCE)]) as model,
        running(failing(model), tmp_path) as site,
        connected(site.url) as client,
    ):
        end = await client.ask("hi")

    assert (end["type"], end["retryable"]) == ("error", False)
    assert len(model.requests) == 1


async def test_a_service_that_recovers_is_not_replaced(tmp_path: Path) -> None:
    bad = Reply(status=503, headers=AT_ONCE)
    async with (
        scripted_server([bad, bad, Reply("back again")]) as model,
        scripted_server([Reply("from the spare")]) as spare,
        running(failing(model, spare), tmp_path) as site,
        connected(site.url) as client,
    ):
        end = await client.ask("hi")

    assert end["response"] == "back again"
    assert (len(model.requests), len(spare.requests)) == (3, 0)


HALF: dict[str, Reply] = {
    "cut off": Reply(HALF_WORDS, stop_after=3, ending="reset"),
    "ends without a word": Reply(HALF_WORDS, stop_after=3),
    "stops for too long": Reply(HALF_WORDS, gates={3: anyio.Event()}),
    "breaks the protocol": Reply(
        raw=[b'data: {"choices":[{"delta":{"content":"half of it "}}]}\n\n', b"data: {nonsense\n\n"]
    ),
}


@pytest.mark.parametrize("how", HALF)
@pytest.mark.requirement("S-004-Err-01", "S-004-Flow-03")
async def test_half_an_answer_is_kept_told_as_an_error_and_never_asked_for_again(
    tmp_path: Path, how: str
) -> None:
    async with (
        scripted_server([HALF[how]]) as model,
        scripted_server([Reply("from the spare")]) as spare,
    ):
        setup = failing(model, spare, provider="max_retries = 3\nidle_timeout_s = 0.3")
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            sent = await client.send("hi")
            events = await client.ended(sent["run_id"])
            page = await client.call("chat.history", session_key=sent["session_key"])

    assert (len(model.requests), len(spare.requests)) == (1, 0)
    assert events[-1]["type"] == "error"
    assert [event["type"] for event in events].count("error") == 1
    assert texts_of(events) == "half of it "
    assert shown(page) == [("user", "hi"), ("assistant", "half of it ")]
    assert page["messages"][-1]["status"] == "partial"


@pytest.mark.requirement("S-004-Flow-03")
async def test_after_a_failure_the_conversation_goes_on(tmp_path: Path) -> None:
    async with (
        scripted_server([Reply(status=400), Reply("better")]) as model,
        running(failing(model), tmp_path) as site,
        connected(site.url) as client,
    ):
        failed = await client.ask("first")
        end = await client.ask("second")

    roles = [role for role, _ in history_of(model.requests[1])]
    assert failed["type"] == "error"
    assert end["response"] == "better"
    assert roles == ["user", "assistant", "user"]


@pytest.mark.requirement("S-004-Err-01")
async def test_a_providers_own_words_reach_no_user(tmp_path: Path) -> None:
    words = b'{"error":{"message":"key sk-of-the-test of org-77 at http://10.0.0.7/ is bad"}}'
    async with (
        scripted_server([Reply(status=401, body=words)]) as model,
        running(failing(model), tmp_path) as site,
        connected(site.url) as client,
    ):
        end = await client.ask("hi")
        everything = str(client.frames)

    assert end["type"] == "error"
    for secret in ("sk-of-the-test", "org-77", "10.0.0.7", model.url):
        assert secret not in everything


async def test_an_answer_that_is_not_streamed_is_complete_too(tmp_path: Path) -> None:
    async with scripted_server([Reply("all at once", usage=(9, 3))]) as model:
        setup = Setup(model.url, agent="stream = false")
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            sent = await client.send("hi")
            events = await client.ended(sent["run_id"])

    assert model.requests[0].body.get("stream") in {None, False}
    assert types_of(events) == ["context_update", "content", "usage", "done"]
    assert (events[-1]["response"], events[-1]["tokens_used"]) == ("all at once", 12)


GEMINI_ASKS = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","tool_calls":[{"id":"","type":'
    b'"function","function":{"name":"time","arguments":"{}"},"extra_content":{"google":'
    b'{"thought_signature":"c2ln"}}}]},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
)


async def test_gemini_takes_over_in_the_middle_and_gets_its_own_signatures_back(
    tmp_path: Path,
) -> None:
    asks, busy = Reply(calls=[("c1", "time", "{}")]), Reply(status=400)
    async with (
        scripted_server([asks, busy, busy, Reply("and on")]) as model,
        scripted_server([Reply(raw=GEMINI_ASKS), Reply("it is late")]) as gemini,
    ):
        fallback = '[agent.fallback]\nprovider = "gemini"\nmodel = "gemini-3-pro"\n'
        rest = f'[providers.gemini]\nbase_url = "{gemini.url}"\napi_key = "k"\n'
        setup = Setup(model.url, "anthropic", agent=fallback, rest=rest, tools=("time",))
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            end = await client.ask("how late is it?")
            later = await client.ask("and now?")

    assert (end["response"], later["response"]) == ("it is late", "and on")
    signed = [_signatures(asked) for asked in gemini.requests]
    assert signed == [[FOREIGN], [FOREIGN, "c2ln"]]
    assert not any("signature" in str(asked.body) for asked in model.requests)


FOREIGN = "skip_thought_signature_validator"


def _signatures(asked: Asked) -> list[str]:
    calls = [call for one in asked.body["messages"] for call in one.get("tool_calls", ())]
    return [call["extra_content"]["google"]["thought_signature"] for call in calls]
