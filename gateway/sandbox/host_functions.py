"""The host functions of guests: served in the gateway, checked against the grants, and counted."""

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
MOST_NAMES = 100  # distinct names of one plugin; OTHERS counts the rest
OTHERS = "others"
_LONGEST = 200


class Uses(NamedTuple):
    """Counts by capability."""

    granted: Mapping[str, int]
    denied: Mapping[str, int]


@dataclass(slots=True)
class CapabilityUse:
    """The granted and denied uses of each plugin since the start."""

    _granted: dict[str, dict[str, int]] = field(default_factory=dict)
    _denied: dict[str, dict[str, int]] = field(default_factory=dict)

    def record_use(self, plugin: str, capability: str) -> None:
        _count(self._granted.setdefault(plugin, {}), capability)

    def record_denial(self, plugin: str, capability: str) -> None:
        """Counts a denied use; `capability` would have allowed it and may be the plugin's words."""
        times = _count(self._denied.setdefault(plugin, {}), capability)
        if times == 10 ** (len(str(times)) - 1):
            extra = {"plugin": plugin, "capability": capability[:200], "times": times}
            log.warning("plugin_denied", extra=extra)

    def of(self, plugin: str) -> Uses:
        return Uses(dict(self._granted.get(plugin, {})), dict(self._denied.get(plugin, {})))


def _count(counts: dict[str, int], capability: str) -> int:
    """Counts a use and returns the count. A plugin chooses names, so they are cut and bounded."""
    name = printable(capability[:_LONGEST])
    if name not in counts and len(counts) >= MOST_NAMES:
        name = OTHERS
    counts[name] = times = counts.get(name, 0) + 1
    return times


# ---------------------------------------------------------------------------------- host functions
log = logging.getLogger(__name__)

Answer = tuple[str, ...]  # "ok", "none" or "err", a text, and the body of an HTTP answer
MOST_RANDOM_BYTES = 64 * 1024
_STEP_BYTES = 3 * 256 * 1024  # a multiple of three, so that pieces of base64 can be joined
_SMALL_REQUEST = 64 * 1024  # characters
_TEXTS = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_BEHIND_HOST = re.compile(r"[/?#]")
NOT_KEPT = (
    "nothing can be stored for a person in a request without a conversation; "
    "use a conversation (on /v1, the header X-Exogate-Session)"
)
LONGEST_WAIT_MS = 600_000  # the deadlines of the call and of the HTTP client are shorter


@dataclass(frozen=True, slots=True)
class HostDeps:
    """The dependencies of host functions."""

    fetch: Fetch
    store: ToolStore
    clock: Clock
    read_adapter: Callable[[str], AdapterDescription]  # raises ValueError
    functions: Mapping[str, HostFunction] = field(default_factory=dict)
    ledger: CapabilityUse = field(default_factory=CapabilityUse)


@dataclass(frozen=True, slots=True)
class Host:
    """Implements CallHost for one plugin on behalf of one person; None means no person. Without
    `keeps` nothing is written for the person."""

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
        """Answers a host call. A failure of an operator's function reaches only its caller."""
        facts = {"plugin": self.plugin.name, "function": function}
        answer = await result_of("host_function_failed", facts, self._try, function, arguments)
        return answer or ("err", "the host function failed; the log of the gateway has the reason")

    async def _try(self, function: str, arguments: Sequence[str]) -> Answer:
        try:
            return await self._answer(function, arguments)
        except (GatewayError, HttpFailed, ValueError) as error:
            return "err", str(error)

    async def _answer(self, function: str, arguments: Sequence[str]) -> Answer:
        if not self.may_act():
            raise Denied(
                "the call was cut off, because another gateway may have taken over its run"
            )
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
            raise Denied(f"no host function {name[:64]} is registered")
        return await function(text, self.plugin)

    async def _http(self, request: str) -> Answer:
        """Returns status and headers as JSON, and the unparsed body, which may be large."""
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
        head: dict[str, object] = {"status": answer.status, "headers": dict(answer.headers)}
        try:
            head["body"], body = "body", answer.body.decode()
        except UnicodeDecodeError:
            head["body"], body = "body_base64", await _encode_body(answer.body)
        return "ok", encode(head).decode(), body


def _check_flat(request: str) -> None:
    """Raises ValueError for a large nested request. A worker sends only flat ones; the JSON of a
    compromised worker could grow many times when parsed."""
    if len(request) > _SMALL_REQUEST and len(_TEXTS.sub("", request)) > _SMALL_REQUEST:
        raise ValueError("a request must be flat")


def _ask(request: object) -> FetchRequest:
    """Reads a request. Raises ValueError with the problem."""
    if not isinstance(request, dict) or not isinstance(request.get("url"), str):
        raise ValueError('a request must be a JSON object with "url"')
    method, headers = request.get("method") or "GET", request.get("headers") or {}
    timeout_ms = request.get("timeout_ms") or 30_000
    if not _are_texts(headers):
        raise ValueError('"headers" must be an object of strings')
    if not isinstance(timeout_ms, int | float) or not isinstance(method, str):
        raise ValueError('"method" must be a string, "timeout_ms" a number')
    wait_s = max(0.001, min(timeout_ms, LONGEST_WAIT_MS) / 1000)
    sent, body = tuple(headers.items()), _body(request)
    return FetchRequest(method.upper(), request["url"], sent, body, wait_s)


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
    raise ValueError('"body" and "body_base64" must be strings, and only one may be set')


async def _encode_body(body: bytes) -> str:
    """Returns base64 and lets other tasks run in between."""
    pieces: list[str] = []
    for at in range(0, len(body), _STEP_BYTES):
        pieces.append(base64.b64encode(body[at : at + _STEP_BYTES]).decode())
        await checkpoint()
    return "".join(pieces)


def _place(url: str) -> str:
    """Returns the host of a URL for the ledger in one spelling, without credentials, path or query."""
    scheme, _, rest = url[:300].lower().partition("://")
    host = _BEHIND_HOST.split(rest, maxsplit=1)[0].rpartition("@")[2].removesuffix(".")
    return host if scheme == "https" else f"{scheme}://{host}"
