"""A change of the configuration is proposed, shown and applied over the socket; a plugin is called, and the doctor asked."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from gateway.api import operating as api
from gateway.app.proposals import ConfigFile, Proposals
from gateway.cli.configuration import known_names
from gateway.config.values import Inputs
from tests.fakes.client import Client, RpcError, connected
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import scripted_server


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[tuple[Client, anyio.Path]]:
    """With its configuration."""
    async with (
        scripted_server([]) as model,
        running(Setup(model.url, tools=("calc",)), folder) as site,
        connected(site.url) as client,
    ):
        yield client, anyio.Path(folder / "config.toml")


async def test_a_proposal_writes_nothing_and_applying_it_puts_it_into_force(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (client, file):
        before = await file.read_text()
        told = await client.call("config.propose", patch={"limits": {"max_iterations": 3}})
        proposed = await file.read_text()
        applied = await client.call("config.apply", hash=told["hash"])
        after = await file.read_text()

    assert told["errors"] == []
    assert "+max_iterations = 3" in told["diff"]
    assert proposed == before
    assert applied == {"generation": 2}
    assert "max_iterations = 3" in after


async def test_what_would_not_be_valid_is_told_and_not_applied(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (client, file):
        before = await file.read_text()
        told = await client.call("config.propose", patch={"gateway.prot": 1})
        with pytest.raises(RpcError) as refused:
            await client.call("config.apply", hash=told["hash"])
        after = await file.read_text()

    assert [one["code"] for one in told["errors"]] == ["CFG002"]
    assert refused.value.code == -32602
    assert after == before


async def test_a_file_that_changed_meanwhile_is_a_conflict(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (client, file):
        told = await client.call("config.propose", patch={"limits": {"max_iterations": 3}})
        changed = f"# by hand\n{await file.read_text()}"
        await file.write_text(changed)
        for hash_ in (told["hash"], "0" * 64):
            with pytest.raises(RpcError) as refused:
                await client.call("config.apply", hash=hash_)
            assert refused.value.code == -32006
        after = await file.read_text()

    assert after == changed


async def test_a_secret_goes_into_a_file_of_its_own_and_is_shown_nowhere(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (client, file):
        secrets = {"providers.fake.api_key": "sk-brand-new-secret"}
        told = await client.call("config.propose", patch={}, secrets=secrets)
        kept = anyio.Path(tmp_path / ".config/exogate/secrets/fake_api_key")
        is_early = await kept.exists()
        await client.call("config.apply", hash=told["hash"])
        text = await file.read_text()

    assert told["errors"] == []
    assert not is_early
    assert "brand-new" not in str(told) + text
    assert 'api_key = "${file:fake_api_key}"' in text
    assert await kept.read_text() == "sk-brand-new-secret"
    assert (await kept.stat()).st_mode & 0o777 == 0o600


async def test_what_cannot_be_built_is_taken_back(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (client, file):
        before = await file.read_text()
        patch = {"plugins": {"calc": {"sha256": "0" * 64}}}
        told = await client.call("config.propose", patch=patch, secrets={"extra": "of-no-use"})
        with pytest.raises(RpcError, match="would not be valid"):
            await client.call("config.apply", hash=told["hash"])
        after = await file.read_text()
        status = await client.call("status")

    assert told["errors"] == []
    assert after == before
    assert not await anyio.Path(tmp_path / ".config/exogate/secrets/extra").exists()
    assert status["config"]["errors"] == []


async def test_a_path_that_leads_nowhere_is_refused_at_once(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (client, _):
        with pytest.raises(RpcError, match="has no item") as refused:
            await client.call("config.propose", patch={"plugins.clac.enabled": False})

    assert refused.value.code == -32602


async def test_a_tool_of_a_plugin_is_called(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (client, _):
        given = {"expression": "6 * 7"}
        told = await client.call("plugin.call", name="calc", tool="calc", arguments=given)
        wrong = await client.call("plugin.call", name="calc", tool="calc", arguments={"x": 1})
        with pytest.raises(RpcError) as refused:
            await client.call("plugin.call", name="clac", tool="calc")

    assert told["ok"]
    assert "42" in told["output"]
    assert not wrong["ok"]
    assert refused.value.code == -32004


async def test_the_doctor_of_a_running_gateway_says_how_to_mend_what_it_finds(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path) as (client, _):
        told = await client.call("doctor.run")

    (one,) = (one for one in told["findings"] if one["id"] == "literal-secret")
    assert one.keys() == {"id", "severity", "path", "message", "fix"}
    assert one["fix"].startswith("exogate --config ")
    assert told["passed"] > 5


async def test_without_any_file_the_first_one_is_made_at_home(tmp_path: Path) -> None:
    usual = tmp_path / ".config/exogate/config.toml"

    async def reload() -> api.Reloaded:
        return api.Reloaded(generation=2, changed=[], restart_needed=[], errors=[])

    changes = Proposals(None, reload)
    inputs = await to_thread.run_sync(lambda: Inputs({}, tmp_path, tmp_path, known_names()))
    changes.file = ConfigFile(lambda: None, usual, lambda: inputs)
    told = await changes.propose({"budgets": {"daily": 5000}}, {})
    await changes.apply(told.hash)

    assert await anyio.Path(usual).read_text() == "[budgets]\ndaily = 5000\n"
    assert (await anyio.Path(usual).stat()).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("patch", [{"budgets": {"daily": 5}}, {"budgets.agent.main": 5}])
async def test_a_limit_of_a_budget_takes_effect_by_itself(
    tmp_path: Path, patch: dict[str, object]
) -> None:
    async with gateway(tmp_path) as (client, _):
        told = await client.call("config.propose", patch=patch)
        applied = await client.call("config.apply", hash=told["hash"])
        found = await client.call("budget.status")

    assert applied == {"generation": 2}
    assert 5 in [one["limit"] for one in found["budgets"]]
