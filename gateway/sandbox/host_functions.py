"""The host functions of guests, served in the gateway: each use checked against the grants, and counted."""

import base64
import binascii
import logging
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from anyio.lowlevel import checkpoint

from gateway.codec import decode, encode
from gateway.domain.errors import Denied, GatewayError
from gateway.domain.plugins import AdapterDescription, PluginDef
from gateway.domain.ports import (
    Clock,
    Fetch,
    FetchGrant,
    FetchRequest,
    HostFunction,
    HttpFailed,
    PluginSpace,
    ToolStore,
)
from gateway.domain.supervision import result_of
from gateway.domain.text import printable

# --------------------------------------------------------------------------------------------- use
MOST_NAMES = 100  # distinct ones of one plugin; the rest is counted together
OTHERS = "others"
_LONGEST = 200


class Uses(NamedTuple):
    """How often, by what was asked for."""

    granted: Mapping[str, int]
    denied: Mapping[str, int]


@dataclass(slots=True)
class CapabilityUse:
    """What each plugin used of its grants, and what it was denied, since the start."""

    _granted: dict[str, dict[str, int]] = field(default_factory=dict)
    _denied: dict[str, dict[str, int]] = field(default_factory=dict)

    def record_use(self, plugin: str, capability: str) -> None:
        _count(self._granted.setdefault(plugin, {}), capability)

    def record_denial(self, plugin: str, capability: str) -> None:
        """`capability` is what would have allowed it; a plugin may ask for anything."""
        times = _count(self._denied.setdefault(plugin, {}), capability)
        if times == 10 ** (len(str(times)) - 1):
            extra = {"plugin": plugin, "capability": capability[:200], "times": times}
            log.warning("plugin_denied", extra=extra)

    def of(self, plugin: str) -> Uses:
        return Uses(dict(self._granted.get(plugin, {})), dict(self._denied.get(plugin, {})))


def _count(counts: dict[str, int], capability: str) -> int:
    """What a plugin asked for may be its own words."""
    name = printable(capability[:_LONGEST])
    if name not in counts and len(counts) >= MOST_NAMES:
        name = OTHERS
    counts[name] = times = counts.get(name, 0) + 1
    return times


# ---------------------------------------------------------------------------------- host functions
log = logging.getLogger(__name__)

Answer = tuple[str, ...]  # "ok", "none" or "err", a text, and of an HTTP answer its body
MOST_RANDOM_BYTES = 64 * 1024
_STEP_BYTES = 3 * 256 * 1024  # whole groups of three, so that the pieces fit together
_SMALL_REQUEST = 64 * 1024  # characters
_TEXTS = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_BEHIND_HOST = re.compile(r"[/?#]")
NOT_KEPT = (
    "nothing is kept for a person in a request that belongs to no conversation: "
    "ask in a conversation (/v1 names one with X-Exogate-Session)"
)
LONGEST_WAIT_MS = 600_000  # the call's own end, and that of whoever fetches, come first


@dataclass(frozen=True, slots=True)
class HostDeps:
    """What host functions are made of."""

    fetch: Fetch
    store: ToolStore
    clock: Clock
    read_adapter: Callable[[str], AdapterDescription]  # raises ValueError
    functions: Mapping[str, HostFunction] = field(default_factory=dict)
    ledger: CapabilityUse = field(default_factory=CapabilityUse)


