"""Tokens of a channel are where its platform is asked, and nowhere else: no guest ever holds one."""

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from io import RawIOBase
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from bench.process import tree
from tests.fakes.client import connected, http
from tests.fakes.gateway import Command, Setup, command
from tests.fakes.model_server import Asked, ModelServer, Reply, scripted_server

BOT = "7654321:bot-canary-0f9e8d7c6b5a"
HOOK = "hook-canary_1122334455"
OPERATOR = "opr-canary-6677889900"
CANARIES = (BOT.encode(), HOOK.encode())
MUCH = 1 << 30  # what a guest may have at most, and reserves
CONFIG = """
[[plugins]]
name = "telegram"
path = "bundled:telegram"
capabilities = ["http:{platform}"]

[channels.chat]
plugin = "telegram"
transport = "webhook"
dm_policy = "allowlist"
allow_from = ["5"]
config = {{ api_base = "{platform}" }}
secrets = {{ bot_token = "{bot}", webhook_secret = "{hook}" }}

[observability]
log_level = "debug"
log_format = "json"
"""


def indiscreet(asked: Asked) -> Reply:
    """A platform that repeats what it was told in confidence."""
    said = {"ok": True, "result": {"message_id": 1}, "echo": f"{asked.path} {BOT} {HOOK}"}
    if "refuse" in str(asked.body.get("text")):
        said = {"ok": False, "error_code": 400, "description": f"bad {BOT} and {HOOK}"}
    headers = {"content-type": "application/json"}
    return Reply(status=200 if said["ok"] else 400, headers=headers, body=json.dumps(said).encode())


def update(number: int, text: str) -> bytes:
    sender = {"id": 5, "is_bot": False, "first_name": f"Ada {HOOK}"}
    chat = {"id": 5, "type": "private"}
    message = {
        "message_id": number,
        "from": sender,
        "chat": chat,
        "date": 4_000_000_000,
        "text": text,
    }
    return json.dumps({"update_id": number, "message": message}).encode()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of the workers")
async def test_no_token_is_in_a_guest_a_log_a_row_an_error_or_a_metric(tmp_path: Path) -> None:
    async with scripted_server(indiscreet) as platform, scripted_server(parroting) as model:
        setup = Setup(
            model.url,
            gateway=f'token = "{OPERATOR}"',
            rest=CONFIG.format(platform=platform.url.removesuffix("/v1"), bot=BOT, hook=HOOK),
        )
        async with command(await setup.written(tmp_path)) as site:
            said = await _talked(site, platform)
            memory = await to_thread.run_sync(_worker_memory, site.process.pid)
            logged = await site.said()

    # What it sends to the platform is the proof that it had the tokens at all.
    assert {one.path for one in platform.requests} >= {f"/bot{BOT}/sendMessage"}
    assert any(b"my tokens are" in held for held in memory.values())
    kept = dict([await _read(one) async for one in _files(tmp_path)])
    assert any(b"SQLite format 3" in data for data in kept.values())
    asked = {f"model request {one.number}": str(one.body).encode() for one in model.requests}
    for canary in CANARIES:
        for places in (memory, kept, asked, {"log": logged}, said):
            assert [name for name, data in places.items() if canary in data] == []


def parroting(asked: Asked) -> Reply:
    return Reply(f"You said: {asked.last_text}")


async def _talked(site: Command, platform: ModelServer) -> Mapping[str, bytes]:
    """What everybody but the platform got to see."""
    said: dict[str, bytes] = {}
    url = f"{site.url}/webhooks/chat"
    proof = {"x-telegram-bot-api-secret-token": HOOK, "x-echo": f"{BOT} {HOOK}"}
    calls = [
        (proof, update(1, f"my tokens are {BOT} and {HOOK}")),
        (proof, update(2, f"refuse {BOT}")),
        (proof, update(3, "/status")),
        (proof, f"no JSON {BOT} {HOOK}".encode()),
        ({**proof, "x-telegram-bot-api-secret-token": "wrong"}, update(4, "hi")),
    ]
    for number, (headers, body) in enumerate(calls):
        for again in range(5):
            answer = await http(url, method="POST", headers=headers, body=body)
            said[f"answer {number}.{again}"] = answer.body + str(answer.headers).encode()
    async with connected(site.url, OPERATOR) as operator:
        await _until_settled(operator.call)
        for method in ("status", "channel.list", "channel.dead_letters", "audit.tail", "pair.list"):
            said[method] = json.dumps(await operator.call(method)).encode()
        assert b"refuse" in said["channel.dead_letters"]
        assert b"no JSON" in said["channel.dead_letters"]
        said["frames"] = str(operator.frames).encode()
    metrics = await http(f"{site.url}/metrics", token=OPERATOR)
    assert b"exogate_channel_up" in metrics.body
    return said | {"metrics": metrics.body}


async def _until_settled(call: Callable[[str], Awaitable[Any]]) -> None:
    """Until nothing is on its way: one answer has failed, the others have arrived."""
    with anyio.fail_after(60):
        while True:
            (channel,) = (await call("channel.list"))["channels"]
            status = await call("status")
            if channel["dead"] == 1 and channel["pending"] == 0 and status["pending"] == 0:
                return


def _worker_memory(gateway: int) -> Mapping[str, bytes]:
    """All that the processes hold in which guests run, by process and region."""
    held: dict[str, bytes] = {}
    for pid in tree(gateway)[1:]:
        folder = Path(f"/proc/{pid}")
        if b"gateway.sandbox" in (folder / "cmdline").read_bytes():
            held |= {
                f"{pid} {name}": (folder / name).read_bytes() for name in ("environ", "cmdline")
            }
            held |= {f"{pid} {region}": data for region, data in _regions(folder)}
    return held


def _regions(folder: Path) -> Iterator[tuple[str, bytes]]:
    with (folder / "mem").open("rb", buffering=0) as memory:
        for line in (folder / "maps").read_text().splitlines():
            region, rights, *_ = line.split()
            begin, end = (int(part, 16) for part in region.split("-"))
            if "rw" in rights and end - begin < MUCH:
                yield region, _part(memory, begin, end - begin)


def _part(memory: RawIOBase, begin: int, size: int) -> bytes:
    try:
        memory.seek(begin)
        return memory.read(size) or b""
    except OSError:  # it is not there any more
        return b""


async def _files(folder: Path) -> AsyncIterator[anyio.Path]:
    async for file in anyio.Path(folder / "data").rglob("*"):
        if await file.is_file():
            yield file


async def _read(file: anyio.Path) -> tuple[str, bytes]:
    return str(file), await file.read_bytes()
