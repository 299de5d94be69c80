"""`exogate provider` lists providers and asks one tiny question."""

from contextlib import AsyncExitStack
from functools import partial

import anyio
import pytest
from anyio import to_thread

from tests.cli.conftest import Shell
from tests.fakes.client import connected
from tests.fakes.gateway import command
from tests.fakes.model_server import Reply, scripted_server

PROVIDER = """
[gateway]
data_dir = "{folder}/data"

[providers.fake]
wire = "openai"
base_url = "{url}"
api_key = "sk-canary-0123456789"

[agent]
provider = "fake"
model = "m"
"""


async def test_a_provider_that_answers_is_shown_with_what_it_cost(alone: Shell) -> None:
    async with scripted_server([Reply("ready")]) as server:
        text = PROVIDER.format(folder=alone.config.parent, url=server.url)
        await anyio.Path(alone.config).write_text(text)
        ran = await to_thread.run_sync(alone, "--json", "provider", "test")
        listed = await to_thread.run_sync(alone, "provider", "list")

    assert (ran.code, ran.json["text"]) == (0, "ready")
    assert "fake" in listed.out
    assert "sk-canary" not in ran.out + ran.err + listed.out + listed.err


@pytest.mark.requirement("S-003-Budget-08")
async def test_what_a_test_takes_is_in_the_ledger_with_and_without_a_gateway(alone: Shell) -> None:
    async with scripted_server([Reply("ready", usage=(30, 2))]) as server:
        text = PROVIDER.format(folder=alone.config.parent, url=server.url)
        text = text.replace("[gateway]", "[gateway]\nport = 0") + "[budgets]\ndaily = 500\n"
        await anyio.Path(alone.config).write_text(text)
        before = await to_thread.run_sync(alone, "--json", "provider", "test")
        async with command(alone.config) as gateway, connected(gateway.url) as client:
            beside = await to_thread.run_sync(alone, "--json", "provider", "test")
            records = (await client.call("budget.records"))["records"]
            day, *_ = (await client.call("budget.status"))["budgets"]

    assert [(ran.code, ran.json["text"]) for ran in (before, beside)] == [(0, "ready")] * 2
    assert [(one["input_tokens"], one["output_tokens"]) for one in records] == [(30, 2)] * 2
    assert {one["agent_id"] for one in records} == {"main"}
    assert (day["used"], day["reserved"], len(server.requests)) == (64, 0, 2)


@pytest.mark.parametrize("runs", [True, False])
async def test_a_test_that_no_budget_allows_asks_nobody(alone: Shell, runs: bool) -> None:
    async with scripted_server([Reply("ready")]) as server, AsyncExitStack() as stack:
        text = PROVIDER.format(folder=alone.config.parent, url=server.url)
        text = text.replace("[gateway]", "[gateway]\nport = 0") + "[budgets]\ndaily = 5\n"
        await anyio.Path(alone.config).write_text(text)
        if runs:
            await stack.enter_async_context(command(alone.config))
        told = await to_thread.run_sync(alone, "provider", "test")
        as_json = await to_thread.run_sync(alone, "--json", "provider", "test")

    assert (told.code, as_json.code, server.requests) == (1, 1, [])
    assert "token budget exceeded (daily: 0/5)" in told.err
    assert (as_json.json["ok"], as_json.json["kind"]) == (False, "budget_exceeded")


@pytest.mark.requirement("S-003-AgentDef-08")
async def test_a_provider_that_refuses_the_key_is_told_in_one_sentence(alone: Shell) -> None:
    body = b'{"error":{"message":"bad key sk-canary-0123456789"}}'
    async with scripted_server([Reply(status=401, body=body)]) as server:
        text = PROVIDER.format(folder=alone.config.parent, url=server.url)
        await anyio.Path(alone.config).write_text(text)
        ran = await to_thread.run_sync(alone, "provider", "test", "fake")

    assert ran.code == 1
    assert "fake" in ran.err
    assert "sk-canary" not in ran.out + ran.err
    assert "Traceback" not in ran.err


def test_a_provider_that_is_not_there_is_said_so(alone: Shell) -> None:
    ran = alone("provider", "test", "openai")

    assert ran.code == 1
    assert "no provider 'openai'" in ran.err


