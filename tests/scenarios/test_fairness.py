"""What may wait is bounded in bytes and by sender, and turns are shared out by sender first."""

import json
from pathlib import Path

import anyio
import pytest

from tests.fakes.client import WAIT_S, connected, http, post_chat
from tests.fakes.gateway import Setup, command, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.scenarios.scripts import echo
from tests.scenarios.test_webhooks import COMPILED_S, REST, post, said, signed

pytestmark = pytest.mark.shared_store

TOKENS = """
[[tokens]]
name = "busy"
token = "token-of-busy-0123456789"
[[tokens]]
name = "calm"
token = "token-of-calm-0123456789"
[queue]
"""
BUSY, CALM = "token-of-busy-0123456789", "token-of-calm-0123456789"
LARGE = "x" * 380_000  # two of them fit into a MB, three do not
WINDOW = "context_window = 1000000"  # they fit into this, and into a run of so many tokens:
ROOM = "[limits]\ntoken_budget = 200000\n"


class Held:
    """Answers nobody until it is opened."""

    def __init__(self) -> None:
        self.gate = anyio.Event()

    def __call__(self, asked: Asked) -> Reply:
        return Reply("ok", gate=self.gate)


async def test_a_session_refuses_what_is_more_than_its_bytes_and_takes_it_when_there_is_room(
    tmp_path: Path,
) -> None:
    held = Held()
    async with scripted_server(held) as model:
        setup = Setup(model.url, agent=WINDOW, rest=f"{ROOM}[queue]\nmax_pending_mb = 1")
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            runs = [(await client.send(LARGE))["run_id"] for _ in range(2)]
            error = await client.refused("chat.send", content=LARGE)
            small = await client.send("a small one still fits")
            elsewhere = await client.send(LARGE, peer="b")
            held.gate.set()
            for run in (*runs, small["run_id"], elsewhere["run_id"]):
                await client.ended(run)
            after = await client.ask(LARGE)

    assert (error.code, error.data["type"], error.data["retryable"]) == (-32005, "busy", True)
    assert error.data["retry_after_s"] > 0
    assert "max_pending_mb" in str(error)
    assert after["response"] == "ok"


async def test_all_sessions_together_refuse_what_is_more_than_their_bytes(tmp_path: Path) -> None:
    held = Held()
    async with scripted_server(held) as model:
        setup = Setup(model.url, agent=WINDOW, rest=f"{ROOM}[queue]\nmax_pending_total_mb = 1")
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            runs = [(await client.send(LARGE, peer=peer))["run_id"] for peer in "ab"]
            error = await client.refused("chat.send", content=LARGE, peer="c")
            over_http = await post_chat(site.url, LARGE, conversation_id="d")
            openai = await http(
                f"{site.url}/v1/chat/completions",
                method="POST",
                headers={"X-Exogate-Session": "e", "Content-Type": "application/json"},
                body=json.dumps(
                    {"model": "main", "messages": [{"role": "user", "content": LARGE}]}
                ).encode(),
            )
            held.gate.set()
            for run in runs:
                await client.ended(run)

    assert error.code == -32005
    for answer in (over_http, openai):
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) > 0


async def test_what_waits_after_a_restart_counts_in_the_bytes_of_its_session(
    tmp_path: Path,
) -> None:
    held = Held()
    async with scripted_server(held) as model:
        config = await Setup(
            model.url, agent=WINDOW, rest=f"{ROOM}[queue]\nmax_pending_mb = 1"
        ).written(tmp_path)
        async with command(config) as site, connected(site.url) as client:
            runs = [(await client.send(LARGE))["run_id"] for _ in range(2)]
            site.kill()
        async with command(config) as site, connected(site.url) as client:
            error = await client.refused("chat.send", content=LARGE)
            held.gate.set()
            for run in runs:
                await client.call("chat.resume", run_id=run, after_seq=0)
                await client.ended(run)
            after = await client.ask(LARGE)

    assert error.code == -32005
    assert after["response"] == "ok"


