"""Generations: built without opening anything; a turn ends under the one that it began with."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import anyio
import pytest

from gateway.app.generation import build
from gateway.cli.configuration import known_names
from gateway.config.load import load
from tests.fakes.client import connected, http
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, Reply, scripted_server


def test_a_generation_is_built_outside_any_loop_and_cannot_be_changed(tmp_path: Path) -> None:
    (tmp_path / "soul.md").write_text("I am the first.", encoding="utf-8")
    path = tmp_path / "config.toml"
    path.write_text(Setup("http://127.0.0.1:9/v1").toml(tmp_path), encoding="utf-8")
    made = build(load(path, environment={}, home=tmp_path, cwd=tmp_path, known=known_names()))

    assert list(made.agents) == ["main"]
    assert not (tmp_path / "data").exists()
    with pytest.raises(FrozenInstanceError):
        made.agents = {}  # type: ignore[misc]  # that is the point


async def test_a_turn_ends_under_its_generation_and_the_next_begins_under_the_new_one(
    tmp_path: Path,
) -> None:
    """Model, tools and soul: the first turn asks for a tool before the reload, and goes on after it."""
    held = anyio.Event()

    def script(asked: Asked) -> Reply:
        if asked.number == 1:
            return Reply(calls=[("c1", "echo", '{"text":"hi"}')], gate=held)
        return Reply(f"Number {asked.number}.")

    async with (
        scripted_server(script) as model,
        running(Setup(model.url, tools=("echo",)), tmp_path) as site,
        connected(site.url) as client,
    ):
        first = await client.send("one")
        with anyio.fail_after(60):
            await model.wait_for(1)
        await anyio.Path(tmp_path / "soul.md").write_text("You are somebody else.")
        changed = Setup(model.url, agent="max_tokens = 99").toml(tmp_path)
        await anyio.Path(tmp_path / "config.toml").write_text(changed)
        told = await client.call("config.reload")
        living = "exogate_generations 2\n" in (await http(f"{site.url}/metrics")).body.decode()
        held.set()
        await client.ended(first["run_id"])
        await client.ask("two")
        with anyio.fail_after(60):
            while (
                "exogate_generations 1\n" not in (await http(f"{site.url}/metrics")).body.decode()
            ):
                await client.call("ping")

    bodies = [one.body for one in model.requests]
    souls = [body["messages"][0]["content"].partition("\n")[0] for body in bodies]
    assert souls == ["You answer tests.", "You answer tests.", "You are somebody else."]
    assert [body["max_tokens"] for body in bodies] == [4096, 4096, 99]
    assert ["tools" in body for body in bodies] == [True, True, False]
    assert (told["generation"], told["errors"], living) == (2, [], True)
    assert {"agent.max_tokens", "agent.soul_path", "agent.tools"} <= set(told["changed"])
