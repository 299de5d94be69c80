"""Long polling: what is not committed is asked for again, and nothing is asked before."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from gateway.channels.connections import keep_connected
from gateway.domain.errors import StoreUnavailable
from gateway.domain.ports import Fetched, FetchRequest
from tests.channels.described import telegram
from tests.channels.living import World, answer
from tests.fakes.fetch import FakeFetch

BASE = "https://api.example/bot${secret:token}"


class Updates:
    """A bot's updates as Telegram hands them out: again and again, until the offset moves."""

    def __init__(self, *ids: int) -> None:
        self.waiting = list(ids)
        self.asked: list[str] = []
        self.refusal: Fetched | None = None
        self.fetch = FakeFetch(self._answer)

    def _answer(self, ask: FetchRequest) -> Fetched:
        self.asked.append(ask.url.removeprefix(BASE))
        if self.refusal is not None:
            return self.refusal
        offset = ask.url.partition("offset=")[2].partition("&")[0] or "0"
        self.waiting = [one for one in self.waiting if one >= int(offset)]
        messages = [{"id": str(one)} for one in self.waiting]
        if not messages:
            return answer({"ok": True})
        return answer({"ok": True, "messages": messages, "next": str(self.waiting[-1] + 1)})


def asking(offset: str) -> str:
    return f"/getUpdates?offset={offset}&timeout=50"


@asynccontextmanager
async def polling(world: World) -> AsyncIterator[None]:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(keep_connected, world.live)
            await anyio.wait_all_tasks_blocked()
            yield
            group.cancel_scope.cancel()


async def test_the_next_question_names_what_was_committed() -> None:
    updates = Updates(7, 8)
    world = World(telegram(), fetch=updates.fetch)
    async with polling(world):
        await world.pass_(0.2)
        updates.waiting.append(9)
        await world.pass_(1)

    assert updates.asked == ["/deleteWebhook", asking(""), asking("9"), asking("9")]
    assert world.shelf.accepted == ["7", "8", "9"]
    assert world.shelf.memos == {"adapter": "10"}
    assert world.adapter.events[0]["status"] == 200
    assert world.health.status.receiving.count == 3


async def test_after_a_restart_it_goes_on_where_it_was_committed() -> None:
    updates = Updates(9)
    world = World(telegram(), fetch=updates.fetch)
    world.shelf.memos["adapter"] = "9"
    async with polling(world):
        pass

    assert updates.asked == ["/deleteWebhook", asking("9")]


async def test_nothing_is_asked_before_the_commit() -> None:
    updates = Updates(7)
    world = World(telegram(), fetch=updates.fetch)
    world.shelf.gate = anyio.Event()
    async with polling(world):
        await world.pass_(3_600)
        before = list(updates.asked)
        world.shelf.gate.set()

    assert before == ["/deleteWebhook", asking("")]


async def test_what_could_not_be_committed_is_asked_for_again() -> None:
    updates = Updates(7, 8)
    world = World(telegram(), fetch=updates.fetch)
    async with polling(world):
        world.shelf.refusal = StoreUnavailable("the disk is full")
        updates.waiting.append(9)
        await world.pass_(0.2)
        failing = world.health.status
        world.shelf.refusal = None
        await world.pass_(1)

    assert (failing.state, failing.why) == ("failing", "the disk is full")
    assert [url for url in updates.asked if "getUpdates" in url] == [
        asking(""),
        asking("9"),
        asking("9"),
    ]
    assert world.shelf.accepted == ["7", "8", "9"]
    assert world.health.status.state == "connected"


async def test_another_poller_is_told_in_the_platforms_words() -> None:
    updates = Updates()
    updates.refusal = answer({"ok": False, "description": "terminated by other getUpdates"}, 409)
    world = World(telegram(), fetch=updates.fetch)
    async with polling(world):
        status = world.health.status

    assert status.state == "failing"
    assert status.why == "the platform answered 409: terminated by other getUpdates"
    assert world.shelf.accepted == []


async def test_the_platform_says_how_long_to_wait() -> None:
    updates = Updates()
    updates.refusal = answer({"ok": False, "parameters": {"retry_after": 30}}, 429)
    world = World(telegram(), fetch=updates.fetch)
    async with polling(world):
        await world.pass_(29)
        early = len(updates.asked)
        await world.pass_(2)

    assert early == 1
    assert len(updates.asked) == 2


async def test_a_platform_that_answers_at_once_is_not_asked_in_a_frenzy() -> None:
    updates = Updates()
    world = World(telegram(), fetch=updates.fetch)
    async with polling(world):
        pass

    assert updates.asked == ["/deleteWebhook", asking("")]
    assert world.clock.slept == [0.2]


async def test_a_poll_has_the_time_that_its_recipe_gives() -> None:
    updates = Updates()
    world = World(telegram(), fetch=updates.fetch)
    async with anyio.create_task_group() as group:
        group.start_soon(keep_connected, world.live)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()

    _, (ask, grant) = updates.fetch.asked
    assert ask.timeout_s == 60.0
    assert grant == world.live.grant