async def test_what_is_imported_counts_in_the_bytes_of_its_session(tmp_path: Path) -> None:
    held = Held()
    at = "2026-01-01T00:00:00Z"
    old = [{"id": f"m{n}", "role": "user", "content": LARGE, "created_at": at} for n in range(3)]
    key = "main:websocket:local:main"
    async with scripted_server(held) as model:
        setup = Setup(
            model.url,
            gateway="max_frame_bytes = 8388608",
            agent=WINDOW,
            rest=f"{ROOM}[queue]\nmax_pending_mb = 1",
        )
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            too_large = await client.refused("session.import", session_key=key, messages=old)
            runs = [(await client.send(LARGE))["run_id"] for _ in range(2)]
            too_many = await client.refused("session.import", session_key=key, messages=old[:1])
            held.gate.set()
            for run in runs:
                await client.ended(run)
            taken = await client.call("session.import", session_key=key, messages=old[:1])
            page = await client.call("session.list")

    assert (too_large.code, too_many.code) == (-32005, -32005)
    assert taken["imported"] == 1
    assert [one["message_count"] for one in page["sessions"]] == [5]


async def test_a_platform_that_calls_is_told_to_call_again(tmp_path: Path) -> None:
    held = Held()
    bodies = [said(LARGE, str(number)) for number in range(3)]
    rest = REST.replace('dm_policy = "open"', 'dm_policy = "open"\nmax_age_s = 3600')
    async with scripted_server(held) as model:
        setup = Setup(model.url, agent=WINDOW, rest=f"{rest}\n{ROOM}[queue]\nmax_pending_mb = 1")
        async with running(setup, tmp_path, patience_s=COMPILED_S) as site:
            answers = [await post(site, body, signed(body)) for body in bodies]
            held.gate.set()
            with anyio.fail_after(WAIT_S):
                await model.wait_for(2)
                await site.rooms.shared.lanes.wait_idle()
            again = await post(site, bodies[2], signed(bodies[2]))
            with anyio.fail_after(WAIT_S):
                await model.wait_for(3)

    assert [answer.status for answer in answers] == [200, 200, 503]
    assert int(answers[2].headers["Retry-After"]) > 0
    assert again.status == 200


async def test_one_token_may_have_only_so_much_waiting_and_another_is_not_refused(
    tmp_path: Path,
) -> None:
    held = Held()
    async with scripted_server(held) as model:
        setup = Setup(model.url, rest=f"{TOKENS}\nmax_pending_per_principal = 3")
        async with (
            running(setup, tmp_path) as site,
            connected(site.url, BUSY) as busy,
            connected(site.url, CALM) as calm,
        ):
            runs = [(await busy.send("hi", peer=f"p{n}"))["run_id"] for n in range(3)]
            error = await busy.refused("chat.send", content="hi", peer="p4")
            over_http = await post_chat(site.url, "hi", token=BUSY)  # the same token
            other = await calm.send("hi")
            held.gate.set()
            for run in runs:
                await busy.ended(run)
            await calm.ended(other["run_id"])
            after = await busy.ask("hi", peer="p4")

    assert (error.code, error.data["retryable"], over_http.status) == (-32005, True, 503)
    assert after["response"] == "ok"


@pytest.mark.parametrize("width", [1, 3])
async def test_a_token_with_many_peers_delays_the_first_answer_of_another_by_one_turn_at_most(
    tmp_path: Path, width: int
) -> None:
    gates = [anyio.Event() for _ in range(100)]

    def script(asked: Asked) -> Reply:
        return Reply("ok", gate=gates[asked.number])

    async with scripted_server(script) as model:
        setup = Setup(model.url, rest=f"{TOKENS}\nmax_running = {width}")
        async with (
            running(setup, tmp_path) as site,
            connected(site.url, BUSY) as busy,
            connected(site.url, CALM) as calm,
        ):
            runs = [(await busy.send("busy", peer=f"p{n}"))["run_id"] for n in range(30)]
            with anyio.fail_after(WAIT_S):
                await model.wait_for(width)
            first = await calm.send("calm")
            gates[1].set()  # one turn ends
            with anyio.fail_after(WAIT_S):
                await model.wait_for(width + 1)
            next_one = model.requests[width].last_text
            for gate in gates:
                gate.set()
            await calm.ended(first["run_id"])
            for run in runs:
                await busy.ended(run)

    assert next_one == "calm"


