"""Budgets over real sockets: what does not fit is not asked for, and everybody is told alike."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.model_server import anthropic_whole, openai_whole
from gateway.config.values import GatewayConfig
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import Amount, Grant
from gateway.domain.messages import estimate_tokens
from tests.fakes.client import Client, connected, http, post_chat, texts_of, types_of
from tests.fakes.gateway import Setup, Site, command, running
from tests.fakes.ledger import a_record, a_reservation
from tests.fakes.model_server import Asked, Reply, Wire, scripted_server
from tests.forms import is_long
from tests.scenarios.scripts import talking

pytestmark = pytest.mark.shared_store


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
    assert (told["reserved"], end["reserved"]) == (0, 0)
    assert answer.headers["Retry-After"] == str(ceil(told["retry_after_s"]))
    assert 0 < int(answer.headers["Retry-After"]) <= 86_400
    assert model.requests == []


@pytest.mark.requirement("S-003-Budget-06")
async def test_turns_at_once_that_fit_one_after_the_other_are_all_answered(tmp_path: Path) -> None:
    limits = "daily = 6000\nsession = 5000\nper_agent = { tokens = 6000 }"
    async with (
        scripted_server(lambda _asked: Reply("hi", usage=(20, 30))) as model,
        running(limited(model.url, limits), tmp_path) as site,
        connected(site.url) as client,
    ):
        sent = [await client.send("hi", peer=f"p{turn % 20}") for turn in range(40)]
        ends = [(await client.ended(one["run_id"]))[-1] for one in sent]
        day, *_ = (await client.call("budget.status"))["budgets"]

    assert [end["type"] for end in ends] == ["done"] * 40
    assert (day["used"], day["reserved"]) == (40 * 50, 0)
    assert {asked.body["max_tokens"] > 3_000 for asked in model.requests} == {True}


IMPATIENT = """
[[agents]]
id = "impatient"
provider = "fake"
model = "m"
"""


def impatient(config: GatewayConfig) -> GatewayConfig:
    def changed(agent: AgentDef) -> AgentDef:
        seconds: Any = 6.0 if agent.id == "impatient" else 20  # sooner than a file may say
        return replace(agent, limits=replace(agent.limits, timeout_seconds=seconds))

    return replace(config, agents=tuple(map(changed, config.agents)))


async def test_who_waits_for_what_others_hold_is_refused_when_its_time_is_up(
    tmp_path: Path,
) -> None:
    gate = anyio.Event()
    setup = limited("", "daily = 6000\nsession = 5000")
    async with scripted_server(lambda _asked: Reply("hi", usage=(20, 30), gate=gate)) as model:
        setup = replace(setup, model_url=model.url, rest=setup.rest + IMPATIENT)
        async with running(setup, tmp_path, impatient) as site, connected(site.url) as client:
            first = await client.send("hi", peer="first")
            await model.wait_for(1)
            answer = await post_chat(site.url, "hi", agent="impatient")
            (day, *_) = (await client.call("budget.status"))["budgets"]
            gate.set()
            done = (await client.ended(first["run_id"]))[-1]

    told = answer.json["error"]
    assert (answer.status, told["type"], told["scope"]) == (429, "budget_exceeded", "daily")
    assert (told["used"], told["reserved"]) == (0, day["reserved"])
    assert told["reserved"] > 4_096
    assert told["message"] == f"token budget exceeded (daily: {told['reserved']}/6000)"
    assert 0 < told["retry_after_s"] <= 60
    assert told["retryable"]
    assert answer.headers["Retry-After"] == str(ceil(told["retry_after_s"]))
    assert (len(model.requests), done["type"]) == (1, "done")


async def test_a_call_that_waits_for_its_budget_is_cancelled_like_any_other(tmp_path: Path) -> None:
    gate = anyio.Event()
    async with (
        scripted_server(lambda _asked: Reply("hi", usage=(20, 30), gate=gate)) as model,
        running(limited(model.url, "daily = 6000"), tmp_path) as site,
        connected(site.url) as client,
    ):
        first = await client.send("hi", peer="first")
        await model.wait_for(1)
        second, third = [await client.send("hi", peer=peer) for peer in ("second", "third")]
        await client.call("chat.abort", run_id=second["run_id"])
        stopped = (await client.ended(second["run_id"]))[-1]
        gate.set()
        ends = [(await client.ended(one["run_id"]))[-1]["type"] for one in (first, third)]
        (day, *_) = (await client.call("budget.status"))["budgets"]

    assert (stopped["type"], stopped["reason"], ends) == ("done", "cancelled", ["done", "done"])
    assert (len(model.requests), day["used"], day["reserved"]) == (2, 100, 0)


async def test_a_budget_that_never_resets_says_nothing_of_when_to_come_back(tmp_path: Path) -> None:
    async with (
        scripted_server([Reply("hi")]) as model,
        running(limited(model.url, "session = 100"), tmp_path) as site,
    ):
        answer = await post_chat(site.url, "hi")

    told = answer.json["error"]
    assert (told["scope"], told["used"], told["reserved"]) == ("session", 0, 0)
    assert (told["resets_at"], told["retryable"]) == (None, False)
    assert "retry_after_s" not in told
    assert "Retry-After" not in answer.headers


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


async def test_a_model_without_a_price_is_not_asked_while_a_budget_is_in_usd(
    tmp_path: Path,
) -> None:
    prices = "prices = { m = { input = 1, output = 2 } }"
    async with (
        scripted_server([Reply("hi", usage=(50, 250))]) as model,
        running(limited(model.url, "daily = { usd = 1 }", provider=prices), tmp_path) as site,
        connected(site.url) as client,
    ):
        end = await client.ask("hi", peer="p")
        other = await client.call("run.replay", run_id=end["run_id"], model="other")
        (day, *_) = (await client.call("budget.status"))["budgets"]

    assert "its model has no price" in other["response"]
    assert len(model.requests) == 1
    assert (day["unit"], day["used"], day["reserved"]) == ("usd", 0.00055, 0)


async def test_records_are_told_as_json_and_as_csv(tmp_path: Path) -> None:
    async with talking([Reply("hi", usage=(7, 3))], tmp_path) as (model, site, client):
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


PROMPT = 20  # tokens, as the service counts it: more than any estimate of "hi"
BEYOND = 40  # tokens of a reply that the service counts beyond what it was allowed
EXCESS = PROMPT + BEYOND


def spent(records: Sequence[Mapping[str, Any]]) -> int:
    return sum(one["input_tokens"] + one["output_tokens"] for one in records)


def counting_too_much(asked: Asked) -> Reply:
    return Reply("hi", usage=(PROMPT, asked.body["max_tokens"] + BEYOND))


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
    assert day["used"] == spent(records) <= 10_000 + EXCESS * outcomes["overrun"]
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


ASKED = 800 if is_long() else 80
PIECES = ("some text is here, ", "more of it, ", "and the end")
WAYS = ("fine", "overloaded", "fallback", "silent", "broken", "cancelled", "fine", "fine")


@pytest.mark.requirement("S-003-Budget-08", "S-003-Record-01", "S-003-Record-02")
async def test_the_ledger_equals_the_services_own_account(tmp_path: Path) -> None:
    service, asked, at_once = Service(), iter(range(ASKED)), 16
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
    assert len(records) == len(model.requests) >= ASKED * 5 // 4
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
            sent = [await client.send("hi", peer=f"p{turn}") for turn in range(12)]
            await model.wait_for(5)  # each holds 4096 tokens and its prompt: not all fit
            gateway.kill()
            await gateway.exit_code()
        gate.set()
        async with command(config) as gateway, connected(gateway.url) as client:
            await client.ask("again", peer="last")
            for one in sent:
                await client.call("chat.resume", run_id=one["run_id"])
                await client.ended(one["run_id"])
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


# --- a clock that was far ahead -----------------------------------------------------------------


async def spent_at(site: Site, at: datetime, tokens: int) -> None:
    """As it was left by a process whose clock was there."""
    ledger, wanted = site.rooms.shared.stores.ledger, a_reservation(f"r-{at}", at=at)
    held, _ = await ledger.reserve(wanted, lambda _: Grant(1, Amount(tokens)))
    await ledger.settle(a_record(held, tokens, 0))


async def test_a_day_that_a_clock_was_ahead_in_can_be_seen_and_freed(tmp_path: Path) -> None:
    limits = "daily = 9000\nmonthly = 20000"
    async with (
        scripted_server(lambda _asked: Reply("hi", usage=(40, 60))) as model,
        running(limited(model.url, limits), tmp_path) as site,
        connected(site.url) as client,
    ):
        before = await client.ask("hi", peer="a")
        await spent_at(site, datetime(2990, 5, 6, tzinfo=UTC), 8_900)
        refused = await client.ask("hi", peer="b")
        await client.call("budget.status")
        await spent_at(site, site.rooms.shared.clock.now(), 300)  # it counts in the day to come
        pinned = (await client.call("budget.status"))["budgets"][:2]
        done = await client.call("budget.resync")
        again = await client.call("budget.resync")
        free = (await client.call("budget.status"))["budgets"][:2]
        after = await client.ask("hi", peer="c")
        entries = (await client.call("audit.tail"))["entries"]

    assert (before["type"], refused["scope"], after["type"]) == ("done", "daily", "done")
    assert [row["used"] for row in pinned] == [9_200, 9_200]
    assert all("2990-05" in row["why"] and "budget resync" in row["why"] for row in pinned)
    assert (done["changed"], done["was"], done["records"]) == (True, "2990-05-06", 1)
    assert (again["changed"], again["records"]) == (False, 0)
    assert [row["used"] for row in free] == [400, 400]
    assert not any("why" in row for row in free)
    (entry,) = [one for one in entries if one["kind"] == "budget.resynced"]
    assert entry["detail"] == {"day": done["day"], "was": "2990-05-06", "records": 1}


async def test_what_is_held_when_a_day_is_freed_counts_today(tmp_path: Path) -> None:
    gate = anyio.Event()
    async with (
        scripted_server(lambda _asked: Reply("hi", usage=(40, 60), gate=gate)) as model,
        running(limited(model.url, "daily = 9000"), tmp_path) as site,
        connected(site.url) as client,
    ):
        await spent_at(site, datetime(2990, 5, 6, tzinfo=UTC), 10)
        sent = await client.send("hi")
        await model.wait_for(1)
        await client.call("budget.resync")
        held, *_ = (await client.call("budget.status"))["budgets"]
        gate.set()
        await client.ended(sent["run_id"])
        free, *_ = (await client.call("budget.status"))["budgets"]

    assert (held["used"], held["reserved"] > 4_096) == (0, True)
    assert (free["used"], free["reserved"]) == (100, 0)


async def test_who_may_only_read_frees_no_day(tmp_path: Path) -> None:
    token = '[[tokens]]\nname = "looks"\ntoken = "a-token-that-only-looks"\nscopes = ["read"]'
    async with (
        scripted_server([]) as model,
        running(Setup(model.url, rest=token), tmp_path) as site,
        connected(site.url, "a-token-that-only-looks") as client,
    ):
        refused = await client.refused("budget.resync")

    assert refused.code == -32002


@pytest.mark.parametrize("priced", [True, False])
async def test_what_a_cancelled_reply_cost_is_told_where_its_price_is_known(
    tmp_path: Path, priced: bool
) -> None:
    reply = Reply(["x" * 320, "never"], gates={2: anyio.Event()})
    prices = "prices = { m = { input = 1, output = 10 } }" if priced else ""
    async with (
        scripted_server([reply]) as model,
        running(Setup(model.url, provider=prices), tmp_path) as site,
        connected(site.url) as client,
    ):
        sent = await client.send("hi")
        await client.until(sent["run_id"], lambda seen: len(texts_of(seen)) == 320)
        await client.call("chat.abort", run_id=sent["run_id"])
        events = await client.ended(sent["run_id"])
        (record,) = (await client.call("budget.records"))["records"]
        session = await client.call("session.get", session_key=sent["session_key"])

    (usage,) = [one for one in events if one["type"] == "usage"]
    cost = (usage["input_tokens"] + 10 * usage["output_tokens"]) / 1e6 if priced else None
    assert usage["output_tokens"] == record["output_tokens"] == 100
    assert usage["cost_usd"] == cost
    assert (session["token_usage"]["cost_usd"] is not None) is priced
    assert (record["cost_estimate_usd"] > 0.001) is priced


# --- limits.token_budget: of one run ------------------------------------------------------------


async def test_a_call_that_sends_more_than_the_run_may_use_is_not_made(tmp_path: Path) -> None:
    async with talking([Reply("hi", usage=(20, 30))], tmp_path) as (model, _site, client):
        sent = await client.send("word " * 2_000, limits={"token_budget": 2_000})
        end = (await client.ended(sent["run_id"]))[-1]
        small = await client.ask("hi", peer="q", limits={"token_budget": 2_000})

    assert (end["type"], end["reason"], end["tokens_used"]) == ("done", "token_budget", 0)
    assert end["partial"]
    assert small["reason"] == "answered"
    assert len(model.requests) == 1


async def test_what_a_call_sends_counts_while_its_reply_is_heard(tmp_path: Path) -> None:
    """1,000 bytes a piece are 312 tokens; the prompt has at least as many."""
    async with talking([Reply(["x" * 1_000] * 9, usage=None)], tmp_path) as (model, _site, client):
        end = await client.ask("y" * 3_200, limits={"token_budget": 2_000})

    assert (end["reason"], end["partial"], len(model.requests)) == ("token_budget", True, 1)
    assert 1_000 <= len(end["response"]) <= 4_000


# --- a service that does not keep to `max_tokens` -----------------------------------------------

CHUNK = "and so it goes on "  # 18 bytes
ENDLESS = [CHUNK] * 20_000


def overrunning(kind: str, asked: Asked) -> Reply:
    """Never ends by itself within any bound."""
    if kind == "thinking":
        return Reply("", thinking=ENDLESS)
    if kind == "call":
        return Reply("Let me see.", calls=[("c", "echo", f'{{"text": "{CHUNK * 1_000}"}}')])
    return Reply(["日本語の文" * 3] * 20_000 if kind == "unicode" else ENDLESS)


async def has_left(asked: Asked) -> None:
    with anyio.fail_after(60):
        await asked.disconnected.wait()


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("kind", ["text", "thinking", "call", "unicode"])
async def test_a_reply_longer_than_what_was_reserved_is_cut_off(
    tmp_path: Path, kind: str, wire: Wire
) -> None:
    asked_for = 300
    async with scripted_server(partial(overrunning, kind)) as model:
        setup = limited(
            model.url,
            "daily = 3000",
            wire=wire,
            tools=("echo",) if kind == "call" else (),
            agent=f"max_tokens = {asked_for}",
        )
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            sent = await client.send("hi")
            events = await client.ended(sent["run_id"])
            if kind != "call":  # of which the fake tells all at once
                await has_left(model.requests[0])
            (record,) = (await client.call("budget.records"))["records"]
            day, *_ = (await client.call("budget.status"))["budgets"]
            replayed = await client.call("run.replay", run_id=sent["run_id"])

    end, heard = events[-1], texts_of(events)
    told = [one for one in events if one["type"] == "system"]
    (notice,) = [one["system_message"] for one in told if one["system_type"] == "notice"]
    assert notice == "The model service (fake) wrote more than was reserved for it and was cut off."
    assert (end["type"], end["cut"], len(model.requests)) == ("done", True, 1)
    assert end["response"] == (heard or notice)
    assert bool(heard) == (kind != "thinking")
    assert record["outcome"] == "overrun"
    assert record["estimated"]
    if kind != "call":
        assert asked_for < record["output_tokens"] <= asked_for + 45
    (usage,) = [one for one in events if one["type"] == "usage"]
    assert usage["output_tokens"] == record["output_tokens"]
    assert (day["used"], day["reserved"]) == (spent([record]), 0)
    assert replayed["divergence"] is None


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("agent", ["", "stream = false"], ids=["asked to stream", "not asked to"])
async def test_a_whole_answer_longer_than_what_was_reserved_is_cut_to_that(
    tmp_path: Path, agent: str, wire: Wire
) -> None:
    whole = openai_whole if wire == "openai" else anthropic_whole
    body = whole(CHUNK * 500, calls=[("c", "echo", '{"text": "hi"}')], usage=(20, 2_300))
    async with scripted_server([Reply(body=body)]) as model:
        rows = f"max_tokens = 300\n{agent}"
        setup = limited(model.url, "daily = 9000", wire=wire, tools=("echo",), agent=rows)
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            sent = await client.send("hi")
            events = await client.ended(sent["run_id"])
            (record,) = (await client.call("budget.records"))["records"]
            day, *_ = (await client.call("budget.status"))["budgets"]
            replayed = await client.call("run.replay", run_id=sent["run_id"])

    end, told = events[-1], [one for one in events if one["type"] == "system"]
    assert [one["system_type"] for one in told if one["system_type"] == "notice"] == ["notice"]
    assert (end["type"], end["cut"], len(model.requests)) == ("done", True, 1)
    assert end["response"] == texts_of(events) == (CHUNK * 500)[: 300 * 4]
    assert (record["outcome"], record["output_tokens"]) == ("overrun", 2_300)
    assert not record["estimated"]
    assert (day["used"], day["reserved"]) == (2_320, 0)
    assert replayed["divergence"] is None


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_a_whole_answer_without_an_end_is_not_read_any_further(
    tmp_path: Path, wire: Wire
) -> None:
    begin = {
        "openai": b'{"choices": [{"message": {"content": "',
        "anthropic": b'{"content": [{"type": "text", "text": "',
    }[wire]
    endless = [begin, *[CHUNK.encode() * 1_000] * 200]
    reply = Reply(raw=endless, headers={"content-type": "application/json"})
    async with scripted_server([reply]) as model:
        rows = "max_tokens = 300\nstream = false"
        setup = limited(model.url, "daily = 9000", wire=wire, agent=rows)
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            sent = await client.send("hi")
            end = (await client.ended(sent["run_id"]))[-1]
            await has_left(model.requests[0])
            (record,) = (await client.call("budget.records"))["records"]
            replayed = await client.call("run.replay", run_id=sent["run_id"])

    assert (end["type"], end["cut"], len(model.requests)) == ("done", True, 1)
    assert end["response"] == (CHUNK * 500)[: 300 * 4]
    assert (record["outcome"], record["estimated"]) == ("overrun", True)
    assert replayed["divergence"] is None


async def test_a_service_that_reports_more_than_was_reserved_is_recorded_so(tmp_path: Path) -> None:
    """Of what nobody sees, like hidden thought, nothing can be cut off."""
    async with (
        scripted_server([Reply("hi", usage=(20, 900)), Reply("hi", usage=(20, 300))]) as model,
        running(limited(model.url, "daily = 9000", agent="max_tokens = 300"), tmp_path) as site,
        connected(site.url) as client,
    ):
        ends = [await client.ask("hi", peer=peer) for peer in "ab"]
        records = (await client.call("budget.records"))["records"]

    assert [(end["response"], end.get("cut")) for end in ends] == [("hi", None)] * 2
    told = [(one["outcome"], one["output_tokens"]) for one in records]
    assert told == [("answered", 300), ("overrun", 900)]


async def test_without_a_limit_a_reply_is_cut_off_too_but_only_beyond_doubt(tmp_path: Path) -> None:
    async with (
        scripted_server(
            lambda asked: Reply(["x" * 100] * (20 if asked.number == 1 else 9_000))
        ) as model,
        running(Setup(model.url, agent="max_tokens = 300"), tmp_path) as site,
        connected(site.url) as client,
    ):
        ends = [await client.ask("hi", peer=peer) for peer in "ab"]
        records = (await client.call("budget.records"))["records"]

    assert [end.get("cut", False) for end in ends] == [False, True]
    assert [one["outcome"] for one in records] == ["overrun", "answered"]
    assert len(ends[1]["response"]) <= 300 * 32 + 100


async def test_a_reply_that_keeps_to_what_was_reserved_is_whole(tmp_path: Path) -> None:
    text = ["four"] * 300
    async with (
        scripted_server([Reply(text, usage=(20, 300))]) as model,
        running(limited(model.url, "daily = 3000", agent="max_tokens = 300"), tmp_path) as site,
        connected(site.url) as client,
    ):
        end = await client.ask("hi")
        (record,) = (await client.call("budget.records"))["records"]

    assert end["response"] == "".join(text)
    assert (record["outcome"], record["output_tokens"]) == ("answered", 300)


async def test_a_model_of_long_words_is_known_by_its_replies(tmp_path: Path) -> None:
    replies = [Reply("x" * 1_400, usage=(20, 250)), Reply(["seven !"] * 290, usage=(20, 290))]
    async with (
        scripted_server(replies) as model,
        running(limited(model.url, "daily = 9000", agent="max_tokens = 400"), tmp_path) as site,
        connected(site.url) as client,
    ):
        ends = [await client.ask("hi", peer=peer) for peer in "ab"]

    assert [end.get("cut") for end in ends] == [None, None]
