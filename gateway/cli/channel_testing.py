"""Plays an adapter's script: a whole gateway and a simulated platform, in this process and on loopback."""

import http.client
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import anyio
from anyio import to_thread

from gateway.app.assembly import Gateway, assembled
from gateway.app.running import Running, open_doors
from gateway.channels.adapters import Description, Verify
from gateway.channels.webhooks import signed
from gateway.cli.known import known
from gateway.cli.platform_script import Call, Out, Script, Step, contains, decoded, fits
from gateway.cli.plugin_files import BadPlugin, Given
from gateway.cli.simulated_platform import Heard, Platform, platform
from gateway.config import editing
from gateway.config.load import load
from gateway.config.plugins import BUNDLED
from gateway.config.values import GatewayConfig
from gateway.domain.version import VERSION

WITHIN_S = 30.0  # all that a step causes
LOOKS_EVERY_S = 0.02
_CODE = re.compile(r"\b[A-Z2-9]{4}-[A-Z2-9]{4}\b")
_CONFIG = """
[gateway]
port = 0
data_dir = {data_dir}
[store]
url = "memory"
[agent]
id = "main"
provider = "demo"
model = "demo"
tools = ["echo"]
[[plugins]]
name = "echo"
path = "bundled:echo"
"""


@dataclass(frozen=True, slots=True)
class Played:
    """One step, and what was not as the script has it."""

    step: Step
    status: int
    body: object
    heard: Sequence[Heard]
    problems: Sequence[str]

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.step.name,
            "ok": not self.problems,
            "problems": list(self.problems),
            "in": self.step.call.model_dump(),
            "answered": {"status": self.status, "body": self.body},
            "out": [asdict(one) for one in self.heard],
        }


def play(source: Given, script: Script, tell: Callable[[Sequence[str]], None]) -> Sequence[Played]:
    """Tells each step in words when it is over; the first that goes wrong is the last."""
    with TemporaryDirectory(prefix="exogate-") as folder, platform(script.answers) as simulated:
        config = _config(source, script, simulated.url, Path(folder))
        return anyio.run(_play, config, script, simulated, tell)


async def _play(
    config: GatewayConfig,
    script: Script,
    simulated: Platform,
    tell: Callable[[Sequence[str]], None],
) -> Sequence[Played]:
    told: list[Played] = []
    async with _at_work(config) as (rooms, url):
        (status,) = rooms.channels.statuses()
        is_refused = status.state == "refused"
        player = ScriptPlayer(rooms, url, status.name, script, simulated)
        for step in () if is_refused else script.steps:
            told.append(await player.play(step))
            tell(_lines(told[-1]))
            if told[-1].problems:
                break
    if is_refused:
        raise BadPlugin(f"the channel is refused: {status.why}")
    return told


@asynccontextmanager
async def _at_work(config: GatewayConfig) -> AsyncIterator[tuple[Gateway, str]]:
    found: list[Running] = []
    async with assembled(config, version=VERSION) as rooms, anyio.create_task_group() as group:
        await open_doors(rooms, group, found.append)
        yield rooms, found[0].url
        group.cancel_scope.cancel()


def _config(source: Given, script: Script, base: str, folder: Path) -> GatewayConfig:
    """As an operator would write it, with the platform's address in place of the real one."""
    config = {
        name: base + value if str(value).startswith("/") else value
        for name, value in script.config.items()
    }
    plugin: dict[str, object] = {"name": source.name, "path": f"{BUNDLED}{source.bundled}"}
    if source.bundled is None:
        plugin["path"] = str(source.file)
    plugin["capabilities"] = [*map(str, source.asked), f"http:{base}"]
    channel = {
        "plugin": source.name,
        "transport": script.transport,
        "secrets": {n: {"value": text, "hosts": [base]} for n, text in script.secrets.items()},
        "config": {"public_url": "https://gateway.example", "api_base": base, **config},
        "groups": script.groups,
    }
    text = _CONFIG.format(data_dir=json.dumps(str(folder / "data")))
    text = editing.with_plugin(text, plugin)
    text = editing.with_named(text, "channels", source.name, channel)
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(editing.OWNERS_ALONE)
    return load(path, environment={}, home=folder, cwd=folder, known=known())


