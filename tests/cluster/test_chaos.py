"""Three gateways that share one store, while they are killed, stand still, are cut off and stop, and NATS and the
store go away: nothing is lost, nothing is doubled, no tool acts twice, every session keeps its order, and every
call is counted once."""

import asyncio
import base64
import hashlib
import hmac
import itertools
import json
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import ClientError
from anyio import to_thread
from websockets.exceptions import WebSocketException

pytest.importorskip("cbor2", reason="the extra `surrealdb` is not installed")

from gateway.host.clock import SystemClock
from tests.fakes.api import ApiCall, Told, serving
from tests.fakes.client import Client, Disconnected, Event, RpcError, connected, http
from tests.fakes.fleet import LEASE_S, Fleet, fleet
from tests.fakes.model_server import Asked, Reply
from tests.fakes.nats import NatsServer, nats_binary, running_nats
from tests.fakes.proxy import Proxy, proxy
from tests.fakes.shop import Shop, shop
from tests.fakes.surreal import SurrealDatabase, SurrealServer, running_surreal, surreal_binary
from tests.forms import is_long, keep

NAMES = ("a", "b", "c")
# Whoever kills a gateway three times over a message has it set aside: the kills stand apart.
EVENTS = (
    "kill",
    "stand still",
    "lose nats",
    "cut off",
    "stop",
    "restart the store",
    "kill all",
    "stand still",
    "lose nats",
    "stop",
)
AWAY = (OSError, ClientError, WebSocketException, Disconnected, RpcError, TimeoutError)
PATIENCE_S = 3.0  # of a person with one gateway
MOST_ATTEMPTS = 3
PAYS_EVERY = 3  # messages
LIMITS = "[budgets]\nmonthly = 100_000_000\nsession = 100_000_000\n"
KEY = bytes(range(24))


@dataclass(frozen=True)
class Plan:
    sessions: int
    each: int  # messages
    events: int
    pause_s: float  # of a person between two messages, at most
    bound_s: float

    @property
    def peers(self) -> Sequence[str]:
        return [f"p{number}" for number in range(self.sessions)]

    def said(self, peer: str) -> Sequence[str]:
        return [f"{peer}-{number}" for number in range(self.each)]


def plan() -> Plan:
    return Plan(200, 10, 40, 40.0, 1_200.0) if is_long() else Plan(20, 5, 6, 5.0, 600.0)


def is_hooked(peer: str) -> bool:
    """Whether this person speaks over webhooks, and not over a WebSocket."""
    return int(peer[1:]) % 4 == 0


def pays(said: str) -> bool:
    return int(said.rpartition("-")[2]) % PAYS_EVERY == 1


@dataclass
class Echo:
    """A model that takes its time, and pays for some questions; `asked` counts how often it was asked what."""

    chance: random.Random
    asked: Counter[str] = field(default_factory=Counter)

    def __call__(self, request: Asked) -> Reply:
        messages, gate = request.body["messages"], anyio.Event()
        said = next(one["content"] for one in reversed(messages) if one["role"] == "user")
        self.asked[said] += 1
        asyncio.get_running_loop().call_later(self.chance.uniform(0.3, 1.5), gate.set)
        if pays(said) and messages[-1]["role"] == "user":
            return Reply("", calls=[(f"call-{said}", "pay", "{}")], gate=gate)
        return Reply(text=["to ", said], gates={2: gate})


@dataclass
class Payments:
    """When each message was paid for, and at which gateway."""

    made: list[tuple[float, str, str]] = field(default_factory=list)  # when, where, for what

    def at(self, name: str) -> Callable[[Asked], Reply]:
        def take(asked: Asked) -> Reply:
            call = json.loads(bytes.fromhex(asked.body["input"]))
            self.made.append((time.monotonic(), name, call["call_id"].removeprefix("call-")))
            gate = anyio.Event()
            asyncio.get_running_loop().call_later(0.2, gate.set)
            return Reply(body=b"paid", headers={"content-type": "text/plain"}, gate=gate)

        return take

    def require_once(self) -> None:
        times = Counter(what for _, _, what in self.made)
        assert {what for what, count in times.items() if count > 1} == set()


