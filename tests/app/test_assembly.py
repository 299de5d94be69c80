"""The composition gives the rooms the values of the configuration, and old data is deleted in small steps."""

from dataclasses import FrozenInstanceError
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from gateway.app.assembly import SENT_AGAIN, open_gateway, sweep
from gateway.app.generation import soul_paths, web_settings
from gateway.cli.configuration import known_names
from gateway.codec import decode_strictly
from gateway.config.load import load
from gateway.config.values import GatewayConfig
from gateway.domain.inbox import ReceivedMessage
from gateway.host.files import shipped_folder
from tests.fakes.clock import FakeClock
from tests.fakes.store import open_memory

# --- assembly ------------------------------------------------------------------------------------
TOML = """
[gateway]
bind = "127.0.0.2"
port = 7311
data_dir = "{folder}/data"
token = "operator-token-0123456789"
max_connections = 77
max_connections_per_address = 11
max_unauthenticated = 7

[[tokens]]
name = "alice"
token = "alice-token-0123456789"
scopes = ["chat", "agent:main"]

[agent]
id = "main"
provider = "demo"
model = "demo"
tools = ["time"]

[[plugins]]
name = "time"
path = "bundled:time"
capabilities = ["host_function:clock"]

[[agents]]
id = "other"
provider = "demo"
model = "demo"
soul_path = "soul.md"
"""


def read(folder: Path, text: str = TOML) -> GatewayConfig:
    (folder / "soul.md").write_text("I am another.", encoding="utf-8")
    path = folder / "config.toml"
    path.write_text(text.format(folder=folder), encoding="utf-8")
    return load(path, environment={}, home=folder, cwd=folder, known=known_names())


@pytest.mark.requirement("S-003-Config-01", "S-003-Config-02")
def test_the_front_door_is_given_what_the_configuration_says(tmp_path: Path) -> None:
    config = read(tmp_path)
    settings = web_settings(config, "key")

    assert (settings.bind, settings.port, settings.max_connections) == ("127.0.0.2", 7311, 77)
    assert (settings.max_connections_per_address, settings.max_unauthenticated) == (11, 7)
    assert settings.operator_secret == "operator-token-0123456789"
    assert [(one.name, one.scopes) for one in settings.tokens] == [
        ("alice", frozenset({"chat", "agent:main"}))
    ]
    assert settings.cli_secret == "key"
    assert (config.default_agent, len(config.agents)) == ("main", 2)


@pytest.mark.requirement("S-003-AgentDef-08")
def test_no_secret_is_shown_by_what_is_handed_around(tmp_path: Path) -> None:
    config = read(tmp_path)

    shown = repr(config) + repr(web_settings(config, "the-operators-key"))

    assert "0123456789" not in shown
    assert "the-operators-key" not in shown


@pytest.mark.requirement("S-004-Cfg-10")
def test_a_configuration_cannot_be_changed(tmp_path: Path) -> None:
    config = read(tmp_path)

    with pytest.raises(FrozenInstanceError):
        config.gateway.port = 1  # type: ignore[misc]  # that is the point


@pytest.mark.requirement("S-004-Cfg-05")
def test_an_agent_without_a_soul_has_the_one_that_ships(tmp_path: Path) -> None:
    paths = soul_paths(read(tmp_path).agents)

    shipped = shipped_folder("souls") / "default.md"
    assert {str(agent): path for agent, path in paths.items()} == {
        "main": str(shipped),
        "other": str(tmp_path / "soul.md"),
    }
    assert len(shipped.read_text(encoding="utf-8")) > 100


async def test_the_rooms_are_assembled_and_taken_down_twice_on_the_same_data(
    tmp_path: Path,
) -> None:
    config = await to_thread.run_sync(read, tmp_path)
    for _ in range(2):
        async with open_gateway(config, version="1") as rooms:
            soul = rooms.front.souls.by_agent.get(config.agents[1].id)
            assert soul is not None
            assert soul.content == "I am another."
            assert rooms.health.reasons() == ["the gateway is starting"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_is_none_is_no_json(number: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        decode_strictly(f'{{"a": {number}}}')


# --- sweeping ------------------------------------------------------------------------------------
async def test_what_channels_heard_is_forgotten_once_no_platform_sends_it_again() -> None:
    clock = FakeClock()
    eight_days_ago = clock.now() - SENT_AGAIN
    minute = timedelta(minutes=1)
    times = {"old": eight_days_ago - minute, "young": eight_days_ago + minute}
    async with open_memory() as stores, anyio.create_task_group() as group:
        for name, at in times.items():
            await stores.channels.record(ReceivedMessage("tg", "bot", name, "told", at))

        config = GatewayConfig()
        group.start_soon(sweep, lambda: config, stores, clock)
        with anyio.fail_after(60):
            for _ in range(2):  # between two rounds, and after them
                await clock.until_someone_sleeps()
                clock.move(0.1)

        known = [await stores.channels.knows("tg", "bot", name) for name in times]
        group.cancel_scope.cancel()
    assert known == [False, True]