@dataclass(slots=True)
class ScriptPlayer:
    rooms: Gateway
    url: str
    channel: str
    script: Script
    platform: Platform

    async def play(self, step: Step) -> Played:
        before = len(self.platform.heard)
        status, content = await to_thread.run_sync(self._call, step.call)
        is_quiet = await self._until_quiet()
        heard = self.platform.heard[before:]
        body = decoded(content)
        problems = [*_of_answer(step, status, body), *self._of_requests(step, heard)]
        problems += [] if is_quiet else [f"something is still to be sent after {WITHIN_S:g} s"]
        await self._approve(heard)
        return Played(step, status, body, heard, problems)

    def _recipe(self) -> Verify:
        """The gateway has made sure that there is one."""
        ((adapter,), config) = (self.rooms.opened.plugins.adapters, self.script.config)
        description: Description = adapter.description
        return next(
            one
            for one in description.recipes
            if all(config.get(name) == value for name, value in one.when.items())
        )

    def _call(self, call: Call) -> tuple[int, bytes]:
        recipe = self._recipe()
        key = self.script.ed25519_seed or self.script.secrets.get(recipe.secret or "", "")
        now, body = self.rooms.shared.clock.now(), call.content
        headers = signed(recipe, key, call.headers, body, now=now)
        query = f"?{call.query}" if call.query else ""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=WITHIN_S)
        try:
            path = f"/webhooks/{self.channel}{call.path}{query}"
            connection.request(call.method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    async def _until_quiet(self) -> bool:
        """Whether every turn has ended and every answer is sent, or never will be."""
        with anyio.move_on_after(WITHIN_S):
            while self.rooms.front.intake.pending or await self._waiting():
                await self.rooms.shared.clock.sleep(LOOKS_EVERY_S)
            return True
        return False

    async def _waiting(self) -> bool:
        tally = await self.rooms.shared.stores.outbox.tally()
        return any(count for (_, state), count in tally.items() if state in {"pending", "sending"})

    def _of_requests(self, step: Step, heard: Sequence[Heard]) -> Iterator[str]:
        """What no step expects anywhere (typing, the setup) may be asked at any time."""
        outs = [out for one in self.script.steps for out in one.out]
        counted = [one for one in heard if any(_is_meant(out, one) for out in outs)]
        for out, one in zip_longest(step.out, counted):
            if one is None:
                yield f"did not ask {out.method} {out.url} {_short(out.body)}"
            elif out is None or not _is_meant(out, one):
                yield f"asked {one.method} {one.url} {_short(one.body)}"

    async def _approve(self, heard: Sequence[Heard]) -> None:
        """As the operator would: whoever was told a code may talk from now on."""
        codes = {code for one in heard for code in _CODE.findall(json.dumps(one.body))}
        waiting = await self.rooms.access.listed(channel=self.channel, limit=1)
        for code in codes if any(one.state == "asked" for one in waiting) else ():
            await self.rooms.access.approve(code, by="simulator")


def _of_answer(step: Step, status: int, body: object) -> Iterator[str]:
    wanted = step.answered
    if status != wanted.status:
        yield f"answered {status}, not {wanted.status}"
    if wanted.body is not None and not contains(body, wanted.body):
        yield f"answered {_short(body)}, without {_short(wanted.body)}"


def _is_meant(out: Out, heard: Heard) -> bool:
    is_address = out.method == heard.method and fits(out.url, heard.url)
    return is_address and (out.body is None or contains(heard.body, out.body))


def _short(body: object) -> str:
    text = json.dumps(body, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}…"


def _lines(played: Played) -> Sequence[str]:
    """To and fro, for a terminal."""
    call = played.step.call
    said = decoded(call.content)
    return (
        f"{'✗' if played.problems else '✓'} {played.step.name}",
        f"    → {call.method} {call.path or '/'} {_short(said)}",
        f"    ← {played.status} {_short(played.body)}",
        *(
            f"    ⇒ {one.method} {one.url} {_short(one.body)} : {one.status}"
            for one in played.heard
        ),
        *(f"    {problem}" for problem in played.problems),
    )