@dataclass
class Platform:
    """A program that people speak through: it signs what they say, and shows the answers, each once under its
    id."""

    shown: dict[str, str] = field(default_factory=dict)  # texts by id
    news: anyio.Event = field(default_factory=anyio.Event)
    url: str = ""

    @property
    def toml(self) -> str:
        return f"""
[[plugins]]
name = "webhook"
path = "bundled:webhook"
capabilities = ["http:{self.url}"]

[channels.ci]
plugin = "webhook"
dm_policy = "open"
config = {{ scheme = "standard", reply_url = "{self.url}/answers" }}
secrets = {{ secret = "whsec_{base64.b64encode(KEY).decode()}", reply_token = "token-of-the-program" }}
"""

    async def answer(self, call: ApiCall) -> Told:
        self.shown[call.body["id"]] = call.body["text"]
        self.news.set()
        self.news = anyio.Event()
        return Told()

    async def say(self, url: str, peer: str, said: str) -> bool:
        """Whether a gateway took it."""
        body = json.dumps({"sender": peer, "text": said}).encode()
        at = str(int(SystemClock().now().timestamp()))
        proof = hmac.digest(KEY, f"{said}.{at}.".encode() + body, hashlib.sha256)
        headers = {
            "content-type": "application/json",
            "webhook-id": said,
            "webhook-timestamp": at,
            "webhook-signature": f"v1,{base64.b64encode(proof).decode()}",
        }
        with anyio.fail_after(PATIENCE_S):
            answer = await http(f"{url}/webhooks/ci", method="POST", headers=headers, body=body)
        return answer.status == 200

    async def until_answered(self, said: str) -> None:
        while f"to {said}" not in self.shown.values():
            await self.news.wait()


@dataclass
class People:
    """Each speaks in one session, at any gateway, and says a thing again until it is accepted. `ends` are the answers
    to what they said, `calls` how often the model had been asked when an answer was told."""

    nodes: Fleet
    model: Echo
    platform: Platform
    chance: random.Random
    runs: dict[str, str] = field(default_factory=dict)
    heard: dict[str, list[Event]] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    async def speak_all(self, of: Plan, trouble: "Trouble") -> None:
        """Until all that was said has ended, and all trouble is over."""
        async with anyio.create_task_group() as group:
            group.start_soon(trouble.make, of.events)
            for peer in of.peers:
                group.start_soon(self.speak, peer, of)

    async def speak(self, peer: str, of: Plan) -> None:
        async with anyio.create_task_group() as group:
            for said in of.said(peer):
                await anyio.sleep(self.chance.uniform(0, of.pause_s))
                if is_hooked(peer):
                    await self._post(peer, said)
                    group.start_soon(self._wait, said)
                    continue
                while said not in self.runs:
                    await self._send(peer, said)
                group.start_soon(self._follow, said)

    async def _post(self, peer: str, said: str) -> None:
        is_taken = False
        while not is_taken:
            try:
                is_taken = await self.platform.say(self._url(), peer, said)
            except AWAY:
                await anyio.sleep(0.05)

    async def _wait(self, said: str) -> None:
        await self.platform.until_answered(said)
        self.ends[said], self.calls[said] = f"to {said}", self.model.asked[said]

    async def _send(self, peer: str, said: str) -> None:
        try:
            async with self._client() as client:
                sent = await client.send(said, peer=peer, idempotency_key=said)
                self.runs[said], self.heard[said] = sent["run_id"], []
                await self._hear(client, said)
        except* AWAY:
            await anyio.sleep(0.05)

    async def _follow(self, said: str) -> None:
        """From where it has heard up to, wherever it comes in."""
        while said not in self.ends:
            try:
                async with self._client() as client:
                    heard = self.heard[said]
                    after = heard[-1]["seq"] if heard else 0
                    await client.call("chat.resume", run_id=self.runs[said], after_seq=after)
                    await self._hear(client, said)
            except* AWAY:
                await anyio.sleep(0.05)

    async def _hear(self, client: Client, said: str) -> None:
        run_id, heard = self.runs[said], self.heard[said]
        try:
            await client.ended(run_id)
        finally:
            heard += client.events[run_id]
            require_whole(heard)
            if heard and (end := heard[-1])["type"] in {"done", "error"}:
                self.ends[said] = end.get("response", str(end))
                self.calls[said] = self.model.asked[said]

    def _client(self) -> Any:
        return connected(self._url(), wait_s=PATIENCE_S)

    def _url(self) -> str:
        return self.nodes.nodes[self.chance.choice(NAMES)].url


