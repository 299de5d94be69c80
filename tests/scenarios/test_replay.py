"""A run that was recorded is replayed byte for byte; whatever has changed is named first."""

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic_core import to_json

from gateway.config.values import GatewayConfig
from gateway.domain.agents import AgentDef
from gateway.domain.ids import RunId
from gateway.domain.journal import Attempt, JournalEntry, JournalUnreadable, pack_text
from gateway.domain.messages import Spent, Usage
from gateway.memory.context import RESULTS
from tests.fakes.client import Client, connected
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.fakes.ports import PartOfJournal
from tests.fakes.tools import FakeTool
from tests.forms import is_long
from tests.scenarios.recorded import (
    GATES,
    KINDS,
    PLANS,
    Plan,
    Recorded,
    a_site,
    all_of,
    record,
    record_all,
    setup_of,
    with_tools,
    work,
)
from tests.scenarios.scripts import talking

pytestmark = pytest.mark.shared_store

ENDINGS = {"answered", "max_iterations", "token_budget", "timeout", "cancelled", "error"}
ENDINGS |= {"no_progress", "error_limit"}
NOWHERE = "http://127.0.0.1:1/v1"


async def replayed(client: Client, recorded: Sequence[Recorded]) -> dict[Plan, Any]:
    return {one.plan: await client.call("run.replay", run_id=one.run_id) for one in recorded}


