"""Plays an adapter's platform.json: a conversation between a whole gateway and a simulated platform, in this process
and on loopback."""

import http.client
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import Any, Literal
from urllib.parse import urlsplit

import anyio
from anyio import to_thread
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.app.assembly import Gateway, assembled
from gateway.app.running import Running, open_doors
from gateway.app.trial import BadPlugin
from gateway.channels.adapters import Description, Verify
from gateway.channels.webhooks import sign_headers
from gateway.cli.configuration import known
from gateway.cli.plugin_files import (
    Given,
    problems_of,
)
from gateway.config import editing
from gateway.config.load import load
from gateway.config.plugins import BUNDLED
from gateway.config.values import GatewayConfig
from gateway.domain.version import VERSION

PLATFORM = "platform.json"


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class HttpAnswered(_Table):
    """What a request is answered that fits; of several for one address each is given once, and the
    last one from then on."""

    method: str
    url: str  # after api_base, as `fits` has it
    status: int = 200
    headers: dict[str, str] = {}
    body: Any = None


class HttpAsked(_Table):
    """Signed by the simulator, as the adapter describes it."""

    method: str = "POST"
    path: str = ""
    query: str = ""
    headers: dict[str, str] = {}
    body: Any = ""

    @property
    def content(self) -> bytes:
        is_text = isinstance(self.body, str)
        return (self.body if is_text else json.dumps(self.body, ensure_ascii=False)).encode()


class TrialAnswer(_Table):
    status: int = 200
    body: Any = None  # a part of it if it is JSON


class Out(_Table):
    method: str
    url: str
    body: Any = None  # a part of it if it is JSON


class Step(_Table):
    name: str
    call: HttpAsked = Field(alias="in")
    answered: TrialAnswer = TrialAnswer()
    out: list[Out] = []


class Script(_Table):
    transport: Literal["webhook"]
    config: dict[str, Any] = {}  # a text that begins with `/` is an address of the platform
    secrets: dict[str, str] = {}
    ed25519_seed: str | None = None
    groups: dict[str, dict[str, Any]] = {}
    answers: list[HttpAnswered]
    steps: list[Step]


def read_script(path: Path) -> Script:
    """Raises BadPlugin."""
    try:
        return Script.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise BadPlugin(
            f"there is no {path}: its adapter ships no platform to play with"
        ) from error
    except (OSError, ValidationError) as error:
        raise BadPlugin(f"{path} cannot be used: {problems_of(error)}") from error


def fits(pattern: str, url: str) -> bool:
    """`*` is any text without a slash. The query counts only if the pattern has one."""
    url = url if "?" in pattern else url.partition("?")[0]
    return re.fullmatch("[^/]*".join(map(re.escape, pattern.split("*"))), url) is not None


def contains(whole: object, part: object) -> bool:
    """Whether all that is in the part is in the whole; a list has to be as long."""
    if isinstance(part, Mapping):
        return isinstance(whole, Mapping) and all(
            name in whole and contains(whole[name], value) for name, value in part.items()
        )
    if isinstance(part, list):
        if not isinstance(whole, list) or len(whole) != len(part):
            return False
        return all(contains(one, wanted) for one, wanted in zip(whole, part, strict=True))
    return whole == part


def decoded(body: bytes) -> object:
    """A JSON object or list, else the text."""
    text = body.decode(errors="replace")
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict | list) else text


# -- the platform

UNKNOWN = HttpAnswered(method="", url="", status=404)


@dataclass(frozen=True, slots=True)
class Heard:
    method: str
    url: str
    body: object
    status: int  # that it was answered


@dataclass(slots=True)
class Platform:
    answers: Sequence[HttpAnswered]
    url: str = ""
    heard: list[Heard] = field(default_factory=list)
    _given: set[int] = field(default_factory=set)  # answers that others follow
    _lock: Lock = field(default_factory=Lock)

    def answer(self, method: str, url: str, body: bytes) -> HttpAnswered:
        with self._lock:
            fitting = [
                place
                for place, one in enumerate(self.answers)
                if one.method == method and fits(one.url, url)
            ]
            left = [place for place in fitting if place not in self._given]
            self._given.update(left[:1])
            place = next(iter(left[:1] or fitting[-1:]), None)
            answer = UNKNOWN if place is None else self.answers[place]
            self.heard.append(Heard(method, url, decoded(body), answer.status))
            return answer


@contextmanager
def platform(answers: Sequence[HttpAnswered]) -> Iterator[Platform]:
    """Its threads end with it."""
    it = Platform(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            answer = it.answer(self.command, self.path, body)
            content = json.dumps(answer.body).encode() if answer.body is not None else b""
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815  # as the library calls them

        def log_message(self, format: str, *args: object) -> None:  # its name there
            """What was said is shown by whoever plays."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    it.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield it
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# -- the play

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
    path.chmod(editing.NEW_FILE_MODE)
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
        ((adapter,), config) = (self.rooms.now.plugins.adapters, self.script.config)
        description: Description = adapter.description
        return next(
            one
            for one in description.recipes
            if all(config.get(name) == value for name, value in one.when.items())
        )

    def _call(self, call: HttpAsked) -> tuple[int, bytes]:
        recipe = self._recipe()
        key = self.script.ed25519_seed or self.script.secrets.get(recipe.secret or "", "")
        now, body = self.rooms.shared.clock.now(), call.content
        headers = sign_headers(recipe, key, call.headers, body, now=now)
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
        waiting = await self.rooms.access.list_pairings(channel=self.channel, limit=1)
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
