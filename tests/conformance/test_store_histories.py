"""Whatever was done to a store, it shows the same when it is opened again."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.domain.errors import GatewayError
from gateway.domain.ids import NodeId, RunId
from gateway.domain.inbox import DeliveryState, NewDelivery
from gateway.domain.ports import Stores
from gateway.domain.sessions import SessionQuery
from gateway.store.opening import open_store
from tests.fakes.clock import FakeClock
from tests.fakes.store import NOON, an_ending, an_entry, an_exchange, session_key
from tests.forms import examples

Step = Callable[[Stores], Awaitable[object]]

runs = st.sampled_from(["r0", "r1", "r2", "r3", "r4"])
peers = st.sampled_from(["one", "two"])
nodes = st.none() | st.builds("{}-{}".format, runs, st.integers(1, 3))
seconds = st.integers(0, 200)


@st.composite
def accepts(draw: st.DrawFn) -> Step:
    platform_id = draw(st.none() | st.sampled_from(["p1", "p2"]))
    entry = an_entry(
        draw(runs),
        session_key(draw(peers)),
        platform_id=platform_id,
        digest=draw(st.sampled_from("de")),
        content=draw(st.text(max_size=5)),
        at=NOON + timedelta(seconds=draw(seconds)),
    )
    begin = draw(st.booleans())
    return lambda stores: stores.inbox.accept(entry, begin=begin)


@st.composite
def finishes(draw: st.DrawFn) -> Step:
    name = draw(runs)
    texts = draw(st.lists(st.text(max_size=5), min_size=1, max_size=3))
    deliveries = [NewDelivery(f"d-{name}", "c", "a", "p", None, "text")]
    ending = an_ending(
        name,
        session_key(draw(peers)),
        grown_from=draw(nodes),
        nodes=draw(st.sampled_from([(), an_exchange(name, *texts)])),
        take_head=draw(st.booleans()),
        state=draw(st.sampled_from(["done", "dead"])),
        deliveries=deliveries if draw(st.booleans()) else (),
        after_s=draw(seconds),
        merged=draw(st.lists(runs.filter(lambda other: other != name), max_size=2, unique=True)),
    )
    return lambda stores: stores.inbox.finish(ending)


@st.composite
def moves(draw: st.DrawFn) -> Step:
    key, label = session_key(draw(peers)), draw(st.none() | st.sampled_from(["x", "r0-1"]))
    to, expected = NodeId(draw(nodes) or "none"), draw(nodes)
    at = None if expected is None else NodeId(expected)
    return lambda stores: stores.sessions.move_head(key, to, expected=at, label=label)


@st.composite
def others(draw: st.DrawFn) -> Step:
    name = draw(runs)
    run, delivery = RunId(f"run-{name}"), f"d-{name}"
    part, data = draw(st.integers(0, 2)), draw(st.binary(max_size=3))
    at = NOON + timedelta(seconds=draw(seconds))
    states: list[DeliveryState] = ["pending", "sent", "failed", "unknown"]
    state = draw(st.sampled_from(states))
    steps: list[Step] = [
        lambda stores: stores.inbox.begin(run),
        lambda stores: stores.journal.append(run, part, lambda: data),
        lambda stores: stores.outbox.sending(delivery, 0),
        lambda stores: stores.outbox.sending(delivery, 2),
        lambda stores: stores.outbox.strand([("d", "d")], at=at),
        lambda stores: stores.outbox.resubmit(delivery, now=at),
        lambda stores: stores.outbox.drop(delivery),
        lambda stores: stores.outbox.settle(delivery, state, at=at, why="w", due_at=at),
        lambda stores: stores.care.sweep(before=at, limit=2),
    ]
    return draw(st.sampled_from(steps))


async def told(stores: Stores, step: Step) -> object:
    try:
        return await step(stores)
    except GatewayError as error:
        return type(error), error.code


async def seen(stores: Stores) -> list[object]:
    """Everything that any port shows."""
    page = await stores.sessions.list_sessions(SessionQuery(limit=9))
    views: list[object] = [
        page,
        await stores.sessions.count_sessions(),
        list(await stores.inbox.unfinished()),
    ]
    for record in page.sessions:
        views.append(await stores.sessions.path(record.key, limit=1))
        views.append(await stores.sessions.path(record.key, limit=99))
        for node in await stores.sessions.tree(record.key, limit=99):
            views.append(replace(node))
            views.append(await stores.sessions.path(record.key, before=node.id, limit=2))
            views.append(await stores.sessions.node(record.key, node.id))
        views.append(await stores.sessions.node(record.key, "x"))
        views.append(await stores.sessions.find_session(record.key))
    for number in range(5):
        run = RunId(f"run-r{number}")
        views += [await stores.inbox.find_run(run), list(await stores.journal.read(run))]
    views.append(list(await stores.outbox.due("c", now=NOON + timedelta(seconds=100), limit=9)))
    views.append(list(await stores.outbox.interrupted()))
    views.append(list(await stores.outbox.dead_letters(None, before=None, limit=9)))
    views.append(dict(await stores.outbox.tally()))
    return views


async def compare(steps: list[Step], data_dir: Path) -> None:
    clock = FakeClock()
    async with open_store("embedded", data_dir, clock=clock) as stores:
        for step in steps:
            await told(stores, step)
        remembered = await seen(stores)
    async with open_store("embedded", data_dir, clock=clock) as again:
        assert await seen(again) == remembered


async def bounded(steps: list[Step], data_dir: Path) -> None:
    with anyio.fail_after(60):
        await compare(steps, data_dir)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(accepts() | finishes() | accepts() | finishes() | moves() | others(), max_size=30))
def test_a_store_that_is_opened_again_shows_what_it_showed(steps: list[Step]) -> None:
    with TemporaryDirectory() as data_dir:
        anyio.run(bounded, steps, Path(data_dir))
