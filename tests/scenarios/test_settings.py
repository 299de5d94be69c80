"""A user's settings over the wire: they hold from the next question on, and after a restart."""

from pathlib import Path

import pytest

from tests.fakes.client import connected
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import scripted_server
from tests.scenarios.scripts import echo


@pytest.mark.requirement("S-001-Config-09", "S-001-Config-11", "S-001-Rel-01")
async def test_settings_hold_for_the_next_question_and_after_a_restart(tmp_path: Path) -> None:
    async with scripted_server(echo) as model:
        setup = Setup(model.url)
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            before = await client.ask("one")
            told = await client.call("settings.set", patch={"max_iterations": 7, "theme": "dark"})
            refused = await client.refused("settings.set", patch={"max_iterations": 0})
            after = await client.ask("two")
            seen = [
                (await client.call("run.inspect", run_id=end["run_id"]))["config"]
                for end in (before, after)
            ]
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            again = await client.call("settings.get")
            end = await client.ask("three", limits={"max_iterations": 40, "timeout_seconds": 30})
            last = (await client.call("run.inspect", run_id=end["run_id"]))["config"]

    assert [config["max_iterations"] for config in seen] == [15, 7]
    assert told == again
    assert (again["max_iterations"], again["theme"]) == (7, "dark")
    assert (refused.code, refused.data["problems"][0]["param"]) == (-32602, "patch.max_iterations")
    assert (last["max_iterations"], last["timeout_seconds"]) == (7, 30)
