"""Whatever a gateway is trusted with, and whoever repeats it: no surface of an operator shows a secret."""

import json
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from tests.cli.conftest import Shell
from tests.fakes.client import Client, connected, http
from tests.fakes.collector import FakeCollector, collecting
from tests.fakes.gateway import Setup, command
from tests.fakes.mcp_server import FakeMcp, serving
from tests.fakes.model_server import Asked, Reply, scripted_server

# By who is trusted with it. Three stand in the file, the others are referred to by name.
SECRETS = {
    "operator": "opr-canary-6677889900",
    "client": "tok-canary-1122334455",
    "provider": "sk-canary-0f9e8d7c6b5a",
    "header": "hdr-canary-55aa55aa55",
    "collector": "otl-canary-44bb44bb44",
    "channel": "chn-canary-33cc33cc33",
    "answers": "ans-canary-22dd22dd22",
    "server": "mcp-canary-11ee11ee11",
    "child": "env-canary-00ff00ff00",
    "plugin": "plg-canary-9988776655",
}
REST = """
[[tokens]]
name = "alice"
token = "{client}"

[[plugins]]
name = "webhook"
path = "bundled:webhook"
capabilities = ["http:127.0.0.1"]

[channels.ci]
plugin = "webhook"
config = {{ scheme = "hmac", reply_url = "http://127.0.0.1/answers" }}
secrets = {{ secret = "${{env:CHANNEL}}", reply_token = "${{env:ANSWERS}}" }}
dm_policy = "open"

[[plugins]]
name = "fetch"
path = "bundled:fetch"
capabilities = ["http:127.0.0.1"]
secrets.api_key = {{ value = "${{env:PLUGIN}}", hosts = ["127.0.0.1"] }}

[mcp.servers.books]
url = "{books}"
headers = {{ x-books = "${{env:SERVER}}" }}

[mcp.servers.child]
command = "/nowhere/at-all"
env = {{ CHILD_KEY = "${{env:CHILD}}" }}

[observability]
log_level = "debug"
otlp_endpoint = "{collector_url}"
otlp_headers = {{ authorization = "Bearer ${{env:COLLECTOR}}" }}
"""
VERBS = (
    ("status",),
    ("doctor",),
    ("config", "show"),
    ("config", "validate"),
    ("token", "list"),
    ("logs",),
    ("audit", "tail"),
    ("channel", "list"),
    ("budget", "status"),
)


def parrot(asked: Asked) -> Reply:
    """Calls the tool that it was told to."""
    return Reply(calls=[("c1", asked.last_text, "{}")]) if "canary" in asked.last_text else Reply()


@pytest.mark.parametrize("is_repeated", [False, True], ids=["kept", "repeated"])
async def test_no_secret_is_shown_to_whoever_operates(tmp_path: Path, *, is_repeated: bool) -> None:
    async with (
        scripted_server(parrot) as model,
        collecting(FakeCollector()) as collector,
        serving(FakeMcp()) as books,
    ):
        known = {**SECRETS, "books": books.url, "collector_url": collector.url}
        setup = Setup(
            model.url,
            gateway='token = "{operator}"'.format(**SECRETS),
            provider='headers = {{ x-secret = "{header}" }}'.format(**SECRETS),
            key=SECRETS["provider"],
            tools=("mcp:books", "mcp:child"),
            rest=REST.format(**known),
        )
        variables = {name.upper(): value for name, value in SECRETS.items()}
        config = await setup.written(tmp_path)
        await anyio.Path(config).chmod(0o600)
        async with command(config, more=variables) as site:
            shell = Shell(config)
            create = partial(shell, "token", "create", "ci", env=variables)
            created = await to_thread.run_sync(create)
            key = await anyio.Path(tmp_path / "data" / "operator.key").read_text()
            secrets = {**SECRETS, "created": created.out.strip(), "key": key}
            async with connected(site.url, SECRETS["client"]) as client:
                runs = await _talked(client, secrets if is_repeated else {})
            shown = await _shown(site.url, shell, variables)
            if not is_repeated:
                shown |= await _told_of(runs, shell, variables)
            site.tell(signal.SIGTERM)  # the spans that wait are sent
            assert await site.exit_code() == 0
        shown["stderr"] = await site.said()
        assert collector.headers[0]["authorization"] == f"Bearer {SECRETS['collector']}"
        assert books.requests[0]["x-books"] == SECRETS["server"]
        shown["traces"] = b"".join(collector.bodies)
    async for file in anyio.Path(tmp_path / "data").rglob("*"):
        is_row = file.name.startswith("store") or file.parent.name == "backups"
        if await file.is_file() and file.name != "operator.key" and not (is_row and is_repeated):
            shown[str(file)] = await file.read_bytes()

    assert b"run_finished" in shown["stderr"]
    found = [
        (who, where)
        for who, one in secrets.items()
        for where in shown
        if one.encode() in shown[where]
    ]
    assert not found


async def _talked(client: Client, secrets: Mapping[str, str]) -> str:
    """The first run; then each secret is a name of a conversation and of a tool."""
    run = await client.ask("hello")
    for name, secret in secrets.items():
        await client.ask(secret, peer=f"{name}-{secret}")
    return str(run["run_id"])


async def _told_of(run: str, shell: Shell, variables: Mapping[str, str]) -> dict[str, bytes]:
    """What only a gateway that nobody told a secret can keep for itself."""
    shown = {}
    for words in (
        ("session", "list"),
        ("logs", "--run", run),
        ("replay", run),
        ("backup", "create"),
        ("config", "set", "providers.fake.api_key", "${env:NOT_SET}", "--yes"),
        ("config", "set", "gateway.token", "${file:no_such}", "--yes"),
        ("config", "set", "providers.fake.max_retries", "9000", "--yes"),
        ("reload", "--dry-run"),
    ):
        ran = await to_thread.run_sync(partial(shell, *words, env=variables))
        shown[" ".join(words)] = (ran.out + ran.err).encode()
    return shown


async def _shown(url: str, shell: Shell, variables: Mapping[str, str]) -> dict[str, bytes]:
    """What an operator sees."""
    token = SECRETS["operator"]
    shown = {}
    for path in ("/readyz", "/metrics", "/openapi.json"):
        shown[path] = (await http(url + path, token=token)).body
    for verb in VERBS:
        for words in (verb, ("--json", *verb)):
            ran = await to_thread.run_sync(partial(shell, *words, env=variables))
            shown[" ".join(words)] = (ran.out + ran.err).encode()
    async with connected(url, token) as client:
        for method in ("status", "doctor.run", "channel.list", "plugin.list"):
            shown[method] = json.dumps(await client.call(method)).encode()
    return shown
