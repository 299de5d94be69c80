"""What is sent fits the window of the model that is asked, or nobody is asked."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.messages import estimate_tokens
from tests.fakes.boundaries import BOUNDARY
from tests.fakes.client import Event, connected
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, Reply, Wire, scripted_server
from tests.scenarios.stage import WIRES
from tests.scenarios.test_tool_results import (
    results_in,
    site_of,
    texts_in,
    work,
)

SMALL = """
context_window = 8192
max_tokens = 4096
[agent.limits]
token_budget = 200000
no_progress_repeats = 10
"""
WINDOW, REPLY = 8_192, 4_096


def size_of(asked: Asked) -> int:
    """About, of all that is read and written; an envelope is not counted."""
    told = [asked.body.get("system") or ""]
    told += [json.dumps(one, ensure_ascii=False) for one in asked.body.get("tools") or ()]
    for one in asked.body["messages"]:
        blocks = one["content"] if isinstance(one["content"], list) else [one["content"] or ""]
        told += [block if isinstance(block, str) else json.dumps(block) for block in blocks]
    return sum(map(estimate_tokens, told)) + int(asked.body["max_tokens"])


@pytest.mark.parametrize("wire", WIRES)
async def test_a_question_that_does_not_fit_is_refused_by_its_size_and_nobody_is_asked(
    wire: Wire, tmp_path: Path
) -> None:
    async with (
        scripted_server([Reply("I see.")]) as model,
        running(Setup(model.url, wire=wire, agent=SMALL), tmp_path) as site,
        connected(site.url) as client,
    ):
        end = await client.ask("x" * 128_000)
        spent = await client.call("budget.records", session_key="main:websocket:local:main")
        asked = list(model.requests)
        after = await client.ask("short")

    assert end["type"] == "error"
    assert "the question is 40,00" in end["message"]
    assert "the window of m is 8,192" in end["message"]
    assert (end["error_type"], end["retryable"]) == ("provider_error", False)
    assert spent["records"] == []
    assert after["reason"] == "answered"
    assert asked == []
    assert all(size_of(one) <= WINDOW for one in model.requests)


@pytest.mark.parametrize(
    ("agent", "named"),
    [
        (f'system_prompt = "{"s" * 60_000}"', "the system text is 18,"),
        ("max_tokens = 8000", None),
    ],
)
async def test_what_is_too_large_is_named(tmp_path: Path, agent: str, named: str | None) -> None:
    setup = Setup("URL", agent=f"context_window = 8192\n{agent}")
    async with scripted_server([Reply("I see.")]) as model:
        setup = Setup(model.url, agent=setup.agent)
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            end = await client.ask("y" * 9_000)

    if named is None:  # the reply gives way as far as to half of the window
        assert end["reason"] == "answered"
        assert size_of(model.requests[0]) <= WINDOW
    else:
        assert named in end["message"]
        assert model.requests == []


@pytest.mark.parametrize("wire", WIRES)
async def test_rounds_of_results_never_outgrow_the_window(wire: Wire, tmp_path: Path) -> None:
    """Each result is less than its share; together they are more than the window."""

    async def works(arguments: Mapping[str, object]) -> str:
        return f"{arguments['n']} begins " + "z" * 3_000 + f" {arguments['n']} ends"

    def reply(asked: Asked) -> Reply:
        if asked.last_text.startswith("hello"):
            return Reply("Noted.")
        done = len(results_in(asked))
        return Reply("Done.") if done >= 9 else work(n=done)

    async with (
        scripted_server(reply) as model,
        site_of(model, tmp_path, works, wire, agent=SMALL) as client,
    ):
        await client.ask("hello " + "h" * 3_000)
        end = await client.ask("go on")

    assert end["reason"] == "answered"
    assert max(size_of(asked) for asked in model.requests) <= WINDOW + 100
    last = model.requests[-1]
    told = results_in(last)
    assert len(told) == 9
    assert all(BOUNDARY.fullmatch(text) for text in told)
    assert "0 begins" in told[0]
    assert "characters left out" in told[0]
    assert "characters left out" not in told[-1]
    assert "hello hhh" in texts_in(model.requests[1])  # as long as it fits
    assert "hello hhh" not in texts_in(last)
    assert "go on" in texts_in(last)


async def test_a_fallback_is_judged_by_its_own_window(tmp_path: Path) -> None:
    agent = """
context_window = 8192
max_tokens = 1000
[agent.fallback]
provider = "fake"
model = "large"
context_window = 100000
"""
    async with (
        scripted_server([Reply("I see.")]) as model,
        running(Setup(model.url, agent=agent), tmp_path) as site,
        connected(site.url) as client,
    ):
        end = await client.ask("x" * 64_000)

    assert end["reason"] == "answered"
    assert [asked.body["model"] for asked in model.requests] == ["large"]


async def test_a_fallback_that_is_too_small_does_not_hide_why_it_was_asked(tmp_path: Path) -> None:
    agent = """
max_tokens = 1000
[agent.fallback]
provider = "fake"
model = "small"
context_window = 8192
"""
    async with (
        scripted_server([Reply(status=429)]) as model,
        running(Setup(model.url, agent=agent, provider="max_retries = 0"), tmp_path) as site,
        connected(site.url) as client,
    ):
        end = await client.ask("x" * 64_000)

    assert "has no capacity" in end["message"]
    assert end["retryable"]
    assert [asked.body["model"] for asked in model.requests] == ["m"]


NEARLY = """
context_window = 4096
max_tokens = 256
[agent.context]
warning_percent = 50
recent_turns = 6
"""
LINE = 2_048


def fullness(events: Sequence[Event]) -> list[int]:
    return [one["context_tokens"] for one in events if one["type"] == "context_update"]


def warnings(events: Sequence[Event]) -> int:
    told = (one for one in events if one["type"] == "system")
    return sum(one["metadata"].get("limit_type") == "context_window" for one in told)


async def test_a_session_is_warned_when_its_context_crosses_the_line_and_not_while_it_is_above(
    tmp_path: Path,
) -> None:
    runs: list[list[Event]] = []
    replayed: list[dict[str, Any]] = []

    async def talk(setup: Setup, *, anew: bool = False) -> None:
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            if anew:
                await client.call("session.create", session_key="main:websocket:local:main")
            for n in range(8):
                sent = await client.send(f"{n} " + "x" * 1_400)
                runs.append(await client.ended(sent["run_id"]))
            replayed.append(await client.call("run.replay", run_id=runs[-1][0]["run_id"]))

    async with scripted_server([Reply("Noted.")]) as model:
        setup = Setup(model.url, agent=NEARLY)
        await talk(setup)
        await talk(setup)  # after a restart
        await talk(setup, anew=True)

    was_above, crossed = False, []
    for run in runs:
        sizes = fullness(run)
        crossed.append(int(sizes[-1] >= LINE and not (was_above and sizes[0] >= LINE)))
        was_above = sizes[-1] >= LINE
    assert [warnings(run) for run in runs] == crossed
    assert sum(crossed) == 2
    assert sum(fullness(run)[-1] >= LINE for run in runs) > 12
    assert [one["divergence"] for one in replayed] == [None] * 3
