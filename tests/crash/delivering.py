"""Brings answers to a platform until all have ended, unless it is killed before."""

import sys
from pathlib import Path

import anyio

from gateway.channels.adapters import Outbound, TextLimits
from gateway.channels.delivery import ChannelSender, PlatformClient
from gateway.channels.health import ChannelHealth
from gateway.config.sections import parse_capability
from gateway.domain.channels import ChannelDef
from gateway.domain.inbox import NewDelivery
from gateway.domain.ports import Stores
from gateway.host.clock import SystemClock
from gateway.outbound.client import open_guarded
from gateway.sessions.outbox import Deliveries
from gateway.store.opening import open_store
from tests.fakes.store import an_ending, an_entry, session_key
from tests.fakes.writer import Reply, WritingAdapter

ANSWERS, PARTS, PEERS = 24, 3, 4
OPEN = frozenset({"pending", "sending"})


def text_of(number: int) -> str:
    """So that each part of each answer can be told from any other."""
    return " ".join(f"answer-{number:03}-part-{part}" for part in range(PARTS))


class Platform(WritingAdapter):
    def __init__(self, base: str, *, is_keyed: bool) -> None:
        outbound = Outbound(message_id="id", idempotency=is_keyed)
        super().__init__(
            outbound=outbound,
            more={"limits": TextLimits(text=20)},
            grant=parse_capability(f"http:{base}"),
        )
        self.formats = self._format
        self._base, self._is_keyed = base, is_keyed

    def _format(self, reply: Reply) -> object:
        request = {"url": f"{self._base}/send/{reply['peer']}", "body": reply["text"]}
        key = {"idempotency": {"key": reply["key"], "header": "x-key"}} if self._is_keyed else {}
        return {"requests": [{**request, **key}]}


async def fill(stores: Stores) -> None:
    for number in range(ANSWERS):
        peer = f"peer-{number % PEERS}"
        key = session_key(peer)
        new = NewDelivery(f"d-{number}", "chat", "bot", peer, None, text_of(number))
        await stores.inbox.accept(an_entry(str(number), key), begin=True)
        await stores.inbox.finish(an_ending(str(number), key, nodes=(), deliveries=[new]))


async def main(*arguments: str) -> None:
    data_dir, kind, on_unknown, base = arguments
    clock = SystemClock()
    adapter = Platform(base, is_keyed=kind == "keyed")
    choice = "hold" if on_unknown == "hold" else "resend"
    channel = ChannelDef("chat", "fake", account="bot", on_unknown_send=choice)  # type: ignore[arg-type]  # one of the two
    async with (
        open_store("embedded", Path(data_dir), clock=clock) as stores,
        open_guarded() as fetch,
    ):
        if not await stores.sessions.count_sessions():
            await fill(stores)
        health = ChannelHealth(channel, "poll", clock, lambda type_, payload: None)
        couriers = {"chat": ChannelSender(PlatformClient(channel, adapter, fetch, clock), health)}
        outbox, known = stores.outbox, frozenset({("chat", "bot")})
        deliveries = Deliveries(outbox, couriers, known, clock, lambda _: None, lambda: 0.01)
        async with anyio.create_task_group() as group:
            group.start_soon(deliveries.run)
            while any(state in OPEN for _, state in await stores.outbox.tally()):
                await clock.sleep(0.02)
            group.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
