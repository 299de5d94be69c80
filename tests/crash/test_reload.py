"""The gateway is killed in the middle of a reload: the next start has the new configuration, and every message."""

from pathlib import Path

import anyio
import pytest

from tests.fakes.client import connected
from tests.fakes.gateway import Setup, command
from tests.fakes.model_server import scripted_server
from tests.forms import is_long
from tests.scenarios.scripts import echo

# Seconds after the call: while the file is read, the generation made, swapped in, noted in the audit.
MOMENTS = (
    (0.0, 0.004, 0.008, 0.012, 0.016, 0.024, 0.032, 0.05) if is_long() else (0.0, 0.008, 0.024)
)


@pytest.mark.parametrize("moment_s", MOMENTS)
async def test_a_kill_in_the_middle_of_a_reload_leaves_nothing_half_done(
    tmp_path: Path, moment_s: float
) -> None:
    async with scripted_server(echo) as model:
        setup = Setup(model.url, gateway="watch = false")
        path = await setup.written(tmp_path)
        async with command(path) as gateway, connected(gateway.url) as client:
            sent = [
                await client.send(f"message {number}", peer=f"p{number}") for number in range(5)
            ]
            text = (await anyio.Path(path).read_text()).replace('model = "m"', 'model = "n"')
            await anyio.Path(path).write_text(f"{text}\n[budgets]\ndaily = 1_000_000\n")
            await client.write('{"jsonrpc":"2.0","id":"r","method":"config.reload","params":{}}')
            await anyio.sleep(moment_s)
            gateway.kill()
        async with command(path) as gateway, connected(gateway.url) as client:
            status = await client.call("status")
            after = await client.ask("after")
            ends = []
            for one in sent:
                await client.call("chat.resume", run_id=one["run_id"], after_seq=0)
                ends.append((await client.ended(one["run_id"]))[-1]["type"])
            audit = await client.call("audit.verify")
            nodes = [
                await client.call("chat.history", session_key=one["session_key"]) for one in sent
            ]

    answers = [[node["role"] for node in page["messages"]] for page in nodes]
    assert (status["generation"], status["config"]["errors"], status["healthy"]) == (1, [], True)
    assert (after["type"], model.requests[-1].body["model"]) == ("done", "n")
    assert ends == ["done"] * 5
    assert answers == [["user", "assistant"]] * 5
    assert audit["ok"] is True
