"""Plays the platform.json of an adapter: a conversation between a gateway in this process and a simulated platform on
loopback."""

import http.client
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
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

from gateway.app.assembly import Gateway, open_gateway
from gateway.app.doctor import BadPlugin
from gateway.app.running import Running, open_doors
from gateway.channels.adapters import Description, Verify
from gateway.channels.webhooks import sign_headers
from gateway.cli.configuration import known_names
from gateway.cli.plugin_files import (
    PluginSource,
    problems_of,
)
from gateway.config import editing
from gateway.config.load import load
from gateway.config.plugins import BUNDLED
from gateway.config.values import GatewayConfig
from gateway.domain.version import VERSION
from gateway.sandbox.cache import reuse_compiled

PLATFORM = "platform.json"


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PlatformAnswer(_Table):
    """The platform's answer to requests that match. Each of several answers for one address serves once, the last one
    serves all later requests."""

    method: str
    url: str  # a pattern for `matches`, without api_base
    status: int = 200
    headers: dict[str, str] = {}
    body: Any = None


class PlatformCall(_Table):
    """A webhook call of the platform. The simulator signs it as the adapter describes."""

    method: str = "POST"
    path: str = ""
    query: str = ""
    headers: dict[str, str] = {}
    body: Any = ""

    @property
    def content(self) -> bytes:
        is_text = isinstance(self.body, str)
        return (self.body if is_text else json.dumps(self.body, ensure_ascii=False)).encode()


class ExpectedAnswer(_Table):
    status: int = 200
    body: Any = None  # JSON may be a part of the body


class ExpectedRequest(_Table):
    method: str
    url: str
    body: Any = None  # JSON may be a part of the body


class Step(_Table):
    name: str
    call: PlatformCall = Field(alias="in")
    answered: ExpectedAnswer = ExpectedAnswer()
    out: list[ExpectedRequest] = []


class Script(_Table):
    transport: Literal["webhook"]
    config: dict[str, Any] = {}  # a text that begins with `/` is an address of the platform
    secrets: dict[str, str] = {}
    ed25519_seed: str | None = None
    groups: dict[str, dict[str, Any]] = {}
    answers: list[PlatformAnswer]
    steps: list[Step]


def read_script(path: Path) -> Script:
    """Reads platform.json. Raises BadPlugin."""
    try:
        return Script.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise BadPlugin(f"there is no {path}: the adapter has no simulated platform") from error
    except (OSError, ValidationError) as error:
        raise BadPlugin(f"{path} cannot be used: {problems_of(error)}") from error


def matches(pattern: str, url: str) -> bool:
    """True if the URL matches. `*` is any text without a slash; the query counts only if the pattern has one."""
    url = url if "?" in pattern else url.partition("?")[0]
    return re.fullmatch("[^/]*".join(map(re.escape, pattern.split("*"))), url) is not None


def contains(whole: object, part: object) -> bool:
    """True if the whole has every item of the part; lists must have the same length."""
    if isinstance(part, Mapping):
        return isinstance(whole, Mapping) and all(
            name in whole and contains(whole[name], value) for name, value in part.items()
        )
    if isinstance(part, list):
        if not isinstance(whole, list) or len(whole) != len(part):
            return False
        return all(contains(one, wanted) for one, wanted in zip(whole, part, strict=True))
    return whole == part


def decode_body(body: bytes) -> object:
    """Returns a JSON object or list, else the text."""
    text = body.decode(errors="replace")
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict | list) else text


# -- the platform

UNKNOWN = PlatformAnswer(method="", url="", status=404)


@dataclass(frozen=True, slots=True)
class PlatformRequest:
    """A request that the gateway sent to the platform, and the status of its answer."""

    method: str
    url: str
    body: object
    status: int