def require_whole(events: Sequence[Event]) -> None:
    """Numbered without a gap; a jump is a notice that takes back what came before."""
    following = 1
    for event in events:
        is_anew = event.get("metadata", {}).get("discard_from_seq") == 1
        told = [(one["seq"], one["type"]) for one in events]
        assert event["seq"] == following or is_anew, told
        following = event["seq"] + 1


@dataclass
class Trouble:
    """`cuts` say when which gateway was cut off from the store, and until when."""

    nodes: Fleet
    store: SurrealServer
    nats: NatsServer
    doors: Mapping[str, Proxy]
    chance: random.Random
    cuts: list[tuple[str, float, float]] = field(default_factory=list)
    made: Counter[str] = field(default_factory=Counter)

    async def make(self, count: int) -> None:
        """One event after the other; each is over before the next one."""
        for kind in itertools.islice(itertools.cycle(EVENTS), count):
            await anyio.sleep(self.chance.uniform(0.3, 1.0))
            await self._make(kind, self.chance.choice(NAMES))
            self.made[kind] += 1

    async def _make(self, kind: str, name: str) -> None:
        match kind:
            case "kill":
                self.nodes.nodes[name].kill()
                await self.nodes.start(name)
            case "kill all":
                for node in self.nodes.nodes.values():
                    node.kill()
                for one in NAMES:
                    await self.nodes.start(one)
            case "stand still":
                self.nodes.stop(name)
                await anyio.sleep(LEASE_S + 1.5)
                self.nodes.go_on(name)
            case "cut off":
                began = time.monotonic()
                self.doors[name].cut()
                await anyio.sleep(LEASE_S + 2.5)
                self.cuts.append((name, began, time.monotonic()))
                self.doors[name].mend()
            case "lose nats":
                await to_thread.run_sync(self.nats.kill)
                await anyio.sleep(1.0)
                await to_thread.run_sync(self.nats.start)
            case "stop":
                self.nodes.nodes[name].tell(signal.SIGTERM)
                assert await self.nodes.nodes[name].exit_code() == 0
                await self.nodes.start(name)
            case "restart the store":
                await to_thread.run_sync(self.store.kill)
                await anyio.sleep(0.5)
                await to_thread.run_sync(self.store.start)

    def require_nothing_done_while_cut_off(self, payments: Payments) -> None:
        """Later than a gateway may believe that its leases are good."""
        for name, cut, mended in self.cuts:
            late = cut + LEASE_S, mended
            assert [
                one for one in payments.made if one[1] == name and late[0] < one[0] < late[1]
            ] == []


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    with running_nats(nats_binary()) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SurrealServer]:
    with running_surreal(surreal_binary(), f"surrealkv://{tmp_path}/surreal?sync=every") as server:
        yield server


@asynccontextmanager
async def reaching(store: SurrealServer) -> AsyncIterator[Mapping[str, Proxy]]:
    """A way of its own for each gateway."""
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(proxy(store.port)) for name in NAMES}


@asynccontextmanager
async def paying(folder: Path, payments: Payments) -> AsyncIterator[Mapping[str, Shop]]:
    """A shop of its own for each gateway, so that one knows which of them has paid."""
    async with AsyncExitStack() as stack:
        shops = {}
        for name in NAMES:
            place = folder / f"shop-{name}"
            await anyio.Path(place).mkdir()
            shops[name] = await stack.enter_async_context(shop(place, {}, payments.at(name)))
        yield shops


