"""From a platform's call to the agent's turn: each message once, over restarts, or not at all."""

import hashlib
import hmac
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from gateway.channels.access import Answered, Ignored
from gateway.channels.intake import Access
from gateway.domain.channels import ChannelDef
from gateway.domain.ids import Secret
from gateway.domain.plugins import PluginSecret
from gateway.sandbox.plugins import Plugins
from tests.fakes.client import HttpAnswer, connected, http, until
from tests.fakes.doorkeeper import FakeDoor
from tests.fakes.gateway import Setup, Site, running
from tests.fakes.model_server import ModelServer, scripted_server
from tests.fakes.plain_adapter import PlainAdapter
from tests.forms import is_long
from tests.scenarios.scripts import echo
from tests.scenarios.test_store_trouble import fill, small_disk

pytestmark = pytest.mark.shared_store

KEY = "a key of the channel"
CHANNEL = ChannelDef("shop", "fake", secrets=(PluginSecret("key", Secret(KEY), frozenset()),))
MESSAGES, COPIES, PEERS = 60 if is_long() else 24, 10, 6


@dataclass
class Place:
    """A gateway with one channel, whose adapter reads what it is sent as it stands."""

    site: Site
    adapter: PlainAdapter
    statuses: Counter[int] = field(default_factory=Counter)

    async def call(self, body: bytes, key: str = KEY) -> HttpAnswer:
        signature = hmac.digest(key.encode(), body, hashlib.sha256).hex()
        url = f"{self.site.url}/webhooks/shop"
        answer = await http(url, method="POST", headers={"x-signature": signature}, body=body)
        self.statuses[answer.status] += 1
        return answer

    async def deliver(self, body: bytes) -> None:
        """As a platform does: again, until it is taken."""
        while (await self.call(body)).status == 503:  # noqa: ASYNC110  # it is sent again
            await anyio.sleep(0.05)

    async def call_at_once(self, bodies: Iterable[bytes]) -> None:
        async with anyio.create_task_group() as group:
            for body in bodies:
                group.start_soon(self.deliver, body)

    async def until_idle(self) -> None:
        """Until every turn has ended, so that none has to be taken up again."""
        await until(lambda: not self.site.rooms.front.intake.pending)

    async def pages(self) -> list[list[str]]:
        """What was said in each conversation, by people."""
        async with connected(self.site.url) as client:
            keys = [f"main:shop:default:p{number}" for number in range(PEERS)]
            pages = [await client.call("chat.history", session_key=key, limit=500) for key in keys]
        return [
            [one["content"] for one in page["messages"] if one["role"] == "user"] for page in pages
        ]

    async def sessions(self) -> int:
        return await self.site.rooms.shared.stores.sessions.count_sessions()


@asynccontextmanager
async def opened(model: ModelServer, folder: Path, door: Access) -> AsyncIterator[Place]:
    async with running(Setup(model.url), folder) as site:
        place = Place(site, PlainAdapter())
        site.rooms.channels.intake.access = door
        await site.rooms.channels.load([CHANNEL], Plugins(adapters=(place.adapter,)))
        yield place


def said(*numbers: int, state: str | None = None) -> bytes:
    messages = [
        {
            "peer": f"p{number % PEERS}",
            "sender": {"id": f"p{number % PEERS}"},
            "text": f"question {number}",
            "platform_id": f"id:{number}",
            "account": "forged",
        }
        for number in numbers
    ]
    return json.dumps({"messages": messages, "state": state}).encode()


def asked(model: ModelServer) -> Counter[str]:
    return Counter(request.last_text for request in model.requests)


