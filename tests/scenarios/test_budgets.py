"""Budgets over real sockets: what does not fit is not asked for, and everybody is told alike."""

from pathlib import Path

import anyio
import pytest

from tests.fakes.client import connected, http, post_chat, types_of
from tests.fakes.gateway import Setup, command, running
from tests.fakes.model_server import Asked, Reply, scripted_server


def limited(url: str, budgets: str, **more: object) -> Setup:
    return Setup(url, rest=f"[budgets]\n{budgets}\n", **more)  # type: ignore[arg-type]  # by name


@pytest.mark.requirement("S-003-Budget-03", "S-003-Budget-09")
async def test_a_spent_budget_is_refused_before_a_byte_leaves(tmp_path: Path) -> None:
    async with (
        scripted_server([Reply("hi")]) as model,
        running(limited(model.url, "daily = 100"), tmp_path) as site,
        connected(site.url) as client,
    ):
        sent = await client.send("hi")
        events = await client.ended(sent["run_id"])
        answer = await post_chat(site.url, "hi")

    end, told = events[-1], answer.json["error"]
    assert (types_of(events)[-1], end["error_type"]) == ("error", "budget_exceeded")
    assert end["message"] == "token budget exceeded (daily: 0/100)"
    assert (end["scope"], end["used"], end["limit"]) == ("daily", 0, 100)
    assert end["resets_at"].endswith("T00:00:00Z")
    assert answer.status == 429
    assert (told["type"], told["scope"], told["used"], told["limit"]) == (
        *("budget_exceeded", "daily"),
        *(0, 100),
    )
    assert told["resets_at"] == end["resets_at"]
    assert 0 < int(answer.headers["Retry-After"]) <= 86_400
    assert model.requests == []


@pytest.mark.requirement("S-003-Budget-08")
async def test_a_budget_for_three_calls_stops_the_fourth_and_keeps_the_rest(
    tmp_path: Path,
) -> None:
    def round_of(_asked: object) -> Reply:
        call = ("c", "echo", f'{{"text": "{len(model.requests)}"}}')
        return Reply("so far", calls=[call], usage=(50, 350))

    async with scripted_server(round_of) as model:
        setup = limited(model.url, "session = 1500", tools=("echo",))
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            sent = await client.send("hi")
            events = await client.ended(sent["run_id"])
            records = await client.call("budget.records", session_key=sent["session_key"])
            status = await client.call("budget.status", session_key=sent["session_key"])

    end = events[-1]
    notices = [event for event in events if event["type"] == "system"]
    assert len(model.requests) == len(records["records"]) == 3
    assert (end["reason"], end["partial"], end["response"]) == ("token_budget", True, "so far")
    assert [one["system_type"] for one in notices] == ["limit_warning", "limit_reached"]
    assert notices[0]["metadata"]["percent"] == 80.0
    assert notices[1]["system_message"] == "token budget exceeded (session: 1200/1500)"
    assert status["budgets"][0]["used"] == 1200
    assert status["budgets"][0]["reserved"] == 0


async def test_records_are_told_as_json_and_as_csv(tmp_path: Path) -> None:
    async with (
        scripted_server([Reply("hi", usage=(7, 3))]) as model,
        running(Setup(model.url), tmp_path) as site,
        connected(site.url) as client,
    ):
        await client.ask("hi")
        told = await http(site.url + "/api/records?model=m&limit=5")
        table = await http(site.url + "/api/records?format=csv")
        wrong = await http(site.url + "/api/records?limit=0")

    (record,) = told.json["records"]
    assert (record["provider"], record["input_tokens"], record["output_tokens"]) == ("fake", 7, 3)
    assert (record["pricing"], record["cost_estimate_usd"]) == ("unpriced", 0.0)
    head, row, _ = table.body.decode().split("\r\n")
    assert head.startswith("seq,id,timestamp,session_key,agent_id")
    assert row.split(",")[-7:] == ["7", "3", "0", "0", "0.0", "unpriced", "False"]
    assert wrong.status == 422


@pytest.mark.requirement("S-003-Budget-08", "S-003-Record-01")
async def test_the_ledger_has_every_request_that_the_service_had(tmp_path: Path) -> None:
    ways = (
        Reply("fine", usage=(20, 10)),
        Reply(status=503, headers={"retry-after": "0"}),
        Reply("broken off here", stop_after=2, ending="reset"),
        Reply("fine again", usage=(30, 5)),
    )
    number = 0

    def mixed(asked: object) -> Reply:
        nonlocal number
        number += 1
        return ways[number % len(ways)]

    async with (
        scripted_server(mixed) as model,
        running(Setup(model.url), tmp_path) as site,
        connected(site.url) as client,
    ):
        for turn in range(24):
            await client.ask("hi", peer=f"p{turn % 3}")
        records = (await client.call("budget.records", limit=1000))["records"]
        day, *_ = (await client.call("budget.status"))["budgets"]

    told = [one for one in records if one["outcome"] == "answered"]
    assert len(records) == len(model.requests)
    assert sum(one["input_tokens"] + one["output_tokens"] for one in records) == day["used"]
    assert {(one["input_tokens"], one["output_tokens"]) for one in told} == {(20, 10), (30, 5)}
    assert all(one["estimated"] for one in records if one["outcome"] == "broken")


@pytest.mark.requirement("S-003-Budget-06", "S-003-Budget-07")
async def test_after_kill_9_the_counters_equal_the_ledger_and_nothing_is_held(
    tmp_path: Path,
) -> None:
    gate = anyio.Event()

    def at_first_for_ever(asked: Asked) -> Reply:
        return Reply("hi", usage=(20, 10), gate=None if gate.is_set() else anyio.Event())

    async with scripted_server(at_first_for_ever) as model:
        config = await limited(model.url, "daily = 30000").written(tmp_path)
        async with command(config) as gateway, connected(gateway.url) as client:
            for turn in range(12):
                await client.send("hi", peer=f"p{turn}")
            await model.wait_for(5)  # each holds 4096 tokens and its prompt: not all fit
            gateway.kill()
            await gateway.exit_code()
        gate.set()
        async with command(config) as gateway, connected(gateway.url) as client:
            await client.ask("again", peer="last")
            records = (await client.call("budget.records", limit=1000))["records"]
            day, *_ = (await client.call("budget.status"))["budgets"]

    lost = [one for one in records if one["outcome"] == "lost"]
    assert 5 <= len(lost) <= 8
    assert day["used"] == sum(one["input_tokens"] + one["output_tokens"] for one in records)
    assert day["used"] <= 30_000
