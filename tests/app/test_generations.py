"""Generations: built without opening anything, and at work side by side over what they share."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from gateway.app.assembly import Gateway, start
from gateway.app.generation import Generation, build
from gateway.app.shared import opened
from gateway.cli.configuration import known
from gateway.config.load import load
from gateway.config.values import GatewayConfig
from gateway.domain.agents import Address
from gateway.domain.inbox import Inbound
from gateway.domain.version import VERSION
from gateway.sessions.runs import whole
from tests.fakes.gateway import Setup
from tests.fakes.model_server import Reply, scripted_server

PEER = Address("websocket", "alice", "main")


def read(folder: Path, soul: str, model_url: str = "http://127.0.0.1:9/v1") -> GatewayConfig:
    (folder / "soul.md").write_text(soul, encoding="utf-8")
    text = Setup(model_url).toml(folder).replace(f"{folder}/data", f"{folder.parent}/data")
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return load(path, environment={}, home=folder, cwd=folder, known=known())


async def prepared(folder: Path, model_url: str) -> Generation:
    await anyio.Path(folder).mkdir()
    soul = f"I am {folder.name}."
    config = await to_thread.run_sync(read, folder, soul, model_url)
    return await to_thread.run_sync(build, config)


async def ask(gateway: Gateway, text: str) -> Sequence[Any]:
    front = gateway.front
    front.intake.open()
    accepted = await front.intake.accept(Inbound(PEER, text))
    return await whole(await front.run(accepted.run_id))


def test_a_generation_is_built_outside_any_loop_and_cannot_be_changed(tmp_path: Path) -> None:
    made = build(read(tmp_path, "I am the first."))

    assert list(made.agents) == ["main"]
    assert not (tmp_path.parent / "data").exists()
    with pytest.raises(FrozenInstanceError):
        made.agents = {}  # type: ignore[misc]  # that is the point


async def test_two_generations_work_side_by_side_over_one_store_its_lanes_counters_and_sockets(
    tmp_path: Path,
) -> None:
    replies = [Reply("One."), Reply("Two."), Reply("Three.")]
    with anyio.fail_after(20):
        async with scripted_server(replies) as model, AsyncExitStack() as lasting:
            made = [await prepared(tmp_path / name, model.url) for name in ("first", "second")]
            shared = await lasting.enter_async_context(opened(made[0].config))
            second = await lasting.enter_async_context(start(made[1], shared, version=VERSION))
            async with start(made[0], shared, version=VERSION) as first:
                said = [await ask(gateway, "hi") for gateway in (first, second)]
            said.append(await ask(second, "again"))  # the first has ended
            key = made[0].router.resolve(PEER).session_key
            path = await second.front.sessions.path(key, before=None, limit=9)
            meters = {id(one.opened.meter.queue) for one in (first, second)}
            spent = await shared.stores.ledger.models(10)
            shared.group.cancel_scope.cancel()

    assert [events[-1]["response"] for events in said] == ["One.", "Two.", "Three."]
    souls = [one.body["messages"][0]["content"] for one in model.requests]
    assert ["I am first." in soul for soul in souls] == [True, False, False]
    assert [node.message.text for node in path.nodes] == [
        "hi",
        "One.",
        "hi",
        "Two.",
        "again",
        "Three.",
    ]
    assert (spent[0].calls, len(meters), model.connections) == (3, 1, 1)
