"""A message that kills the process each time: set aside after three attempts, its session goes on."""

import signal
from pathlib import Path

import anyio
import pytest

from tests.fakes.client import WAIT_S, connected
from tests.fakes.gateway import START_S, Command, Setup, command, spawned
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.scenarios.scripts import shown

pytestmark = pytest.mark.shared_store


class Poison:
    """Kills the gateway that asks about it, once `armed`."""

    def __init__(self) -> None:
        self.victim: Command | None = None
        self.armed = False

    def __call__(self, asked: Asked) -> Reply:
        if asked.last_text != "poison":
            return Reply(f"answer to {asked.last_text}")
        if self.armed:
            assert self.victim is not None
            self.victim.kill()
        return Reply("never", gate=anyio.Event())


@pytest.mark.requirement("S-004-Flow-03")
async def test_after_three_deaths_it_is_set_aside_and_told_and_its_neighbours_are_answered(
    tmp_path: Path,
) -> None:
    poison = Poison()
    async with scripted_server(poison) as model:
        config = await Setup(model.url).written(tmp_path)
        async with command(config) as site, connected(site.url) as client:
            bad = await client.send("poison", peer="a", idempotency_key="bad")
            after = await client.send("after it", peer="a")
            with anyio.fail_after(WAIT_S):
                await model.wait_for(1)
            site.kill()
            await site.exit_code()
        for _ in range(2):
            await _die(config, poison)
        async with command(config) as site, connected(site.url) as client:
            for sent in (bad, after):
                await client.call("chat.resume", run_id=sent["run_id"], after_seq=0)
            first, told = await client.ended(bad["run_id"])
            answered = (await client.ended(after["run_id"]))[-1]
            again = await client.send("poison", peer="a", idempotency_key="bad")
            inspected = await client.call("run.inspect", run_id=bad["run_id"])
            await client.ask("and on", peer="a")
            page = await client.call("chat.history", session_key=bad["session_key"])

    assert [asked.last_text for asked in model.requests].count("poison") == 3
    assert (told["type"], told["error_type"], told["retryable"]) == (
        "error",
        "internal_error",
        False,
    )
    assert "set aside" in told["message"]
    assert (first["metadata"]["discard_from_seq"], told["seq"]) == (1, first["seq"] + 1)
    assert answered["response"] == "answer to after it"
    assert (again["duplicate"], again["run_id"]) == (True, bad["run_id"])
    assert inspected["termination_reason"] == "failed"
    assert [role for role, _ in shown(page)] == ["user", "assistant"] * 3
    assert [text for role, text in shown(page) if role == "user"] == [
        "poison",
        "after it",
        "and on",
    ]


async def _die(config: Path, poison: Poison) -> None:
    """One more start that the message does not survive; perhaps not even its banner."""
    async with spawned(config) as site:
        poison.victim, poison.armed = site, True
        with anyio.fail_after(START_S):
            assert await site.exit_code() == -signal.SIGKILL