async def test_nothing_is_lost_or_doubled_or_out_of_order_whatever_dies(
    tmp_path: Path, store: SurrealServer, nats: NatsServer
) -> None:
    of, chance, platform, payments = plan(), random.Random(7), Platform(), Payments()
    model, database = Echo(chance), SurrealDatabase(store.url, "tests", "chaos")
    began = time.monotonic()
    async with (
        reaching(store) as doors,
        paying(tmp_path, payments) as shops,
        serving(platform.answer) as platform.url,
        fleet(
            tmp_path,
            model,
            database,
            nats,
            *NAMES,
            ways={name: f"ws://127.0.0.1:{door.own_port}" for name, door in doors.items()},
            own={name: one.rest for name, one in shops.items()},
            tools=("pay",),
            rest=LIMITS + platform.toml,
        ) as nodes,
    ):
        people = People(nodes, model, platform, chance)
        trouble = Trouble(nodes, store, nats, doors, chance)
        with anyio.fail_after(of.bound_s):
            await people.speak_all(of, trouble)
        took_s = time.monotonic() - began
        for name in NAMES:
            async with nodes.client(name) as client:
                await require_order(client, of)
                await require_counted(client, of)

    all_said = [said for peer in of.peers for said in of.said(peer)]
    assert people.ends == {said: f"to {said}" for said in all_said}
    answers = Counter(platform.shown.values())
    hooked = [said for peer in of.peers if is_hooked(peer) for said in of.said(peer)]
    assert answers == Counter(f"to {said}" for said in hooked)
    assert people.calls == model.asked, "the model was asked again after the end was told"
    payments.require_once()
    trouble.require_nothing_done_while_cut_off(payments)
    again = sum(count > 1 + pays(said) for said, count in model.asked.items())
    paid, due = len(payments.made), sum(map(pays, all_said))
    report = (
        f"{len(all_said)} messages over {of.sessions} sessions at 3 gateways, {len(hooked)} by webhook; "
        f"{dict(trouble.made)} in {took_s:.0f} s: lost 0, doubled 0, out of order 0, budgets exact; "
        f"{again} turns were begun again; {paid} of {due} payments made, the others cut off, none twice"
    )
    await to_thread.run_sync(keep, "chaos", report)
    assert again, "nothing was hit"


async def require_order(client: Client, of: Plan) -> None:
    """Each message once, in its order, followed by its answer."""
    for peer in of.peers:
        page = await client.call("chat.history", session_key=key_of(peer), limit=200)
        told = [
            (one["role"], one["content"])
            for one in page["messages"]
            if one["role"] in {"user", "assistant"} and one["content"]
        ]
        assert told == [
            line for said in of.said(peer) for line in (("user", said), ("assistant", f"to {said}"))
        ]


def key_of(peer: str) -> str:
    return f"main:ci:default:{peer}" if is_hooked(peer) else f"main:websocket:local:{peer}"


async def require_counted(client: Client, of: Plan) -> None:
    """What was used is the sum of the records, for all together and for each session, and nothing is held."""
    for key in map(key_of, of.peers):
        used = {one["scope"].partition(":")[0]: one["used"] for one in await budgets(client, key)}
        assert used["session"] == await recorded(client, session_key=key)
    assert used["monthly"] == await recorded(client)


async def budgets(client: Client, key: str) -> Sequence[Mapping[str, Any]]:
    """What a gateway held that is gone goes back after a while."""
    with anyio.fail_after(30):
        while True:
            told = await client.call("budget.status", session_key=key)
            if not any(one["reserved"] for one in told["budgets"]):
                rows: Sequence[Mapping[str, Any]] = told["budgets"]
                return rows
            await anyio.sleep(0.5)


async def recorded(client: Client, **where: str) -> int:
    total, page, params = 0, {"more": True}, dict[str, Any](where)
    while page["more"]:
        page = await client.call("budget.records", limit=1_000, **params)
        total += sum(one["input_tokens"] + one["output_tokens"] for one in page["records"])
        params["before"] = page["records"][-1]["seq"] if page["records"] else 1
    return total
