"""A user's settings over the wire: they hold from the next question on, and after a restart."""

from pathlib import Path

import pytest

from gateway.host.files import shipped_folder
from tests.fakes.client import connected
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.scenarios.scripts import echo

pytestmark = pytest.mark.shared_store


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


TWO_MODELS = """
[agent.fallback]
provider = "fake"
model = "small"
"""


async def test_a_model_takes_effect_or_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(Setup(model.url, agent=TWO_MODELS), tmp_path) as site,
        connected(site.url) as client,
    ):
        await client.call("settings.set", patch={"oracle_model": "small"})
        await client.ask("one")
        patches = ({"oracle_model": "large"}, {"subagent_model": "m"}, {"thinking_enabled": True})
        refused = [await client.refused("settings.set", patch=patch) for patch in patches]
        kept = await client.call("settings.get")
        await client.call("settings.set", patch={"oracle_model": None, "thinking_enabled": False})
        await client.ask("two")

    assert [asked.body["model"] for asked in model.requests] == ["small", "m"]
    problems = [error.data["problems"][0] for error in refused]
    assert [one["param"] for one in problems] == [
        "patch.oracle_model",
        "patch.subagent_model",
        "patch.thinking_enabled",
    ]
    assert "choose one of: m, small" in problems[0]["message"]
    assert "no subagents" in problems[1]["message"]
    assert "fake" in problems[2]["message"]
    assert (kept["oracle_model"], kept["subagent_model"]) == ("small", None)


SUBAGENT = f"""
[[subagents]]
name = "helper"
prompt_path = "{shipped_folder("souls") / "librarian.md"}"
model = "tiny"
"""


async def test_a_subagents_model_takes_effect_or_is_refused(tmp_path: Path) -> None:
    def reply(asked: Asked) -> Reply:
        is_first = asked.body["messages"][-1]["role"] == "user" and asked.body.get("tools")
        calls = [("c", "delegate_helper", '{"task": "help"}')]
        return Reply("", calls=calls) if is_first else Reply("Done.")

    agent = f'subagents = ["helper"]\n{TWO_MODELS}'
    async with (
        scripted_server(reply) as model,
        running(Setup(model.url, agent=agent, rest=SUBAGENT), tmp_path) as site,
        connected(site.url) as client,
    ):
        refused = await client.refused("settings.set", patch={"subagent_model": "large"})
        await client.call("settings.set", patch={"subagent_model": "small"})
        await client.ask("one")
        await client.call("settings.set", patch={"subagent_model": "m", "oracle_model": "small"})
        await client.ask("two")

    assert "no subagent can ask it" in refused.data["problems"][0]["message"]
    assert [asked.body["model"] for asked in model.requests] == [
        *("m", "small", "m"),
        *("small", "m", "small"),
    ]