@pytest.mark.requirement("S-004-Flow-03")
async def test_copies_of_a_call_are_one_turn_also_after_a_restart(tmp_path: Path) -> None:
    async with scripted_server(echo) as model:
        async with opened(model, tmp_path, FakeDoor()) as place:
            await place.call_at_once(said(number // COPIES) for number in range(MESSAGES * COPIES))
            await place.call(said(state="so far"))
            await place.until_idle()
        async with opened(model, tmp_path, FakeDoor()) as again:
            for number in range(MESSAGES):
                await again.call(said(number))
            await again.call(said(MESSAGES))
            await again.until_idle()

            pages = await again.pages()

    assert place.statuses[200] == MESSAGES * COPIES + 1
    assert set(place.statuses) <= {200, 503}
    assert again.statuses == {200: MESSAGES + 1}
    assert asked(model) == {f"question {number}": 1 for number in range(MESSAGES + 1)}
    assert Counter(text for page in pages for text in page) == asked(model)
    assert {event["state"] for event in again.adapter.events} == {"so far"}


async def test_the_messages_of_a_call_are_all_taken_or_come_again(tmp_path: Path) -> None:
    numbers = range(0, MESSAGES, PEERS)  # all of one peer
    async with scripted_server(echo) as model:
        async with opened(model, tmp_path, FakeDoor()) as place:
            place.site.rooms.front.intake.close()
            refused = await place.call(said(*numbers, state="after"))
        async with opened(model, tmp_path, FakeDoor()) as again:
            taken = await again.call(said(*numbers, state="after"))
            await again.until_idle()

    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert taken.status == 200
    assert [request.last_text for request in model.requests] == [f"question {n}" for n in numbers]


@pytest.mark.skipif(sys.platform != "linux", reason="needs tmpfs")
@pytest.mark.embedded_store
async def test_a_call_that_a_full_disk_cannot_take_is_refused_and_taken_once_later(
    tmp_path: Path,
) -> None:
    async with (
        small_disk(tmp_path / "disk", "4m") as disk,
        scripted_server(echo) as model,
        opened(model, disk, FakeDoor()) as place,
    ):
        ballast = await fill(disk)
        refused = [await place.call(said(1)) for _ in range(3)]
        await ballast.unlink()
        with anyio.fail_after(60):
            while (await place.call(said(1))).status != 200:  # noqa: ASYNC110  # it is sent again
                await anyio.sleep(0.01)
        await place.until_idle()

    assert {answer.status for answer in refused} == {503}
    assert all(int(answer.headers["Retry-After"]) > 0 for answer in refused)
    assert asked(model) == {"question 1": 1}


async def test_whoever_cannot_prove_who_he_is_reaches_neither_adapter_nor_agent(
    tmp_path: Path,
) -> None:
    async with scripted_server(echo) as model, opened(model, tmp_path, FakeDoor()) as place:
        await place.call(said(1), key="another key")

        assert place.statuses == {401: 1}
        assert (place.adapter.events, model.requests, await place.sessions()) == ([], [], 0)


async def test_where_nobody_may_talk_a_platform_is_answered_and_nobody_else(tmp_path: Path) -> None:
    door = FakeDoor({f"p{number}": Ignored("not_listed") for number in range(PEERS)})
    async with scripted_server(echo) as model, opened(model, tmp_path, door) as place:
        for number in range(MESSAGES):
            await place.call(said(number))

        assert place.statuses == {200: MESSAGES}
        assert (model.requests, await place.sessions()) == ([], 0)


async def test_who_was_told_to_pair_is_answered_from_the_next_message_on(tmp_path: Path) -> None:
    door = FakeDoor({"p1": Answered("pair first")})
    async with scripted_server(echo) as model:
        async with opened(model, tmp_path, door) as place:
            await place.call(said(1))
        async with opened(model, tmp_path, FakeDoor()) as again:
            await again.call(said(1))
            await again.call(said(1 + PEERS))
            await again.until_idle()

            pages = await again.pages()
            stores, now = again.site.rooms.shared.stores, again.site.rooms.shared.clock.now()
            told = await stores.outbox.due(CHANNEL.name, now=now, limit=9)
            told = [*await stores.outbox.dead_letters(None, before=None, limit=9), *told]

    assert asked(model) == {f"question {1 + PEERS}": 1}
    assert [page for page in pages if page] == [[f"question {1 + PEERS}"]]
    assert [one.new.text for one in told] == ["pair first", f"answer to question {1 + PEERS}"]
