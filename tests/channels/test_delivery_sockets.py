"""What really happened on a socket decides what becomes of an answer without a key."""

import socket

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from gateway.channels.delivery import ChannelSender, PlatformClient
from gateway.channels.health import ChannelHealth
from gateway.domain.channels import ChannelDef, OnUnknown
from gateway.domain.inbox import TWICE, Delivery, NewDelivery, Receipt
from gateway.outbound.client import open_guarded
from tests.crash.delivering import Platform
from tests.fakes.clock import FakeClock
from tests.fakes.store import NOON


async def delivered(base: str, on_unknown: OnUnknown) -> Receipt:
    channel = ChannelDef("chat", "fake", account="bot", on_unknown_send=on_unknown)
    clock = FakeClock()
    health = ChannelHealth(channel, "poll", clock, lambda type_, payload: None)
    new = NewDelivery("d1", "chat", "bot", "p", None, "hello")

    async def sending(
        arrived: int, *, is_safe: bool = False, receipt: str | None = None, waits: bool = False
    ) -> None:
        assert not waits
        assert (arrived, is_safe, receipt) == (0, False, None)

    async with open_guarded() as fetch:
        courier = ChannelSender(
            PlatformClient(channel, Platform(base, is_keyed=False), fetch, clock), health
        )
        return await courier.deliver(Delivery(new, None, None, "pending", 0, NOON), sending)


async def test_what_found_no_connection_is_sent_again_and_cannot_be_there_twice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]

    with anyio.fail_after(60):
        receipt = await delivered(f"http://127.0.0.1:{port}", "hold")

    assert receipt.state == "pending"
    assert TWICE not in (receipt.why or "")


@pytest.mark.parametrize(
    ("on_unknown", "state", "why"),
    [("hold", "unknown", "it may have arrived"), ("resend", "pending", TWICE)],
)
async def test_what_broke_off_after_it_was_sent_may_have_arrived(
    on_unknown: OnUnknown, state: str, why: str
) -> None:
    async def hang_up(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()

    with anyio.fail_after(60):
        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
            anyio.create_task_group() as group,
        ):
            group.start_soon(listener.serve, hang_up)
            port = listener.extra(SocketAttribute.local_port)
            receipt = await delivered(f"http://127.0.0.1:{port}", on_unknown)
            group.cancel_scope.cancel()

    assert receipt.state == state
    assert (receipt.why or "").endswith(why)
