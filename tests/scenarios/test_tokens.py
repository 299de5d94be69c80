"""Tokens that are handed out while the gateway runs: a program gets one, meets its limit, and loses it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.host.files import read_key
from tests.fakes.client import WAIT_S, Client, HttpAnswer, connected, http, post_chat
from tests.fakes.gateway import Setup, Site, running
from tests.fakes.model_server import ModelServer, Reply, scripted_server

pytestmark = pytest.mark.shared_store

FILE = """
[[tokens]]
name = "desk"
token = "desk-token-of-the-file"
budget = { daily = 5000, monthly = 6000 }
"""


SEND = '{"jsonrpc":"2.0","id":1,"method":"chat.send","params":{"content":"hi"}}'


@dataclass
class Stage:
    site: Site
    model: ModelServer
    operator: Client

    async def create(self, name: str = "program", **more: object) -> str:
        made = await self.operator.call("token.create", name=name, **more)
        return str(made["token"])

    def socket(self, token: str) -> connect:
        url = self.site.url.replace("http", "ws") + "/ws"
        return connect(url, additional_headers={"Authorization": f"Bearer {token}"})

    async def finished(self) -> int:
        """How many sessions have an answer."""
        found = (await self.operator.call("session.list"))["sessions"]
        return sum(one["message_count"] == 2 for one in found)

    async def budgets(self) -> list[dict[str, Any]]:
        """Those of tokens."""
        rows = (await self.operator.call("budget.status"))["budgets"]
        return [row for row in rows if row["scope"].startswith("token:")]

    async def used(self) -> dict[str, int]:
        rows = (await self.operator.call("budget.status"))["budgets"]
        return {row["scope"]: row["used"] for row in rows}


@asynccontextmanager
async def staged(folder: Path, reply: Any = None, rest: str = "") -> AsyncIterator[Stage]:
    usage = Reply("hi", usage=(300, 200))
    async with (
        scripted_server(reply or (lambda _asked: usage)) as model,
        running(Setup(model.url, rest=rest), folder) as site,
    ):
        key = await to_thread.run_sync(read_key, folder / "data")
        async with connected(site.url, key) as operator:
            yield Stage(site, model, operator)


async def test_a_program_meets_its_limit_and_goes_on_once_it_is_raised(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        token = await stage.create(budget=5_000)
        first = await post_chat(stage.site.url, "hi", token=token)
        refused = None
        for _ in range(10):
            answer = await post_chat(stage.site.url, "hi", token=token)
            refused = answer if answer.status == 429 else refused
        (row,) = await stage.budgets()
        raised = await stage.operator.call(
            "budget.raise", scope="token:program", by=5_000, today=True
        )
        again = await post_chat(stage.site.url, "hi", token=token)
        openai = await http(
            f"{stage.site.url}/v1/chat/completions",
            method="POST",
            token=token,
            headers={"Content-Type": "application/json"},
            body=b'{"model": "main", "messages": [{"role": "user", "content": "hi"}]}',
        )
        (after,) = await stage.budgets()
        records = (await stage.operator.call("usage.report", by="person"))["rows"]

    assert (first.status, again.status, openai.status) == (200, 200, 200)
    assert refused is not None
    told = refused.json["error"]
    assert (told["type"], told["scope"], told["limit"]) == (
        "budget_exceeded",
        "token:program",
        5_000,
    )
    assert told["message"] == f"token budget exceeded (token:program: {told['used']}/5000)"
    assert told["resets_at"].endswith("T00:00:00Z")
    assert (row["limit"], row["used"], row.get("raised_by")) == (5_000, told["used"], None)
    assert (after["limit"], after["raised_by"], after["until"]) == (
        *(10_000, 5_000),
        raised["until"],
    )
    assert after["used"] == row["used"] + 1_000
    assert [(one["person"], one["input_tokens"] + one["output_tokens"]) for one in records] == [
        ("program", after["used"])
    ]


async def test_what_is_said_as_somebody_else_counts_once_and_for_them(tmp_path: Path) -> None:
    own = "[budgets]\ndaily = 90_000\nmonthly = 90_000\nsession = 90_000\nper_agent = 90_000\n"
    async with staged(tmp_path, rest=FILE + own) as stage:
        bridge = await stage.create("bridge", scopes=["chat", "impersonate"], budget=9_000)
        spoken = []
        async with connected(stage.site.url, bridge) as client:
            for said in (
                {"channel": "telegram", "account": "default", "peer": "5512"},
                {"channel": "telegram", "account": "bridge", "peer": "5512"},  # no token's call
                {"account": "desk"},
                {},
            ):
                before = await stage.used()
                end = await client.ask("hi", **said)
                after = await stage.used()
                spoken.append({name: after[name] - before.get(name, 0) for name in after})
                assert end["type"] == "done"

    everyone = {"agent:main": 500, "daily": 500, "monthly": 500}
    nobody = {"token:bridge": 0, "token:desk": 0}
    assert spoken == [
        everyone | nobody,
        everyone | nobody,
        everyone | nobody | {"token:desk": 500},
        everyone | nobody | {"token:bridge": 500},
    ]


async def test_a_budget_of_the_file_bounds_days_and_months(tmp_path: Path) -> None:
    async with staged(tmp_path, rest=FILE) as stage:
        answers = [
            await post_chat(stage.site.url, "hi", token="desk-token-of-the-file") for _ in range(12)
        ]
        rows = await stage.budgets()

    assert {answer.status for answer in answers} == {200, 429}
    assert [(one["scope"], one["limit"]) for one in rows] == [
        ("token:desk", 5_000),
        ("token:desk", 6_000),
    ]
    assert rows[0]["used"] == rows[1]["used"] > 0


async def test_a_token_has_a_limit_in_each_session_and_one_for_the_month(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        token = await stage.create(budget={"session": 5_000, "monthly": 7_500})
        statuses: dict[str, list[int]] = {}
        for session in ("one", "two"):
            for _ in range(12):
                answer = await post_chat(stage.site.url, "hi", token=token, conversation_id=session)
                statuses.setdefault(session, []).append(answer.status)
                error = answer.json.get("error", {})
        (row,) = await stage.budgets()
        await stage.operator.call("budget.raise", scope="token:program", by=5_000, today=True)
        raised = await post_chat(stage.site.url, "hi", token=token, conversation_id="two")

    assert (statuses["one"][0], statuses["one"][-1]) == (200, 429)
    assert (statuses["two"][0], statuses["two"][-1]) == (200, 429)
    assert (error["scope"], error["limit"]) == ("token:program", 7_500)
    assert error["resets_at"] == row["resets_at"]
    assert raised.status == 200


async def shown_out(socket: ClientConnection) -> int | None:
    """Reads until the gateway closes the socket: with which code."""
    with anyio.fail_after(WAIT_S):
        try:
            async for _ in socket:
                pass
        except ConnectionClosed:
            pass
    return socket.close_code


async def test_a_revoked_token_loses_its_socket_and_its_stream_and_its_runs_finish(
    tmp_path: Path,
) -> None:
    gate = anyio.Event()
    answers: list[HttpAnswer] = []
    async with staged(tmp_path, lambda _asked: Reply("hi", usage=(3, 2), gate=gate)) as stage:
        token, other = await stage.create(), await stage.create("other")
        url = stage.site.url

        async def ask(*, stream: bool) -> None:
            answers.append(await post_chat(url, "hi", token=token, stream=stream))

        async with stage.socket(token) as socket, connected(url, other) as untouched:
            await socket.send(SEND)
            async with anyio.create_task_group() as group:
                group.start_soon(partial(ask, stream=True))
                group.start_soon(partial(ask, stream=False))
                await stage.model.wait_for(3)
                await stage.operator.call("token.revoke", name="program")
                code = await shown_out(socket)
            assert await untouched.call("ping") == "pong"
        refused = await post_chat(url, "hi", token=token)
        gate.set()
        with anyio.fail_after(WAIT_S):
            while await stage.finished() < 3:  # noqa: ASYNC110  # the store has no event
                await anyio.sleep(0.01)

    assert code == 4401
    assert sorted(one.status for one in answers) == [200, 401]
    assert b"done" not in b"".join(one.body for one in answers)
    assert refused.status == 401


async def test_a_token_that_expires_while_it_is_connected_is_shown_out(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        token = await stage.create(expires="1s")
        async with stage.socket(token) as socket:
            code = await shown_out(socket)
        (row,) = (await stage.operator.call("token.list"))["tokens"]
        with pytest.raises(InvalidStatus):
            await stage.socket(token)

    assert (code, row["state"]) == (4401, "expired")


async def test_who_may_only_chat_hands_out_nothing_and_nobody_gives_more_than_they_have(
    tmp_path: Path,
) -> None:
    more = '\n[[agents]]\nid = "team"\nprovider = "fake"\nmodel = "m"\n'
    async with staged(tmp_path, rest=FILE + more) as stage:
        chat = await stage.create("chat")
        lead = await stage.create("lead", scopes=["admin"], agents=["team"])
        url, codes = stage.site.url, []
        async with connected(url, chat) as client:
            for method, params in (
                ("token.create", {"name": "x"}),
                ("token.list", {}),
                ("token.revoke", {"name": "chat"}),
                ("budget.raise", {"scope": "token:desk", "by": 1, "today": True}),
                ("usage.report", {}),
            ):
                codes.append((await client.refused(method, **params)).code)
        async with connected(url, lead) as client:
            codes.append((await client.refused("token.create", name="y")).code)
            codes.append((await client.refused("token.create", name="y", agents=["main"])).code)
            await client.call("token.create", name="y", agents=["team"])
        refusals: Sequence[tuple[dict[str, object], int]] = (
            ({"name": "z", "scopes": ["root"]}, -32602),
            ({"name": "z", "scopes": ["agent:main"]}, -32602),
            ({"name": "z", "agents": ["ghost"]}, -32004),
            ({"name": "desk"}, -32006),
            ({"name": "local"}, -32006),
            ({"name": "operator"}, -32006),
            ({"name": "y"}, -32006),
            ({"name": "é"}, -32602),
            ({"name": "z", "expires": "2001-01-01"}, -32602),
            ({"name": "z", "expires": "10 parsecs"}, -32602),
            ({"name": "z", "budget": -1}, -32602),
        )
        for params, code in refusals:
            assert (await stage.operator.refused("token.create", **params)).code == code, params
        desk = await stage.operator.refused("token.revoke", name="desk")
        names = [one["name"] for one in (await stage.operator.call("token.list"))["tokens"]]
        audit = await stage.operator.call("audit.tail", limit=99)

    assert codes == [-32002] * 7
    assert desk.code == -32006
    assert names == ["desk", "chat", "lead", "y"]
    assert chat not in str(audit)
