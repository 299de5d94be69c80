"""The configured channels: opened with all they need, or refused with a reason."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gateway.app.shared import scrubbing
from gateway.channels.adapters import CallRecipe, Poll, Verify
from gateway.channels.intake import Intake
from gateway.channels.room import ChannelRoom
from gateway.channels.webhooks import WebhookEndpoint
from gateway.domain.channels import ChannelDef, ChannelMemo
from gateway.domain.ids import Secret
from gateway.domain.plugins import PluginInfo, PluginSecret
from gateway.sandbox.plugins import Plugins
from tests.fakes.adapter import HOOK, KEY, VERIFY, FakeAdapter, Taken
from tests.fakes.clock import FakeClock
from tests.fakes.doorkeeper import FakeCommands, FakeDoor
from tests.fakes.store import open_memory

SECRETS = (PluginSecret("key", Secret(KEY), frozenset()),)
CHANNEL = ChannelDef("family", "fake", secrets=SECRETS)
INFOS = (PluginInfo("broken", "refused", why="it is no WASM"), PluginInfo("calc", "loaded"))
POLL = Poll("poll", CallRecipe("{api_base}/updates"))


def loaded(*adapters: FakeAdapter) -> Plugins:
    return Plugins(adapters=adapters, infos=INFOS)


@asynccontextmanager
async def a_room(told: list[tuple[str, Mapping[str, object]]]) -> AsyncIterator[ChannelRoom]:
    clock = FakeClock()
    async with open_memory() as stores:
        await stores.channels.write_memos(ChannelMemo("family", "default", "adapter", "cursor"))
        ways = (FakeDoor(), FakeCommands().run)
        intake = Intake(Taken().accept, stores.channels, clock, lambda: None, *ways)

        def tell(type_: str, payload: Mapping[str, object]) -> None:
            told.append((type_, payload))

        webhooks = WebhookEndpoint(stores.audit, clock)
        yield ChannelRoom(intake, stores.channels, clock, tell, webhooks, scrubbing)


async def test_a_channel_that_has_all_it_needs_is_open_with_what_its_adapter_kept() -> None:
    told: list[tuple[str, Mapping[str, object]]] = []

    async with a_room(told) as room:
        await room.load([CHANNEL], loaded(FakeAdapter()))

        one = await room.wait_open("family")
        assert one is not None
        assert one.state == "cursor"
        assert room.webhooks.largest_body("family") == HOOK.max_body_bytes
        assert room.statuses()[0].state == "starting"
    assert told == []


NEEDY = replace(FakeAdapter().description, secrets=("key", "token"), needs=("account_id",))


@pytest.mark.parametrize(
    ("channel", "adapter", "why"),
    [
        (replace(CHANNEL, plugin="broken"), FakeAdapter(), "it is no WASM"),
        (replace(CHANNEL, plugin="calc"), FakeAdapter(), "no channel adapter"),
        (replace(CHANNEL, transport="poll"), FakeAdapter(), "offers no poll; set webhook"),
        (replace(CHANNEL, secrets=()), FakeAdapter(), "secret 'key' is missing"),
        (CHANNEL, FakeAdapter(description=NEEDY), "secret 'token' is missing"),
        (
            CHANNEL,
            FakeAdapter(description=replace(NEEDY, secrets=())),
            "config.account_id is missing",
        ),
    ],
)
async def test_a_channel_that_cannot_work_is_refused_and_keeps_no_other_from_working(
    channel: ChannelDef, adapter: FakeAdapter, why: str
) -> None:
    told: list[tuple[str, Mapping[str, object]]] = []
    other = replace(CHANNEL, name="other", plugin="good")
    good = FakeAdapter(plugin=replace(FakeAdapter().plugin, name="good"))

    async with a_room(told) as room:
        await room.load([channel, other], loaded(adapter, good))

        refused, open_ = room.statuses()
        assert refused.state == "refused"
        assert why in (refused.why or "")
        assert room.webhooks.largest_body("family") is None
        assert open_.state == "starting"
    assert told[0][0] == "channel.refused"


async def test_two_channels_may_speak_through_one_adapter() -> None:
    async with a_room([]) as room:
        await room.load([CHANNEL, replace(CHANNEL, name="work")], loaded(FakeAdapter()))

        assert set(room.webhooks.addresses) == {"family", "work"}


async def test_a_channel_that_asks_its_platform_has_no_address() -> None:
    both = replace(FakeAdapter().description, transports=(POLL, HOOK), verify=VERIFY)

    async with a_room([]) as room:
        await room.load([CHANNEL], loaded(FakeAdapter(description=both)))

        assert room.webhooks.largest_body("family") is None
        one = await room.wait_open("family")
        assert one is not None
        assert one.transport == POLL
        assert [one.transport for one in room.statuses()] == ["poll"]


async def test_two_channels_that_may_take_each_others_calls_are_both_refused() -> None:
    hmac = Verify("hmac_sha256", "x-signature", secret="key", prefix="sha256=")
    signed = FakeAdapter(description=replace(FakeAdapter().description, verify=hmac))
    signed.plugin = replace(signed.plugin, name="signed")
    own = (PluginSecret("key", Secret("another-secret"), frozenset()),)

    async with a_room([]) as room:
        await room.load(
            [
                CHANNEL,
                replace(CHANNEL, name="work", plugin="signed"),
                replace(CHANNEL, name="own", secrets=own),
            ],
            loaded(FakeAdapter(), signed),
        )
        room.refuse_shared_proofs()

        assert set(room.webhooks.addresses) == {"own"}
        assert [one.state for one in room.statuses()] == ["refused", "refused", "starting"]
        assert "a secret or key with work" in (room.statuses()[0].why or "")
        assert KEY not in str(room.statuses())


async def test_a_channel_that_comes_late_is_refused_if_it_may_take_the_calls_of_one_at_work() -> (
    None
):
    late = FakeAdapter(plugin=replace(FakeAdapter().plugin, name="late"))
    channels = [CHANNEL, replace(CHANNEL, name="work", plugin="late")]

    async with a_room([]) as room:
        infos = (*INFOS, PluginInfo("late", "compiling"))
        await room.load(channels, Plugins(adapters=(FakeAdapter(),), infos=infos))
        before = [(one.state, one.why) for one in room.statuses()]
        await room.open_late(Plugins(adapters=(late,), infos=INFOS))

        assert before == [("starting", None), ("starting", "its adapter is being compiled")]
        assert await room.wait_open("work") is None
        assert set(room.webhooks.addresses) == {"family"}
        assert [one.state for one in room.statuses()] == ["starting", "refused"]
        assert room.webhooks.largest_body("work") is None
