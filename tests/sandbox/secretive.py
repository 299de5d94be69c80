"""A gateway's side with a secret in its environment and in a plugin's definition, as a process.

`python secretive.py CACHE FOLDER`: while a guest's request with the secret is under way, and again
when its answer is there, it looks for the secret in all that its worker can read. Says what it found.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
from anyio import to_thread

from gateway.config.sections import parse_capability
from gateway.domain.ids import Secret
from gateway.domain.plugins import HttpGrant, PluginSecret
from gateway.outbound.client import open_guarded
from gateway.sandbox.pool import Outcome
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.fakes.sandbox import a_stage, means
from tests.fakes.wat import RELAY

NAME = "CANARY"
MARK = "a-mark-that-the-guest-holds"  # so that it is known that memory was read


def regions(pid: int) -> Iterator[bytes]:
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="ascii", errors="replace")
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for begin, end, rights in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) (\S+)", maps, re.MULTILINE):
            if "r" not in rights:
                continue
            try:
                memory.seek(int(begin, 16))
                yield memory.read(int(end, 16) - int(begin, 16))
            except (OSError, ValueError, OverflowError):
                continue  # the kernel's own pages


def found(pid: int, canary: str) -> dict[str, bool]:
    held = list(regions(pid))
    return {
        "environment": canary.encode() in Path(f"/proc/{pid}/environ").read_bytes(),
        "memory": any(canary.encode() in region for region in held),
        "mark": any(MARK.encode() in region for region in held),
    }


async def main(cache: Path, folder: Path) -> None:
    canary = os.environ[NAME]  # noqa: TID251  # reason: this process stands for a gateway
    gate, outcomes = anyio.Event(), list[Outcome]()

    def echo(asked: Asked) -> Reply:
        told = {"you sent": asked.headers["authorization"], "path": asked.path}
        return Reply(body=json.dumps(told).encode(), gate=gate)

    async with scripted_server(echo) as server, open_guarded() as guard:
        url = server.url.removesuffix("/v1")
        grant = parse_capability(f"http:{url}")
        assert isinstance(grant, HttpGrant)
        secret = PluginSecret("key", Secret(canary), frozenset({grant.origin}))
        headers = {"authorization": "Bearer ${secret:key}"}
        asked = json.dumps({"url": f"{url}/{MARK}", "headers": headers})
        async with a_stage(cache, folder, means(fetch=guard)) as stage:
            guest = await stage.load(RELAY, str(grant), secrets=(secret,), deny_unused=True)

            async def call() -> None:
                outcomes.append(await stage.run(guest, f"h{asked}"))

            async with anyio.create_task_group() as group:
                group.start_soon(call)
                sent = await server.wait_for(1)
                during = await to_thread.run_sync(found, stage.worker, canary)
                gate.set()
            after = await to_thread.run_sync(found, stage.worker, canary)
    told = {
        "sent": sent.headers["authorization"] == f"Bearer {canary}",
        "during": during,
        "after": after,
        "answer": outcomes[0].text,
    }
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), Path(sys.argv[2]))
