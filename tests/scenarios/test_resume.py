"""A client that was gone hears what it missed: in the middle, after the end, after a restart."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.client import WAIT_S, Client, connected, seqs_of, texts_of
from tests.fakes.gateway import Setup, command, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.scenarios.scripts import echo, shown, talking

pytestmark = pytest.mark.shared_store

PIECES = [f"piece {number}. " for number in range(10)]


async def test_a_stream_that_was_cut_goes_on_without_a_gap(tmp_path: Path) -> None:
    half, rest = anyio.Event(), anyio.Event()
    reply = Reply(PIECES, gates={4: half, 8: rest})
    async with scripted_server([reply]) as model, running(Setup(model.url), tmp_path) as site:
        async with connected(site.url) as client:
            sent = await client.send("talk")
            wanted = "".join(PIECES[:3])
            seen = await client.until(sent["run_id"], lambda events: texts_of(events) == wanted)
            before = list(seen)
        half.set()  # nobody listens now
        async with connected(site.url) as client:
            after_seq = before[-1]["seq"]
            resumed = await client.call("chat.resume", run_id=sent["run_id"], after_seq=after_seq)
            rest.set()
            after = await client.ended(sent["run_id"])

    assert resumed == {"run_id": sent["run_id"], "live": True}
    assert seqs_of([*before, *after]) == list(range(1, len(before) + len(after) + 1))
    assert texts_of([*before, *after]) == "".join(PIECES) == after[-1]["response"]


async def test_missed_events_come_before_the_answer_and_live_ones_after_it(tmp_path: Path) -> None:
    rest = anyio.Event()
    async with (
        scripted_server([Reply(PIECES, gates={5: rest})]) as model,
        running(Setup(model.url), tmp_path) as site,
        connected(site.url) as one,
        connected(site.url) as other,
    ):
        sent = await one.send("talk")
        wanted = "".join(PIECES[:4])
        await one.until(sent["run_id"], lambda events: texts_of(events) == wanted)
        await other.call("chat.resume", run_id=sent["run_id"], after_seq=1)
        rest.set()
        await other.ended(sent["run_id"])

    place = next(n for n, frame in enumerate(other.frames) if "result" in frame)
    missed = [frame["params"] for frame in other.frames[:place]]
    assert texts_of(missed) == wanted
    assert seqs_of(other.events[sent["run_id"]])[0] == 2


@pytest.mark.parametrize("after_seq", [0, 2, 10_000])
async def test_after_the_end_the_stored_events_are_told_again(
    tmp_path: Path, after_seq: int
) -> None:
    async with scripted_server([Reply(PIECES)]) as model:
        setup = Setup(model.url)
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            sent = await client.send("talk")
            all_of_it = list(await client.ended(sent["run_id"]))
            missed = [event for event in all_of_it if event["seq"] > after_seq]
            async with connected(site.url) as late:
                now = await late.call("chat.resume", run_id=sent["run_id"], after_seq=after_seq)
                heard_now = late.events[sent["run_id"]]
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            later = await client.call("chat.resume", run_id=sent["run_id"], after_seq=after_seq)
            heard_later = client.events[sent["run_id"]]

    assert now == later == {"run_id": sent["run_id"], "live": False}
    assert heard_now == heard_later == missed


async def test_a_run_that_nobody_knows_is_not_found(tmp_path: Path) -> None:
    async with talking(echo, tmp_path) as (_model, _site, client):
        for unknown in ("r_" + "0" * 26, "nonsense", "r:\x00'; drop table runs", "\u202e"):
            error = await client.refused("chat.resume", run_id=unknown, after_seq=0)

            assert (error.code, error.data["type"]) == (-32004, "not_found")
        negative = await client.refused("chat.resume", run_id="r", after_seq=-1)
        assert negative.code == -32602


async def test_a_gateway_that_stops_and_starts_makes_the_answer_again_and_says_so(
    tmp_path: Path,
) -> None:
    gate = anyio.Event()

    def script(asked: Asked) -> Reply:
        if asked.number == 1:
            return Reply(["half an ", "answer"], gates={2: gate})
        return Reply("a whole answer")

    async with scripted_server(script) as model:
        setup = Setup(model.url)
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            sent = await client.send("talk")
            seen = await client.until(sent["run_id"], texts_of)
            before = list(seen)
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            await client.call("chat.resume", run_id=sent["run_id"], after_seq=before[-1]["seq"])
            after = await client.ended(sent["run_id"])
            page = await client.call("chat.history", session_key=sent["session_key"])

    assert texts_of(before) == "half an "
    assert (after[0]["type"], after[0]["system_type"]) == ("system", "notice")
    assert after[0]["metadata"]["discard_from_seq"] == 1
    assert after[0]["seq"] > before[-1]["seq"]
    seqs = seqs_of(after)
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    assert [event["type"] for event in after].count("done") == 1
    assert texts_of(after) == after[-1]["response"] == "a whole answer"
    assert shown(page) == [("user", "talk"), ("assistant", "a whole answer")]


async def test_after_kill_9_in_the_middle_of_a_stream_there_is_one_answer(tmp_path: Path) -> None:
    gate = anyio.Event()

    def script(asked: Asked) -> Reply:
        if asked.number == 1:
            return Reply(PIECES, gates={4: gate})
        return echo(asked)

    async with scripted_server(script) as model:
        config = await Setup(model.url).written(tmp_path)
        async with command(config) as site, connected(site.url) as client:
            sent = await client.send("talk", idempotency_key="k")
            waiting = await client.send("and then?", idempotency_key="k2")
            before = list(await client.until(sent["run_id"], texts_of))
            site.kill()
            await site.exit_code()
        async with command(config) as site, connected(site.url) as client:
            again = await client.send("talk", idempotency_key="k")
            await client.call("chat.resume", run_id=sent["run_id"], after_seq=before[-1]["seq"])
            await client.call("chat.resume", run_id=waiting["run_id"], after_seq=0)
            after = await client.ended(sent["run_id"])
            second = await client.ended(waiting["run_id"])
            page = await client.call("chat.history", session_key=sent["session_key"])
            inspected = await client.call("run.inspect", run_id=sent["run_id"])

    assert again == {**sent, "duplicate": True}
    assert after[0]["metadata"]["discard_from_seq"] == 1
    assert after[0]["seq"] > before[-1]["seq"]
    assert [event["type"] for event in after].count("done") == 1
    assert after[-1]["response"] == "answer to talk"
    assert second[-1]["response"] == "answer to and then?"
    # It never began before, so there is nothing to throw away.
    assert "system" not in {event["type"] for event in second}
    assert [text for role, text in shown(page) if role == "user"] == ["talk", "and then?"]
    assert inspected["attempt"] == 2


async def test_a_message_that_only_waited_is_not_counted_as_attempted(tmp_path: Path) -> None:
    gate = anyio.Event()

    def script(asked: Asked) -> Reply:
        return Reply("never", gate=gate) if asked.number == 1 else echo(asked)

    async with scripted_server(script) as model:
        config = await Setup(model.url).written(tmp_path)
        async with command(config) as site, connected(site.url) as client:
            sent = await send_at_once(client, 5)
            with anyio.fail_after(WAIT_S):
                await model.wait_for(1)
            site.kill()
            await site.exit_code()
        async with command(config) as site, connected(site.url) as client:
            for one in sent:
                await client.call("chat.resume", run_id=one["run_id"], after_seq=0)
            heard = [await client.ended(one["run_id"]) for one in sent]

    # One was at work when the gateway stopped; there is nothing to throw away of the others.
    assert sorted(events[0]["seq"] == 1 for events in heard) == [False, True, True, True, True]
    assert sorted(events[0]["type"] == "system" for events in heard) == [False] * 4 + [True]


async def send_at_once(client: Client, count: int) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def one(number: int) -> None:
        sent.append(await client.send(f"q{number}"))

    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(one, number)
    return sent
