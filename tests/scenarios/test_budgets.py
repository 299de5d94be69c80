"""Budgets over real sockets: what does not fit is not asked for, and everybody is told alike."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.domain.tokens import estimate_tokens
from tests.fakes.client import Client, connected, http, post_chat, texts_of, types_of
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


async def test_another_model_is_not_asked_in_a_replay_of_a_spent_budget(tmp_path: Path) -> None:
    async with (
        scripted_server([Reply("hi", usage=(50, 250))]) as model,
        running(limited(model.url, "daily = 500"), tmp_path) as site,
        connected(site.url) as client,
    ):
        end = await client.ask("hi", peer="p")
        refused = await client.refused("run.replay", run_id=end["run_id"], model="other")

    assert refused.code == -32003
    assert str(refused).endswith("token budget exceeded (daily: 300/500)")
    assert refused.data["type"] == "budget_exceeded"
    assert (refused.data["scope"], refused.data["used"], refused.data["limit"]) == (
        "daily",
        300,
        500,
    )
    assert len(model.requests) == 1


async def test_records_are_told_as_json_and_as_csv(tmp_path: Path) -> None:
    async with (
        scripted_server([Reply("hi", usage=(7, 3))]) as model,
        running(Setup(model.url), tmp_path) as site,
        connected(site.url) as client,
    ):
        await client.ask("hi")
        told = await http(site.url + "/api/records?model=m&limit=5")
        table = await http(site.url + "/api/records?format=csv")
        empty = await http(site.url + "/api/records?format=csv&model=none")
        wrong = [
            await http(f"{site.url}/api/records?{one}")
            for one in ("limit=0", "before=446981016830789943296", "from=0.5", "format=xml")
        ]

    (record,) = told.json["records"]
    assert (record["provider"], record["input_tokens"], record["output_tokens"]) == ("fake", 7, 3)
    assert (record["pricing"], record["cost_estimate_usd"]) == ("unpriced", 0.0)
    head, row, _ = table.body.decode().split("\r\n")
    assert head.startswith("seq,id,timestamp,session_key,agent_id")
    assert empty.body.decode() == f"{head}\r\n"
    assert row.split(",")[-7:] == ["7", "3", "0", "0", "0.0", "unpriced", "False"]
    assert [answer.status for answer in wrong] == [422] * 4


EXCESS = 40  # tokens that the service counts beyond what it was allowed


def spent(records: Sequence[Mapping[str, Any]]) -> int:
    return sum(one["input_tokens"] + one["output_tokens"] for one in records)


def counting_too_much(asked: Asked) -> Reply:
    return Reply("hi", usage=(20, asked.body["max_tokens"] + EXCESS))


@pytest.mark.requirement("S-003-Budget-06")
async def test_of_fifty_turns_at_once_as_many_are_asked_as_fit(tmp_path: Path) -> None:
    async with scripted_server(counting_too_much) as model:
        setup = limited(model.url, "daily = 10000", agent="max_tokens = 600")
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            sent = [await client.send("hi", peer=f"p{turn}") for turn in range(50)]
            ends = [(await client.ended(one["run_id"]))[-1] for one in sent]
            records = (await client.call("budget.records", limit=1000))["records"]
            day, *_ = (await client.call("budget.status"))["budgets"]
            refused = (await client.call("audit.tail", limit=100))["entries"]

    told = Counter(end.get("error_type", end["type"]) for end in ends)
    assert told == {"done": len(model.requests), "budget_exceeded": 50 - len(model.requests)}
    assert 12 <= len(records) == len(model.requests)
    assert day["used"] == spent(records) <= 10_000 + EXCESS * len(records)
    assert day["reserved"] == 0
    assert sum(one["kind"] == "budget.refused" for one in refused) == told["budget_exceeded"]


@pytest.mark.requirement("S-003-Budget-06", "S-003-Budget-07")
async def test_fifty_turns_and_kill_9_in_their_middle_pass_no_limit(tmp_path: Path) -> None:
    def half_answered(asked: Asked) -> Reply:
        reply = counting_too_much(asked)
        return reply if asked.number % 2 or has_died else replace(reply, gates={1: anyio.Event()})

    has_died = False
    async with scripted_server(half_answered) as model:
        setup = limited(model.url, "daily = 10000", agent="max_tokens = 600")
        config = await setup.written(tmp_path)
        async with command(config) as gateway, connected(gateway.url) as client:
            sent = [await client.send("hi", peer=f"p{turn}") for turn in range(50)]
            await model.wait_for(12)
            gateway.kill()
            await gateway.exit_code()
        has_died = True
        async with command(config) as gateway, connected(gateway.url) as client:
            for one in sent:
                await client.call("chat.resume", run_id=one["run_id"])
            ends = [(await client.ended(one["run_id"]))[-1] for one in sent]
            records = (await client.call("budget.records", limit=1000))["records"]
            day, *_ = (await client.call("budget.status"))["budgets"]

    outcomes = Counter(one["outcome"] for one in records)
    assert len(records) >= len(model.requests)
    assert outcomes["lost"] >= 1
    assert day["used"] == spent(records) <= 10_000 + EXCESS * outcomes["answered"]
    assert day["reserved"] == 0
    assert all(end["type"] in {"done", "error"} for end in ends)


@dataclass
class Service:
    """A model service that does as it is told, and keeps its own account."""

    answered: Counter[tuple[int, int]] = field(default_factory=Counter)
    refused: int = 0
    broken: Counter[int] = field(default_factory=Counter)  # by the tokens that were sent
    _seen: Counter[str] = field(default_factory=Counter)

    def __call__(self, asked: Asked) -> Reply:
        what = asked.last_text.split()[0]
        self._seen[asked.last_text] += 1
        is_first = self._seen[asked.last_text] == 1
        if is_first and what == "overloaded":
            self.refused += 1
            return Reply(status=503, headers={"retry-after": "0"})
        if is_first and what == "fallback":
            self.refused += 1
            return Reply(status=400)
        if is_first and what == "silent":
            self.broken[0] += 1
            return Reply(PIECES, stop_after=1, ending="reset")
        if what in {"broken", "cancelled"}:
            self.broken[sum(map(estimate_tokens, PIECES[:2]))] += 1
            never = {3: anyio.Event()} if what == "cancelled" else {}
            return Reply(PIECES, stop_after=3, ending="reset", gates=never)
        usage = (20 + asked.number % 7, 1 + asked.number % 11)
        self.answered[usage] += 1
        return Reply("fine", usage=usage)


PIECES = ("some text is here, ", "more of it, ", "and the end")
WAYS = ("fine", "overloaded", "fallback", "silent", "broken", "cancelled", "fine", "fine")


@pytest.mark.requirement("S-003-Budget-08", "S-003-Record-01", "S-003-Record-02")
async def test_the_ledger_equals_the_services_own_account(tmp_path: Path) -> None:
    service, asked, at_once = Service(), iter(range(800)), 16
    fallback = '[agent.fallback]\nprovider = "fake"\nmodel = "m2"'

    async def ask(client: Client, peer: int) -> None:
        for number in asked:
            way = WAYS[number % len(WAYS)]
            sent = await client.send(f"{way} {number}", peer=f"p{peer}")
            if way == "cancelled":
                await client.until(sent["run_id"], lambda seen: texts_of(seen) == PIECES_HEARD)
                await client.call("chat.abort", run_id=sent["run_id"])
            await client.ended(sent["run_id"])

    async with (
        scripted_server(service) as model,
        running(Setup(model.url, agent=fallback), tmp_path) as site,
        connected(site.url) as client,
    ):
        async with anyio.create_task_group() as group:
            for peer in range(at_once):
                group.start_soon(ask, client, peer)
        records = [one async for one in every_record(client)]
        day, *_ = (await client.call("budget.status"))["budgets"]

    by = {outcome: [one for one in records if one["outcome"] == outcome] for outcome in OUTCOMES}
    assert len(records) == len(model.requests) >= 1000
    assert service.answered == Counter(
        (one["input_tokens"], one["output_tokens"]) for one in by["answered"]
    )
    assert service.broken == Counter(one["output_tokens"] for one in by["broken"])
    assert (service.refused, spent(by["failed"])) == (len(by["failed"]), 0)
    assert {one["estimated"] for one in by["answered"]} == {False}
    assert {one["estimated"] for one in by["broken"]} == {True}
    assert (day["used"], day["reserved"]) == (spent(records), 0)


OUTCOMES = ("answered", "broken", "failed")
PIECES_HEARD = "".join(PIECES[:2])


async def every_record(client: Client) -> AsyncIterator[Mapping[str, Any]]:
    more: dict[str, object] = {}
    while True:
        page = await client.call("budget.records", limit=1000, **more)
        for one in page["records"]:
            yield one
        if not page["more"]:
            return
        more = {"before": page["records"][-1]["seq"]}


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


async def test_what_the_meter_said_is_said_again_when_a_run_is_replayed(tmp_path: Path) -> None:
    def answers(asked: Asked) -> Reply:
        if asked.last_text.startswith("long"):
            return Reply("never told", stop_after=1, ending="reset")
        call = ("c", "echo", f'{{"text": "{asked.number}"}}')
        return Reply("so far", calls=[call], usage=(50, 1_350))

    async with scripted_server(answers) as model:
        prices = "prices = { m = { input = 1, output = 2 } }"
        setup = limited(model.url, "session = 4450", provider=prices, tools=("echo",))
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            ends = {
                "refused a retry": await client.ask("long " * 2_000, peer="q"),
                "cut in the middle": await client.ask("hi", peer="p"),
                "refused at once": await client.ask("hi", peer="p"),
            }
            runs = [end["run_id"] for end in ends.values()]
            told = [await client.call("run.replay", run_id=run_id) for run_id in runs]

    assert {name: end["type"] for name, end in ends.items()} == {
        "refused a retry": "error",
        "cut in the middle": "done",
        "refused at once": "error",
    }
    assert {end.get("error_type", "") for end in ends.values()} == {"", "budget_exceeded"}
    assert len(model.requests) == 4
    events = client.events[runs[1]]
    assert [one["cost_usd"] for one in events if one["type"] == "usage"] == [0.00275] * 3
    assert "limit_warning" in [one.get("system_type") for one in events]
    assert [one["divergence"] for one in told] == [None] * 3