@dataclass(slots=True)
class Platform:
    answers: Sequence[PlatformAnswer]
    url: str = ""
    requests: list[PlatformRequest] = field(default_factory=list)
    _used: set[int] = field(default_factory=set)  # the indexes of answers that served once
    _lock: Lock = field(default_factory=Lock)

    def answer(self, method: str, url: str, body: bytes) -> PlatformAnswer:
        with self._lock:
            fitting = [
                index
                for index, one in enumerate(self.answers)
                if one.method == method and matches(one.url, url)
            ]
            index = next((one for one in fitting if one not in self._used), None)
            if index is not None:
                self._used.add(index)
            answer = self.answers[fitting[-1] if index is None else index] if fitting else UNKNOWN
            self.requests.append(PlatformRequest(method, url, decode_body(body), answer.status))
            return answer


@contextmanager
def open_platform(answers: Sequence[PlatformAnswer]) -> Iterator[Platform]:
    """Serves a simulated platform on loopback in a thread until the end."""
    platform = Platform(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            answer = platform.answer(self.command, self.path, body)
            content = json.dumps(answer.body).encode() if answer.body is not None else b""
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815  # as the library calls them

        def log_message(self, format: str, *args: object) -> None:  # the name in the base class
            """Logs nothing: the report shows the requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    platform.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield platform
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# -- the play

STEP_TIMEOUT_S = 30.0
POLL_S = 0.02
_PAIRING_CODE = re.compile(r"\b[A-Z2-9]{4}-[A-Z2-9]{4}\b")
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
class StepResult:
    """A step with the gateway's answer, its requests, and the differences from the script."""

    step: Step
    status: int
    body: object
    requests: Sequence[PlatformRequest]
    problems: Sequence[str]

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.step.name,
            "ok": not self.problems,
            "problems": list(self.problems),
            "in": self.step.call.model_dump(),
            "answered": {"status": self.status, "body": self.body},
            "out": [asdict(one) for one in self.requests],
        }


def play(
    source: PluginSource,
    script: Script,
    report: Callable[[Sequence[str]], None],
    *,
    data_dir: Path,
) -> Sequence[StepResult]:
    """Plays the steps up to the first that fails, and reports each when it is over. Only compiled plugins are read
    from `data_dir`."""
    with TemporaryDirectory(prefix="exogate-") as folder, open_platform(script.answers) as platform:
        config = _config(source, script, platform.url, Path(folder))
        files = [one.path for one in config.plugins]
        reuse_compiled(data_dir / "plugins", config.gateway.data_dir / "plugins", files)
        return anyio.run(_play, config, script, platform, report)


async def _play(
    config: GatewayConfig,
    script: Script,
    platform: Platform,
    report: Callable[[Sequence[str]], None],
) -> Sequence[StepResult]:
    results: list[StepResult] = []
    running: list[Running] = []
    async with open_gateway(config, version=VERSION) as rooms, anyio.create_task_group() as group:
        await open_doors(rooms, group, running.append)
        (status,) = rooms.channels.statuses()
        is_refused = status.state == "refused"
        player = ScriptPlayer(rooms, running[0].url, status.name, script, platform)
        for step in () if is_refused else script.steps:
            results.append(await player.play(step))
            report(_lines(results[-1]))
            if results[-1].problems:
                break
        group.cancel_scope.cancel()
    if is_refused:
        raise BadPlugin(f"the channel is refused: {status.why}")
    return results


def _config(source: PluginSource, script: Script, base: str, folder: Path) -> GatewayConfig:
    """Builds an operator's configuration, with the address of the simulated platform."""
    config = {
        name: base + value if str(value).startswith("/") else value
        for name, value in script.config.items()
    }
    plugin = {
        "name": source.name,
        "path": str(source.file) if source.bundled is None else f"{BUNDLED}{source.bundled}",
        "capabilities": [*map(str, source.requested), f"http:{base}"],
    }
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
    return load(path, environment={}, home=folder, cwd=folder, known=known_names())