@pytest.mark.shared_store(only_long=True)  # which has some of each kind below
async def test_a_hundred_recorded_runs_of_all_kinds_replay_identically(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, connected(site.url) as client:
        with anyio.fail_after(60):
            recorded = await record_all(site, client, PLANS)
            answers = await replayed(client, recorded)

    assert [plan for plan, answer in answers.items() if answer["divergence"]] == []
    assert len(answers) == 100
    assert min(Counter(one.plan.kind for one in recorded)[kind] for kind in KINDS) >= 3
    assert {one.events[-1].get("reason", "error") for one in recorded} == ENDINGS
    assert all(answers[one.plan]["chunks"] == len(one.events) for one in recorded)


async def test_it_is_identical_after_a_restart_and_without_any_model_service(
    tmp_path: Path,
) -> None:
    async with a_site(tmp_path) as site, connected(site.url) as client:
        recorded = await record_all(site, client, PLANS[: len(KINDS)])

    async with running(setup_of(NOWHERE), tmp_path, with_tools) as site:
        site.rooms.current.gate.register(FakeTool("work", work))
        async with connected(site.url) as client:
            answers = await replayed(client, recorded)

    assert [plan for plan, answer in answers.items() if answer["divergence"]] == []


def agents(**changes: Any) -> Callable[[GatewayConfig], GatewayConfig]:
    def changed(agent: AgentDef) -> AgentDef:
        limits = changes.get("limits", {})
        plain = {name: value for name, value in changes.items() if name != "limits"}
        return replace(agent, **plain, limits=replace(agent.limits, **limits))

    def change(config: GatewayConfig) -> GatewayConfig:
        config = with_tools(config)
        return replace(config, agents=tuple(map(changed, config.agents)))

    return change


CHANGES: dict[str, tuple[Any, str, object, object]] = {
    "system prompt": (
        agents(system_prompt="Be kind."),
        "call 1: the system text (soul {folder}/soul.md), character 20",
        f"{RESULTS}"[:60],
        f"Be kind.\n\n{RESULTS}"[:60],
    ),
    "limit": (agents(limits={"max_iterations": 4}), "limits.max_iterations", 3, 4),
    "setting": (agents(max_tokens=9), "call 1: the setting max_tokens", 4096, 9),
    "tree": (agents(tree="oracle-agent"), "tree.name", "default", "oracle-agent"),
    "tools": (agents(tools=()), "call 1: the tools offered", ["work"], []),
}


async def recorded_and_reopened(
    folder: Path, change: Any, tool: FakeTool | None = None, soul: str | None = None
) -> Any:
    plan = PLANS[3]
    async with a_site(folder) as site, connected(site.url) as client:
        one = await record(site, client, plan)
    setup = setup_of(NOWHERE)
    async with running(setup, folder, change) as site:
        if soul is not None:
            await anyio.Path(folder / "soul.md").write_text(soul, encoding="utf-8")
            await site.rooms.reloads.reload()
        site.rooms.current.gate.register(tool or FakeTool("work", work))
        async with connected(site.url) as client:
            answer = await client.call("run.replay", run_id=one.run_id)
    assert not answer["identical"]
    return answer["divergence"]


@pytest.mark.parametrize("what", CHANGES)
async def test_what_has_changed_is_the_first_divergence(tmp_path: Path, what: str) -> None:
    change, at, was, now = CHANGES[what]

    found = await recorded_and_reopened(tmp_path, change)

    at = at.format(folder=tmp_path)
    assert found == {"at": at, "seq": None, "recorded": was, "now": now}


async def test_a_changed_soul_is_the_first_divergence(tmp_path: Path) -> None:
    found = await recorded_and_reopened(tmp_path, with_tools, soul="You answer questions.")

    at = f"call 1: the system text (soul {tmp_path}/soul.md), character 12"
    was, now = (f"{text}\n\n{RESULTS}"[:60] for text in ("tests.", "questions."))
    assert found == {"at": at, "seq": None, "recorded": was, "now": now}


async def test_a_changed_rule_is_the_first_divergence(tmp_path: Path) -> None:
    def change(config: GatewayConfig) -> GatewayConfig:
        rules = tuple(rule for rule in config.rules if rule.id != "told")
        return with_tools(replace(config, rules=rules))

    found = await recorded_and_reopened(tmp_path, change)

    assert (found["at"], found["now"]) == ("rules.told", None)


async def test_a_changed_tool_is_the_first_divergence(tmp_path: Path) -> None:
    tool = FakeTool("work", work, parameters='{"type":"object"}')

    found = await recorded_and_reopened(tmp_path, with_tools, tool)

    assert found["at"] == "call 1: the description or the parameters of the tool work"


async def test_a_run_that_was_taken_up_again_replays_its_last_attempt(tmp_path: Path) -> None:
    held = anyio.Event()

    def script(asked: Asked) -> Reply:
        if all(message["role"] != "tool" for message in asked.body["messages"]):
            return Reply("let me see", calls=[("a", "work", '{"turns":1,"hold":""}')])
        return Reply(["half", "whole"], gates={} if held.is_set() else {2: held})

    async with scripted_server(script) as model:
        setup = Setup(model.url, agent="[agent.limits]\ntimeout_seconds = 30")
        async with running(setup, tmp_path, with_tools) as site:
            site.rooms.current.gate.register(FakeTool("work", work))
            async with connected(site.url) as client:
                sent = await client.send("hi")
                await model.wait_for(2)
        held.set()
        async with running(setup, tmp_path, with_tools) as site:
            site.rooms.current.gate.register(FakeTool("work", work))
            async with connected(site.url) as client:
                await client.call("chat.resume", run_id=sent["run_id"])
                events = await client.ended(sent["run_id"])
                answer = await client.call("run.replay", run_id=sent["run_id"])

    assert events[0]["metadata"] == {"discard_from_seq": 1}
    assert (answer["identical"], answer["chunks"], answer["calls"]) == (True, len(events), 1)


async def test_keys_are_nowhere_in_a_journal(tmp_path: Path) -> None:
    key = "sk-of-the-test"
    error = f'data: {{"error":{{"message":"wrong key {key}"}}}}\n\n'.encode()
    pieces = [error[:35], error[35:]]  # cut within the key

    async with (
        scripted_server([Reply(raw=pieces)]) as model,
        running(Setup(model.url, provider="max_retries = 0"), tmp_path) as site,
        connected(site.url) as client,
    ):
        run_id = (await client.ask("hi"))["run_id"]
        record = await site.rooms.shared.stores.inbox.find_run(run_id)
        assert record is not None
        attempt = await site.rooms.replays.attempt(record)
        answer = await client.call("run.replay", run_id=run_id)

    said = "".join(entry.values[0] for entry in attempt.entries if entry.kind == "bytes")
    assert "wrong key **************" in said
    assert key not in str(attempt)
    assert answer["identical"]


@dataclass
class OneJournal(PartOfJournal):
    """A store that holds another journal than the one that was recorded."""

    data: bytes

    async def append(self, run_id: RunId, part: int, pack: Callable[[], bytes]) -> None:
        raise AssertionError("a replay writes nothing")

    async def read(self, run_id: RunId) -> Sequence[bytes]:
        return (self.data,)

    async def forgive(self, run_id: RunId) -> None:
        raise AssertionError("a replay forgives nothing")


@pytest.mark.embedded_store
@pytest.mark.parametrize("number", [3, 4, 8, 12, 14])
async def test_a_journal_with_an_entry_missing_or_wrong_is_an_honest_answer(
    tmp_path: Path, number: int
) -> None:
    found: Counter[str] = Counter()
    async with a_site(tmp_path) as site, connected(site.url) as client:
        run_id = RunId((await record(site, client, PLANS[number])).run_id)
        stored = await site.rooms.shared.stores.inbox.find_run(run_id)
        assert stored is not None
        replays = site.rooms.replays
        recorded: Attempt = await replays.attempt(stored)
        entries, wrong = recorded.entries, JournalEntry("reply", (0, {"text": 1}))
        journals = [(*entries[:place], *entries[place + 1 :]) for place in range(len(entries))]
        journals += [entries[:place] for place in range(len(entries))]
        journals += [(*entries[:place], wrong, *entries[place:]) for place in range(len(entries))]

        async def play(lines: tuple[JournalEntry, ...]) -> None:
            asked = JournalEntry("attempt", (1, list(recorded.asked)))
            text = [to_json([one.kind, *one.values]) for one in (asked, *lines)]
            journal = OneJournal(pack_text(text))
            worker = replace(replays.worker, journal=journal)
            try:
                played = await replace(replays, worker=worker).replay(stored)
                found["identical" if played.divergence is None else "diverged"] += 1
            except JournalUnreadable:
                found["unreadable"] += 1

        journals = journals if is_long() else journals[::4]
        with anyio.fail_after(60):
            await all_of(play, journals)

    assert found["diverged"] > len(journals) // 3
    assert sum(found.values()) == len(journals)


async def test_a_run_without_a_journal_says_why(tmp_path: Path) -> None:
    held = anyio.Event()
    async with talking([Reply("x", gates={1: held}), Reply("y")], tmp_path) as (
        model,
        site,
        client,
    ):
        sent = await client.send("hi")
        await model.wait_for(1)
        live = await client.refused("run.replay", run_id=sent["run_id"])
        held.set()
        await client.ended(sent["run_id"])
        swept = await site.rooms.shared.stores.care.sweep(
            before=datetime.max.replace(tzinfo=UTC), limit=9
        )
        gone = await client.refused("run.replay", run_id=sent["run_id"])
        unknown = await client.refused("run.replay", run_id="r_nobody")

    assert swept == 1
    assert (live.code, "has not ended yet" in str(live)) == (-32006, True)
    assert (gone.code, "kept for journal_days" in str(gone)) == (-32004, True)
    assert unknown.code == -32004


@pytest.mark.embedded_store
async def test_a_journal_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with talking([Reply("x"), Reply("y")], tmp_path) as (_model, _site, client):
        damaged, old = [(await client.ask("hi"))["run_id"] for _ in range(2)]

        def spoil() -> None:
            with contextlib.closing(sqlite3.connect(tmp_path / "data" / "store.db")) as db:
                db.execute("UPDATE journal SET data = x'00' WHERE run_id = ?", (damaged,))
                db.execute("DELETE FROM journal WHERE run_id = ?", (old,))
                db.execute("UPDATE run SET log = x'7b7d' WHERE run_id = ?", (old,))
                db.commit()

        await anyio.to_thread.run_sync(spoil)
        refused = [await client.refused("run.replay", run_id=one) for one in (damaged, old)]

    assert [one.code for one in refused] == [-32006, -32006]
    assert "the recording is damaged" in str(refused[0])
    assert "an earlier version recorded this run" in str(refused[1])


class Asking:
    """What a second model does, whatever the first one did."""

    def __init__(self, *calls: tuple[str, str, str], says: str = "done") -> None:
        self._calls, self._says = calls, says

    def __call__(self, asked: Asked) -> Reply:
        if asked.body["model"] == "first":
            calls: Sequence[tuple[str, str, str]] = [("1", "work", '{"turns":1,"hold":""}')]
        else:
            calls = self._calls
        is_done = any(message["role"] == "tool" for message in asked.body["messages"])
        text = "done" if asked.body["model"] == "first" else self._says
        return Reply(text) if is_done or not calls else Reply("", calls=calls)


SAME = ("x", "work", '{"hold": "", "turns": 1}')
COMPARED: dict[str, tuple[Asking, object, object]] = {
    "does and says the same": (Asking(SAME), None, "done"),
    "says something else": (Asking(SAME, says="done!"), "step 2: the answer, character 5", "done!"),
    "calls nothing": (Asking(), "step 1", "done"),
    "makes another call": (
        Asking(("x", "work", '{"turns":2,"hold":""}')),
        "step 1: call of work, character 20",
        "Cancelled by user",
    ),
    "calls it twice": (Asking(SAME, ("y", *SAME[1:])), "step 2", "done"),
}


@pytest.mark.parametrize("what", COMPARED)
async def test_another_model_is_asked_with_the_recorded_results(tmp_path: Path, what: str) -> None:
    script, at, response = COMPARED[what]
    tool = FakeTool("work", work)
    async with (
        scripted_server(script) as model,
        running(Setup(model.url), tmp_path, agents(model="first")) as site,
        connected(site.url) as client,
    ):
        site.rooms.current.gate.register(tool)
        sent = await client.send("hi")
        await client.ended(sent["run_id"])
        answer = await client.call("run.replay", run_id=sent["run_id"], model="other")
        head = (await client.call("session.get", session_key=sent["session_key"]))["head"]
        again = await client.call("run.replay", run_id=sent["run_id"])

    assert (answer["divergence"] and answer["divergence"]["at"]) == at
    assert (answer["response"], answer["identical"]) == (response, at is None)
    assert {one.body["model"] for one in model.requests[2:]} == {"other"}
    assert answer["tokens_used"] > 0
    assert len(tool.calls) == 1  # no tool is run again
    assert head.endswith(".3")  # and nothing is added to the conversation
    assert again["identical"]


async def test_what_models_used_for_a_tool_is_told_again(tmp_path: Path) -> None:
    tool = FakeTool("work", work, spends=Spent(Usage(1_000, 234), "p", "small"))
    async with (
        scripted_server(Asking(SAME)) as model,
        running(Setup(model.url), tmp_path, agents(model="first")) as site,
        connected(site.url) as client,
    ):
        site.rooms.current.gate.register(tool)
        sent = await client.send("hi")
        events = await client.ended(sent["run_id"])
        answer = await client.call("run.replay", run_id=sent["run_id"])

    assert answer["identical"]
    assert events[-1]["tokens_used"] > 1_234
    assert len(tool.calls) == 1


async def test_only_an_operator_has_another_model_asked(tmp_path: Path) -> None:
    tokens = "".join(
        f'[[tokens]]\nname = "{name}"\ntoken = "t-{name * 16}"\nscopes = ["{scope}"]\n'
        for name, scope in (("a", "chat"), ("b", "read"), ("c", "chat"), ("d", "admin"))
    )
    async with (
        scripted_server([Reply("x")]) as model,
        running(Setup(model.url, rest=tokens), tmp_path) as site,
        connected(site.url, "t-aaaaaaaaaaaaaaaa") as ann,
        connected(site.url, "t-bbbbbbbbbbbbbbbb") as bob,
        connected(site.url, "t-cccccccccccccccc") as cec,
        connected(site.url, "t-dddddddddddddddd") as dan,
    ):
        run_id = (await ann.ask("hi"))["run_id"]
        seen = await bob.call("run.replay", run_id=run_id)
        refused = [
            (await client.refused("run.replay", run_id=run_id, model="dearer")).code
            for client in (ann, bob, cec)
        ]
        hidden = await cec.refused("run.replay", run_id=run_id)
        asked = await dan.call("run.replay", run_id=run_id, model="other")

    assert (asked["calls"], seen["identical"]) == (1, True)
    assert (refused, hidden.code) == ([-32002, -32002, -32004], -32004)
    assert len(model.requests) == 2


async def test_the_first_event_that_is_another_is_named(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, connected(site.url) as client:
        one = await record(site, client, PLANS[0])
        stored = await site.rooms.shared.stores.inbox.find_run(RunId(one.run_id))
        assert stored is not None
        events = stored.log.split(b"\n")
        place = [event["type"] for event in one.events].index("content")

        async def with_log(changed: Sequence[bytes]) -> tuple[object, ...]:
            log = b"\n".join(changed)
            found = (await site.rooms.replays.replay(replace(stored, log=log))).divergence
            assert found is not None
            return found.at, found.seq, found.recorded is None, found.now is None

        other = events[place].replace(b'"content":"', b'"content":"never ')
        answers = [
            await with_log([*events[:place], other, *events[place + 1 :]]),
            await with_log([*events, b"{}"]),
            await with_log(events[:-1]),
        ]

    number, last = place + 1, len(events)
    assert answers == [
        (f"event {number}", number, False, False),
        (f"event {last + 1}", last + 1, False, True),
        (f"event {last}", last, True, False),
    ]


@pytest.mark.parametrize("mode", ["collect", "steer", "interrupt"])
async def test_runs_that_met_others_replay_identically(tmp_path: Path, mode: str) -> None:
    held = anyio.Event()

    def script(asked: Asked) -> Reply:
        if any(message["role"] == "tool" for message in asked.body["messages"]):
            return Reply("done")
        calls = [("a", "work", '{"turns":3,"hold":"met"}'), ("b", "work", '{"turns":9,"hold":""}')]
        return Reply("let me see", calls=calls, gates={1: held})

    GATES.clear()
    async with scripted_server(script) as model:
        setup = Setup(model.url, rest=f'[queue]\nmode = "{mode}"')
        async with running(setup, tmp_path, with_tools) as site, connected(site.url) as client:
            site.rooms.current.gate.register(FakeTool("work", work))
            sent = [await client.send("one")]
            await model.wait_for(1)
            sent += [await client.send("two"), await client.send("three")]
            held.set()
            GATES["met"].set()
            ends = [(await client.ended(one["run_id"]))[-1] for one in sent]
            merged = [end["run_id"] for end in ends if end["reason"] == "merged"]
            others = [end["run_id"] for end in ends if end["reason"] != "merged"]
            answers = [await client.call("run.replay", run_id=run_id) for run_id in others]
            refused = [await client.refused("run.replay", run_id=run_id) for run_id in merged]

    assert [answer["divergence"] for answer in answers] == [None] * len(answers)
    assert len(merged) == {"collect": 1, "steer": 2, "interrupt": 0}[mode]
    assert all("another run answered it" in str(one) for one in refused)
