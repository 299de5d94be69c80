"""`exogate provider` lists providers and asks one tiny question."""

import anyio
import pytest
from anyio import to_thread

from tests.cli.conftest import Shell
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


def test_a_provider_that_no_agent_uses_is_said_so(alone: Shell) -> None:
    ran = alone("provider", "test", "openai")

    assert ran.code == 1
    assert "no agent uses the provider 'openai'" in ran.err