@dataclass(frozen=True, slots=True)
class Host:
    """Implements the CallHost of a call: one plugin's, on behalf of one person (None: nobody's).
    Without `keeps` nothing is written for that person."""

    deps: HostDeps
    plugin: PluginDef
    person: str | None = None
    keeps: bool = True
    may_act: Callable[[], bool] = lambda: True

    def log(self, level: str, message: str) -> None:
        number = {"debug": logging.DEBUG, "warn": logging.WARNING, "error": logging.ERROR}
        said = message.encode("unicode_escape").decode()  # no escape sequence reaches a terminal
        extra = {"plugin": self.plugin.name, "said": said}
        log.log(number.get(level, logging.INFO), "plugin_log", extra=extra)

    async def answer(self, function: str, arguments: Sequence[str]) -> Answer:
        """An operator's function may fail in any way: only its caller may notice."""
        facts = {"plugin": self.plugin.name, "function": function}
        answer = await result_of("host_function_failed", facts, self._known, function, arguments)
        return answer or ("err", "the host function failed; the operator finds why in the log")

    async def _known(self, function: str, arguments: Sequence[str]) -> Answer:
        try:
            return await self._answer(function, arguments)
        except (GatewayError, HttpFailed, ValueError) as error:
            return "err", str(error)

    async def _answer(self, function: str, arguments: Sequence[str]) -> Answer:
        if not self.may_act():
            raise Denied("the call is cut off: another gateway may work on its run")
        kind, _, verb = function.partition(".")
        match kind, *arguments:
            case "http", request:
                return await self._http(request)
            case "store", namespace, *texts:
                return await self._keep(verb, namespace, texts)
            case "clock", *_:
                self._require("clock")
                return "ok", str(int(self.deps.clock.now().timestamp() * 1000))
            case "random", count:
                self._require("random")
                return "ok", secrets.token_hex(min(int(count), MOST_RANDOM_BYTES))
            case "host", name, text:
                return "ok", await self._call(name, text)
        raise Denied(f"there is no host function {function[:64]}")

    async def _keep(self, verb: str, namespace: str, texts: Sequence[str]) -> Answer:
        store = self.deps.store
        space = self._space(namespace, writes=verb in {"set", "delete"})
        match verb, *texts:
            case "get", key:
                kept = await store.get(space, key)
                return ("none", "") if kept is None else ("ok", kept)
            case "list", prefix:
                return "ok", encode(list(await store.list(space, prefix))).decode()
            case "set", key, value:
                if space.person is not None and not self.keeps:
                    raise Denied(NOT_KEPT)
                await store.set(space, key, value)
            case "delete", key:
                await store.delete(space, key)
            case _:
                raise Denied(f"there is no host function store.{verb[:64]}")
        return "ok", ""

    def _require(self, function: str) -> None:
        self._check(f"host_function:{function}", is_granted=function in self.plugin.functions)

    def _check(self, capability: str, *, is_granted: bool) -> None:
        name, ledger = self.plugin.name, self.deps.ledger
        if is_granted:
            ledger.record_use(name, capability)
            return
        ledger.record_denial(name, capability)
        granted = ", ".join(map(str, self.plugin.capabilities)) or "nothing"
        raise Denied(f"{name} is not granted {capability[:200]} (granted: {granted})")

    def _space(self, namespace: str, *, writes: bool = False) -> PluginSpace:
        grant = self.plugin.store_grant(namespace)
        allowed = grant is not None and not (writes and grant.is_read_only)
        self._check(str(grant) if grant and allowed else f"store:{namespace}", is_granted=allowed)
        assert grant is not None
        person = None if grant.is_shared else self.person or ""
        return PluginSpace(self.plugin.name, namespace, person)

    async def _call(self, name: str, text: str) -> str:
        self._require(name)
        function = self.deps.functions.get(name)
        if function is None:
            raise Denied(f"the operator registered no host function {name[:64]}")
        return await function(text, self.plugin)

    async def _http(self, request: str) -> Answer:
        """Status and headers as JSON, and the body as it came: a large one is not read here."""
        _check_flat(request)
        ask = _ask(decode(request))
        if not self.plugin.origins:
            self._check("http:HOST", is_granted=False)
        leave = FetchGrant(self.plugin.origins, self.plugin.secrets)
        try:
            answer = await self.deps.fetch.fetch(ask, leave)
        except Denied as error:
            self.deps.ledger.record_denial(self.plugin.name, f"http:{_place(ask.url)}")
            raise Denied(f"{self.plugin.name}: {error}") from error
        self.deps.ledger.record_use(self.plugin.name, f"http:{_place(ask.url)}")
        told: dict[str, object] = {"status": answer.status, "headers": dict(answer.headers)}
        try:
            told["body"], body = "body", answer.body.decode()
        except UnicodeDecodeError:
            told["body"], body = "body_base64", await _packed(answer.body)
        return "ok", encode(told).decode(), body


def _check_flat(request: str) -> None:
    """A worker passes on what is flat. Of a taken-over one nothing is unpacked that would become many
    times larger. Raises ValueError."""
    if len(request) > _SMALL_REQUEST and len(_TEXTS.sub("", request)) > _SMALL_REQUEST:
        raise ValueError("a request is a few texts, and not nested")


def _ask(request: object) -> FetchRequest:
    """Raises ValueError with what is wrong."""
    if not isinstance(request, dict) or not isinstance(request.get("url"), str):
        raise ValueError('a request is a JSON object with "url", and maybe method, headers, body')
    method, headers = request.get("method") or "GET", request.get("headers") or {}
    timeout_ms = request.get("timeout_ms") or 30_000
    if not _are_texts(headers):
        raise ValueError('"headers" has to be an object of texts')
    if not isinstance(timeout_ms, int | float) or not isinstance(method, str):
        raise ValueError('"method" has to be a text, "timeout_ms" a number')
    wait_s = max(0.001, min(timeout_ms, LONGEST_WAIT_MS) / 1000)
    return FetchRequest(
        method.upper(), request["url"], tuple(headers.items()), _body(request), wait_s
    )


def _are_texts(headers: object) -> bool:
    return isinstance(headers, dict) and all(isinstance(v, str) for v in headers.values())


def _body(request: Mapping[str, object]) -> bytes:
    body, packed = request.get("body"), request.get("body_base64")
    if body is None and packed is None:
        return b""
    if isinstance(body, str) and packed is None:
        return body.encode()
    if isinstance(packed, str) and body is None:
        try:
            return base64.b64decode(packed, validate=True)
        except binascii.Error as error:
            raise ValueError('"body_base64" is not base64') from error
    raise ValueError('give "body" as a text, or "body_base64", not both')


async def _packed(body: bytes) -> str:
    """As base64, and lets others run in between."""
    pieces: list[str] = []
    for at in range(0, len(body), _STEP_BYTES):
        pieces.append(base64.b64encode(body[at : at + _STEP_BYTES]).decode())
        await checkpoint()
    return "".join(pieces)


def _place(url: str) -> str:
    """For the ledger: the same however it is written, and of what may hold anything nothing."""
    scheme, _, rest = url[:300].lower().partition("://")
    host = _BEHIND_HOST.split(rest, maxsplit=1)[0].rpartition("@")[2].removesuffix(".")
    return host if scheme == "https" else f"{scheme}://{host}"
