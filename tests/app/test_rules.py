"""Rules are switched on and off while the gateway runs; a run keeps those that it began with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.client import Client, connected
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import scripted_server
from tests.fakes.rules import rule
from tests.scenarios.scripts import echo


class Ruled(Setup):
    def toml(self, folder: Path) -> str:
        return f'rules_dir = "{folder / "rules"}"\n{Setup.toml(self, folder)}'


async def listed(client: Client) -> Mapping[str, Any]:
    await client.call("config.reload")
    told = await client.call("rule.list")
    enabled = {one["id"]: one["enabled"] for one in told["rules"]}
    return {**enabled, "refused": [one["why"] for one in told["refused"]]}


@pytest.mark.requirement("S-002-Rules-08")
async def test_a_rule_is_switched_off_without_a_restart_and_a_core_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = anyio.Path(tmp_path / "rules")
    await folder.mkdir()
    path = folder / "mine.toml"
    await path.write_text(rule("on = ['query.*']", "mine"))
    async with scripted_server(echo) as model:
        setup = Setup(model.url)
        text = f'rules_dir = "{folder}"\n{setup.toml(tmp_path)}'
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            await anyio.Path(tmp_path / "config.toml").write_text(text)
            on = await listed(client)
            await path.write_text(rule("on = ['query.*']\nenabled = false", "mine"))
            off = await listed(client)
            await path.write_text(rule("enabled = false", "token-budget"))
            refused = await client.call("config.reload")
            kept, status = await listed(client), await client.call("status")
            await path.unlink()
            gone = await listed(client)

    assert (on["mine"], off["mine"], gone["refused"]) == (True, False, [])
    (problem,) = refused["errors"]
    assert (problem["source"].endswith("rules/mine.toml"), problem["line"]) == (True, 2)
    assert "cannot be disabled" in problem["message"]
    assert kept == off
    assert status["config"]["errors"] == refused["errors"]
    assert "mine" not in gone
    assert "config_refused" in [one.getMessage() for one in caplog.records]


async def test_at_a_start_a_file_of_rules_that_is_not_valid_is_refused_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = anyio.Path(tmp_path / "rules")
    await folder.mkdir()
    await (folder / "bad.toml").write_text("[[rules]]")
    await (folder / "mine.toml").write_text(rule("on = ['query.*']", "mine"))
    async with scripted_server(echo) as model:
        setup = Ruled(model.url)
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            told = await client.call("rule.list")

    assert "mine" in [one["id"] for one in told["rules"]]
    (refused,) = told["refused"]
    assert refused["file"].endswith("bad.toml")
    assert "rule_file_refused" in [one.getMessage() for one in caplog.records]