@dataclass(slots=True)
class ScriptPlayer:
    rooms: Gateway
    url: str
    channel: str
    script: Script
    platform: Platform

    async def play(self, step: Step) -> StepResult:
        before = len(self.platform.requests)
        status, content = await to_thread.run_sync(self._call, step.call)
        is_done = await self._wait_until_done()
        requests = self.platform.requests[before:]
        body = decode_body(content)
        problems = [*_check_answer(step, status, body), *self._check_requests(step, requests)]
        problems += [] if is_done else [f"answers are still unsent after {STEP_TIMEOUT_S:g} s"]
        await self._approve(requests)
        return StepResult(step, status, body, requests, problems)

    def _recipe(self) -> Verify:
        """Returns the recipe that verifies calls; the gateway has checked that there is one."""
        ((adapter,), config) = (self.rooms.current.plugins.adapters, self.script.config)
        description: Description = adapter.description
        return next(
            one
            for one in description.recipes
            if all(config.get(name) == value for name, value in one.when.items())
        )

    def _call(self, call: PlatformCall) -> tuple[int, bytes]:
        recipe = self._recipe()
        key = self.script.ed25519_seed or self.script.secrets.get(recipe.secret or "", "")
        now, body = self.rooms.shared.clock.now(), call.content
        headers = sign_headers(recipe, key, call.headers, body, now=now)
        query = f"?{call.query}" if call.query else ""
        address = urlsplit(self.url).netloc
        with closing(http.client.HTTPConnection(address, timeout=STEP_TIMEOUT_S)) as connection:
            path = f"/webhooks/{self.channel}{call.path}{query}"
            connection.request(call.method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()

    async def _wait_until_done(self) -> bool:
        """Waits until every turn has ended and every answer is sent or refused. False after the timeout."""
        with anyio.move_on_after(STEP_TIMEOUT_S):
            while self.rooms.front.intake.pending or await self._has_unsent():
                await self.rooms.shared.clock.sleep(POLL_S)
            return True
        return False

    async def _has_unsent(self) -> bool:
        tally = await self.rooms.shared.stores.outbox.tally()
        return any(count for (_, state), count in tally.items() if state in {"pending", "sending"})

    def _check_requests(self, step: Step, requests: Sequence[PlatformRequest]) -> Iterator[str]:
        """Compares the requests in order. A request that no step expects (typing, the setup) may come at any time."""
        outs = [out for one in self.script.steps for out in one.out]
        counted = [one for one in requests if any(_is_expected(out, one) for out in outs)]
        for out, one in zip_longest(step.out, counted):
            if one is None:
                yield f"did not ask {out.method} {out.url} {_short(out.body)}"
            elif out is None or not _is_expected(out, one):
                yield f"asked {one.method} {one.url} {_short(one.body)}"

    async def _approve(self, requests: Sequence[PlatformRequest]) -> None:
        """Approves each person who was sent a pairing code, as the operator would."""
        codes = {code for one in requests for code in _PAIRING_CODE.findall(json.dumps(one.body))}
        waiting = await self.rooms.access.list_pairings(channel=self.channel, limit=1)
        for code in codes if any(one.state == "asked" for one in waiting) else ():
            await self.rooms.access.approve(code, by="simulator")


def _check_answer(step: Step, status: int, body: object) -> Iterator[str]:
    wanted = step.answered
    if status != wanted.status:
        yield f"answered {status}, not {wanted.status}"
    if wanted.body is not None and not contains(body, wanted.body):
        yield f"answered {_short(body)}, without {_short(wanted.body)}"


def _is_expected(out: ExpectedRequest, request: PlatformRequest) -> bool:
    is_address = out.method == request.method and matches(out.url, request.url)
    return is_address and (out.body is None or contains(request.body, out.body))


def _short(body: object) -> str:
    text = json.dumps(body, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}…"


def _lines(result: StepResult) -> Sequence[str]:
    call = result.step.call
    return (
        f"{'✗' if result.problems else '✓'} {result.step.name}",
        f"    → {call.method} {call.path or '/'} {_short(decode_body(call.content))}",
        f"    ← {result.status} {_short(result.body)}",
        *(
            f"    ⇒ {one.method} {one.url} {_short(one.body)} : {one.status}"
            for one in result.requests
        ),
        *(f"    {problem}" for problem in result.problems),
    )