@pytest.mark.parametrize("name", ["gemini", "openrouter", "ollama", "mine"])
async def test_a_provider_is_added_with_its_diff_and_tried_before_an_agent_uses_it(
    alone: Shell, name: str
) -> None:
    folder, file = alone.config.parent, anyio.Path(alone.config)
    await file.write_text(f"# mine\n[gateway]\ndata_dir = '{folder}/data'\n")
    await anyio.Path(folder / "key").touch(0o600)
    await anyio.Path(folder / "key").write_text("sk-canary-0123456789")
    async with scripted_server([Reply("ready")]) as server:
        wire = ("--wire", "openai") if name == "mine" else ()
        key = () if name == "ollama" else ("--key", f"${{file:{folder}/key}}")
        how = ("provider", "add", name, "--url", server.url, *wire, *key)
        refused = await to_thread.run_sync(partial(alone, *how))
        ran = await to_thread.run_sync(partial(alone, *how, "--yes"))
        again = await to_thread.run_sync(partial(alone, *how, "--yes"))
        tried = await to_thread.run_sync(alone, "--json", "provider", "test", name, "--model", "m")

    assert refused.code != 0
    assert (ran.code, ran.out.count(f"+[providers.{name}]")) == (0, 1)
    assert (await file.read_text()).startswith("# mine\n")
    assert "already" in again.err
    assert (tried.code, tried.json["text"], tried.json["model"]) == (0, "ready", "m")
    sent = server.requests[0].headers.get("authorization")
    assert sent == (None if name == "ollama" else "Bearer sk-canary-0123456789")
    assert "sk-canary" not in ran.out + ran.err + tried.out + tried.err


def test_nothing_that_would_be_wrong_is_added(alone: Shell) -> None:
    before = alone.config.read_text()

    ran = alone("provider", "add", "mine", "--yes")

    assert ran.code == 78
    assert "base_url" in ran.err
    assert alone.config.read_text() == before


@pytest.mark.parametrize("is_told", [True, False])
def test_a_provider_without_a_usual_model_needs_to_be_told_one(alone: Shell, is_told: bool) -> None:
    alone.config.write_text("[providers.ollama]\nbase_url = 'http://127.0.0.1:9/v1'\n")

    ran = alone("provider", "test", "ollama", *(("--model", "m") if is_told else ()))

    assert ran.code == 1
    assert ("--model" in ran.err) is not is_told


@pytest.mark.parametrize("own", ["", '[agent]\nid = "own"\nprovider = "demo"\ntools = ["time"]\n'])
def test_another_provider_takes_no_tools_and_no_budgets_and_says_so(alone: Shell, own: str) -> None:
    plugin = '[[plugins]]\nname = "time"\npath = "bundled:time"\n' if own else ""
    alone.config.write_text(f"{own}{plugin}[budgets]\nmonthly = 7\n", encoding="utf-8")
    keys = ("agent.tools", "agent.id", "budgets.daily.tokens", "budgets.monthly.tokens")
    before = [alone("config", "get", key).out for key in keys]

    words = ("provider", "add", "openai", "--key", "${env:KEY}", "--use", "--yes")
    ran = alone(*words, env={"KEY": "sk-1234567890"})

    after = [alone("config", "get", key, env={"KEY": "k"}).out for key in keys]
    assert ran.code == 0, ran.err
    assert after == before
    assert "instead of demo/demo" in ran.out
    assert f"keeps these tools: {'time' if own else 'echo, calc, time, notes, memory'}" in ran.out
    assert "budgets do not change" in ran.out
    assert '+provider = "openai"' in ran.out


def test_a_provider_that_no_agent_asks_says_how_it_is_used(alone: Shell) -> None:
    ran = alone("provider", "add", "ollama", "--yes")
    wrong = alone("provider", "add", "mine", "--model", "m", "--yes")
    unknown = alone("provider", "add", "openrouter", "--use", "--model", "m", "--yes")

    assert "--use" in ran.out
    assert "only the tools and budgets" in ran.out
    assert (wrong.code, unknown.code) == (2, 78)


def test_a_provider_that_is_there_is_used(alone: Shell) -> None:
    key = "sk-of-the-test-1234"
    alone("config", "set", "providers.openai.api_key", "--secret", "--yes", typed=f"{key}\n")

    ran = alone("provider", "add", "openai", "--use", "--yes")

    text = alone.config.read_text(encoding="utf-8")
    assert ran.code == 0, ran.err
    assert 'provider = "openai"' in text
    assert 'api_key = "${file:openai_api_key}"' in text
    assert key not in text + ran.out + ran.err


def test_a_preset_without_a_key_is_refused_with_the_command_that_keeps_one(alone: Shell) -> None:
    ran = alone("provider", "add", "openai", "--use", "--yes")

    assert ran.code == 78
    assert "exogate config set providers.openai.api_key --secret" in ran.err
