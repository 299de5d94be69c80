"""A soul is edited while the gateway runs."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from tests.fakes.client import Client
from tests.fakes.model_server import Asked
from tests.forms import each
from tests.scenarios.scripts import echo, talking


async def until(client: Client, so: Callable[[dict[str, object]], object]) -> dict[str, object]:
    """What `status` and `agent.list` say, once it is so."""
    with anyio.fail_after(60):
        while True:
            agents = (await client.call("agent.list"))["agents"]
            told = {**await client.call("status"), "soul": agents[0]["soul"]}
            if so(told):
                return told
            await anyio.sleep(0.2)  # the gateway looks at the file every two seconds


def system_of(asked: Asked) -> str:
    return str(asked.body["messages"][0]["content"])


@pytest.mark.requirement("S-003-Soul-01", "S-003-Soul-03", "S-003-Soul-04")
async def test_the_next_turn_uses_the_new_text(tmp_path: Path) -> None:
    soul = anyio.Path(tmp_path / "soul.md")
    async with talking(echo, tmp_path) as (model, _site, client):
        await client.ask("before")
        loaded = (await until(client, lambda told: told["soul"]))["soul"]
        await soul.write_text("You are somebody else now.")
        told = await until(client, lambda told: told["soul"] != loaded)
        await client.ask("after")

    assert [system_of(asked) for asked in model.requests] == [
        "You answer tests.",
        "You are somebody else now.",
    ]
    assert told["problems"] == []


async def test_a_bad_new_version_changes_nothing_and_is_told(tmp_path: Path) -> None:
    soul = anyio.Path(tmp_path / "soul.md")
    async with talking(echo, tmp_path) as (model, _site, client):
        await client.ask("before")
        for number, bad in enumerate(
            each((b"", b"  \n", b"\xff\xfe\x00", b"a\x00b", b"x" * 300_000))
        ):
            before = system_of(model.requests[-1])
            await soul.write_bytes(bad)
            refused = await client.call("config.reload")
            told = await client.call("status")
            await client.ask("meanwhile")
            await soul.write_text(f"Healed of {number}.")
            await client.call("config.reload")
            healed = await client.call("status")
            await client.ask("after")

            assert "soul.md" in str(refused["errors"])
            assert "soul.md" in str(told["problems"])
            assert healed["problems"] == []
            texts = [system_of(asked) for asked in model.requests[-2:]]
            assert texts == [before, f"Healed of {number}."]


async def test_a_soul_that_is_deleted_stays_in_use(tmp_path: Path) -> None:
    async with talking(echo, tmp_path) as (model, _site, client):
        await client.ask("before")
        await anyio.Path(tmp_path / "soul.md").unlink()
        await until(client, lambda told: told["problems"])
        await client.ask("after")

    assert system_of(model.requests[1]) == "You answer tests."