async def test_a_token_that_asks_again_and_again_lets_the_one_with_many_peers_go_on(
    tmp_path: Path,
) -> None:
    async with scripted_server(echo) as model:
        setup = Setup(model.url, rest=f"{TOKENS}\nmax_running = 1")
        async with (
            running(setup, tmp_path) as site,
            connected(site.url, BUSY) as busy,
            connected(site.url, CALM) as calm,
        ):
            runs = [(await busy.send("busy", peer=f"p{n}"))["run_id"] for n in range(10)]
            for _ in range(10):
                await calm.ask("calm")
            for run in runs:
                await busy.ended(run)

    asked = "".join("b" if one.last_text == "busy" else "c" for one in model.requests)
    assert "cc" not in asked.rstrip("c")


async def test_a_room_where_many_write_delays_the_first_answer_of_a_token_by_one_turn_at_most(
    tmp_path: Path,
) -> None:
    gates = [anyio.Event() for _ in range(100)]
    people = [
        said("many", str(n)).replace(b'"ann"', b'"p%d"' % n).replace(b'"r1"', b'"r%d"' % n)
        for n in range(12)
    ]

    def script(asked: Asked) -> Reply:
        return Reply("ok", gate=gates[asked.number])

    async with scripted_server(script) as model:
        setup = Setup(model.url, rest=f"{REST}{TOKENS}\nmax_running = 1")
        async with running(setup, tmp_path) as site, connected(site.url, CALM) as calm:
            for body in people:
                assert (await post(site, body, signed(body))).status == 200
            with anyio.fail_after(WAIT_S):
                await model.wait_for(1)
            first = await calm.send("calm")
            gates[1].set()
            with anyio.fail_after(WAIT_S):
                await model.wait_for(2)
            next_one = model.requests[1].last_text
            for gate in gates:
                gate.set()
            await calm.ended(first["run_id"])
            with anyio.fail_after(WAIT_S):
                await model.wait_for(len(people) + 1)

    assert next_one == "calm"


async def test_a_token_whose_requests_take_all_places_keeps_no_other_out_of_v1(
    tmp_path: Path,
) -> None:
    held = Held()
    answers: list[int] = []
    async with scripted_server(held) as model:
        setup = Setup(model.url, rest=f"{TOKENS}\nmax_running = 2")
        async with running(setup, tmp_path) as site, anyio.create_task_group() as group:

            async def complete(token: str) -> int:
                body = {"model": "main", "messages": [{"role": "user", "content": "hi"}]}
                answer = await http(
                    f"{site.url}/v1/chat/completions",
                    method="POST",
                    token=token,
                    headers={"Content-Type": "application/json"},
                    body=json.dumps(body).encode(),
                )
                return answer.status

            async def keep(token: str) -> None:
                answers.append(await complete(token))

            group.start_soon(keep, BUSY)
            group.start_soon(keep, BUSY)
            with anyio.fail_after(WAIT_S):
                await model.wait_for(2)
            refused = await complete(BUSY)
            group.start_soon(keep, CALM)
            with anyio.fail_after(WAIT_S):
                await model.wait_for(3)
            held.gate.set()

    assert refused == 503
    assert answers == [200, 200, 200]


async def test_a_token_whose_calls_wait_for_a_budget_holds_up_no_other_by_more_than_one(
    tmp_path: Path,
) -> None:
    gates: dict[int, anyio.Event] = {}

    def script(asked: Asked) -> Reply:
        gates[asked.number] = anyio.Event()
        return Reply("ok", usage=(20, 5), gate=gates[asked.number])

    budget = "[budgets]\ndaily = { tokens = 9000 }"  # for two calls at a time
    async with (
        scripted_server(script) as model,
        running(Setup(model.url, rest=f"{TOKENS}\n{budget}"), tmp_path) as site,
        connected(site.url, token=BUSY) as busy,
        connected(site.url, token=CALM) as calm,
    ):
        runs = [(await busy.send(f"busy {n}", peer=f"p{n}"))["run_id"] for n in range(8)]
        await model.wait_for(2)
        asked = await calm.send("calm")
        for number in range(1, 10):
            await model.wait_for(number)
            gates[number].set()
        await calm.ended(asked["run_id"])
        for run in runs:
            await busy.ended(run)

    order = [one.last_text for one in model.requests]
    assert order.index("calm") <= 4, order  # two were at work, one was next, and one may come along
