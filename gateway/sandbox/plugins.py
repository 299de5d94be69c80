"""The configured plugins: descriptions, grants, loading, and calls of their tools and adapters."""

import hashlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Protocol
from weakref import WeakValueDictionary

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.codec import encode
from gateway.domain.agents import AgentDef
from gateway.domain.errors import AdapterFailed, Denied, GatewayError, ToolFailed
from gateway.domain.events import AuditEvent
from gateway.domain.ids import PluginKind
from gateway.domain.mcp import McpServers, McpStatus, UnreachableServer
from gateway.domain.model import ToolSpec
from gateway.domain.plugins import (
    AdapterDescription,
    PluginAccount,
    PluginDef,
    PluginInfo,
)
from gateway.domain.ports import (
    Audit,
    Clock,
    Fetched,
    FetchGrant,
    FetchRequest,
    HostFunction,
    Tool,
    ToolScope,
)
from gateway.domain.supervision import contain
from gateway.sandbox.cache import CompileCache, Compiled, Uncompiled
from gateway.sandbox.host_functions import Host, HostDeps
from gateway.sandbox.pool import Outcome, Pool, open_pool
from gateway.sandbox.protocol import Bounds, Inspection, Program, interface_of

# ------------------------------------------------------------------------------------------ grants
# Functions of Extism that need a grant; the others only connect guest and host.
_EXTISM = {
    "http_request": "http:HOST",
    "var_get": "store:vars",
    "var_set": "store:vars",
}
_INTERFACES = {
    "http": "http:HOST",
    "store": "store:NAME",
    "clock": "host_function:clock",
    "random": "host_function:random",
    "host": "host_function:NAME",
}


class PluginRefused(GatewayError):
    """A plugin is not loaded; the text names the plugin, the problem and the fix."""

    code = "plugin_refused"

    def __init__(self, plugin: str, problem: str) -> None:
        super().__init__(f"plugin {plugin}: {problem}")
        self.plugin, self.problem = plugin, problem


def needed_capabilities(inspection: Inspection) -> dict[str, str]:
    """Maps the imports of the host to the capabilities that they need; other imports are
    checked only when called."""
    found: dict[str, str] = {}
    for name in inspection.imports:
        interface, _, function = name.partition("#")
        ours = interface_of(interface)
        if ours in _INTERFACES:
            found[name] = _INTERFACES[ours]
        elif interface == "extism:host/env" and function in _EXTISM:
            found[name] = _EXTISM[function]
        elif interface == "extism:host/user":
            found[name] = f"host_function:{function}"
    return found


def missing_capabilities(plugin: PluginDef, inspection: Inspection) -> dict[str, str]:
    """Returns the needed capabilities without a grant, by import."""
    return {
        name: need
        for name, need in needed_capabilities(inspection).items()
        if not _has(plugin, need)
    }


def require_granted(plugin: PluginDef, inspection: Inspection) -> None:
    """Raises PluginRefused for a missing grant, unless the plugin has `deny_unused`."""
    lacking = missing_capabilities(plugin, inspection)
    if lacking and not plugin.deny_unused:
        name, need = next(iter(lacking.items()))
        others = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
        raise PluginRefused(
            plugin.name,
            f"it imports {name}{others}, which needs the capability {need}; grant it, or set "
            "deny_unused = true if the plugin works without it",
        )


def _has(plugin: PluginDef, need: str) -> bool:
    granted = {str(capability) for capability in plugin.capabilities}
    match need:
        case "http:HOST":
            return bool(plugin.origins)
        case "store:NAME":
            return any(one.startswith("store:") for one in granted)
        case "store:vars":
            return plugin.store_grant("vars") is not None
        case "host_function:NAME":
            return bool(plugin.functions - {"clock", "random"})
    return need in granted


# ------------------------------------------------------------------------------------ descriptions
LARGEST = 256 * 1024  # characters of a description
LONGEST_DESCRIPTION = 4096
MOST_TOOLS = 64
REPEATABLE = ("readOnlyHint", "idempotentHint")  # annotations: a second call changes nothing

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Sentence = Annotated[str, Field(max_length=LONGEST_DESCRIPTION)]


class _Said(BaseModel):
    """A strict model that ignores unknown keys."""

    model_config = ConfigDict(strict=True)


class ToolDescription(_Said):
    """One tool of a plugin."""

    name: Name
    description: Sentence = ""
    parameters: dict[str, Any] = Field(default_factory=dict, description="JSON Schema")
    category: str | None = Field(None, max_length=64)
    agent_scope: list[str] = Field(default_factory=list, max_length=64)
    annotations: dict[str, Any] = Field(default_factory=dict)


class PluginDescription(_Said):
    """The answer of a tool plugin's `describe`."""

    name: str = Field(max_length=64)
    version: str = Field("", max_length=64)
    description: Sentence = ""
    tools: list[ToolDescription] = Field(min_length=1, max_length=MOST_TOOLS)


@dataclass(frozen=True, slots=True)
class DescribedPlugin:
    """The checked description of a plugin. `names` maps the model's names to the plugin's own."""

    version: str
    description: str
    tools: tuple[ToolSpec, ...]
    names: dict[str, str]
    adapter: Any = None  # the description of a channel adapter, as `read_adapter` returns it


def parse_description(
    plugin: PluginDef,
    kind: PluginKind,
    answer: str,
    read_adapter: Callable[[str], AdapterDescription],
) -> DescribedPlugin:
    """Reads a description. Raises ValueError with the problem on one line."""
    if len(answer) > LARGEST:
        raise ValueError(f"its description is larger than {LARGEST // 1024} KiB")
    if kind == "channel":
        adapter = read_adapter(answer)
        version, about = adapter.version[:64], adapter.description[:LONGEST_DESCRIPTION]
        return DescribedPlugin(plain(version), plain(about), (), {}, adapter)
    try:
        said = PluginDescription.model_validate_json(answer)
    except ValidationError as error:
        raise ValueError(f"its description is invalid: {_first(error)}") from error
    names = {_tool_name(plugin, tool.name): tool for tool in said.tools}
    if len(names) < len(said.tools):
        raise ValueError("its description is invalid: two of its tools have the same name")
    tools = tuple(
        ToolSpec(
            name,
            plain(tool.description),
            encode({"type": "object", **tool.parameters}).decode(),
            family=plugin.name,
            category=None if tool.category is None else plain(tool.category),
            agent_scope=tuple(tool.agent_scope),
            may_repeat=any(tool.annotations.get(hint) is True for hint in REPEATABLE),
        )
        for name, tool in names.items()
    )
    own = {name: tool.name for name, tool in names.items()}
    return DescribedPlugin(plain(said.version), plain(said.description), tools, own)


def _tool_name(plugin: PluginDef, own: str) -> str:
    """Returns the name of a tool for the model. The prefix keeps a third-party plugin from taking the
    name of another plugin's tool; bundled plugins are trusted."""
    return own if plugin.is_bundled or own == plugin.name else f"{plugin.name}__{own}"


def _first(error: ValidationError) -> str:
    """Returns the place and the problem of the first error, without the value, which has no bound."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]


def plain(text: str) -> str:
    """Replaces control characters, because terminals show the text."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


# ----------------------------------------------------------------------------------------- plugins
log = logging.getLogger(__name__)

DESCRIBE_S = 2.0
FUEL_A_SECOND = 2_000_000_000
LONGEST_ERROR = 4096
MOST_INPUT_BYTES = 1024 * 1024
MOST_EVENT_BYTES = 8 * MOST_INPUT_BYTES  # a platform's body, as a JSON string in JSON
# For the model, after the reason why a call has no answer.
_ADVICE = "Do not repeat the same call; use other arguments or continue without it."
Settled = Callable[[PluginInfo, Sequence[Tool]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plugin that is compiled, granted and described."""

    plugin: PluginDef
    program: Program
    compiled: Compiled
    described: DescribedPlugin


@dataclass(frozen=True, slots=True)
class PluginTool:
    """Implements the Tool port."""

    spec: ToolSpec
    name: str  # the plugin's own name of the tool
    loaded: Loaded
    sandbox: "Sandbox"

    async def call(self, arguments: Mapping[str, object], scope: ToolScope) -> str:
        plugin = self.loaded.plugin
        # The id is the same for every call of a session, and another one for every plugin.
        session = hashlib.sha256(f"{plugin.name}\0{scope.session_key}".encode()).hexdigest()[:32]
        asked = {
            "tool": self.name,
            "arguments": arguments,
            "call_id": scope.call_id,
            "session": {"id": session},
            "config": plugin.config,
        }
        text, kept = encode(asked).decode(), scope.is_kept
        host = Host(self.sandbox.deps, plugin, scope.person, keeps=kept, may_act=scope.may_act)
        outcome = await self.sandbox.run(self.loaded, "handle-tool-call", text, host)
        if outcome.status == "ok":
            return outcome.text
        if outcome.status == "err":
            raise ToolFailed(plain(outcome.text[:LONGEST_ERROR]) or f"{self.spec.name} failed.")
        raise ToolFailed(f"{self.spec.name} gave no answer: {outcome.text}. {_ADVICE}")


@dataclass(frozen=True, slots=True)
class PluginAdapter:
    """Implements the Adapter of the channels."""

    plugin: PluginDef
    description: Any  # as `read_adapter` returns it
    loaded: Loaded
    sandbox: "Sandbox" = field(compare=False)

    async def parse(self, event: str) -> str:
        return await self._translate("parse-incoming", event)

    async def format(self, reply: str) -> str:
        return await self._translate("format-outgoing", reply)

    async def _translate(self, function: str, text: str) -> str:
        host, most = Host(self.sandbox.deps, self.plugin), MOST_EVENT_BYTES
        outcome = await self.sandbox.run(self.loaded, function, text, host, most_bytes=most)
        if outcome.status == "ok":
            return outcome.text
        why = plain(outcome.text[:LONGEST_ERROR])
        raise AdapterFailed(f"plugin {self.plugin.name}: {function} failed: {why}")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Loads plugins and calls them."""

    pool: Pool
    compiling: CompileCache
    deps: HostDeps
    _writers: WeakValueDictionary[tuple[str, str | None], anyio.Lock] = field(
        default_factory=WeakValueDictionary
    )

    async def load(self, plugin: PluginDef) -> Loaded:
        """Compiles, checks and describes a plugin. Raises PluginRefused."""
        try:
            compiled = await self.compiling.compile(plugin.path, pinned=plugin.sha256)
        except Uncompiled as error:
            raise PluginRefused(plugin.name, str(error)) from error
        require_granted(plugin, compiled.inspection)
        program = _program(plugin, compiled)
        host = Host(self.deps, plugin)
        outcome = await self.pool.call(program, "describe", "", host, timeout_s=DESCRIBE_S)
        if outcome.status != "ok":
            why = plain(outcome.text[:LONGEST_ERROR])
            raise PluginRefused(plugin.name, f"describe failed: {why}")
        try:
            kind = compiled.inspection.kind
            said = parse_description(plugin, kind, outcome.text, self.deps.read_adapter)
        except ValueError as error:
            raise PluginRefused(plugin.name, str(error)) from error
        return Loaded(plugin, _with_room(program, said.adapter), compiled, said)

    async def run(
        self,
        loaded: Loaded,
        function: str,
        text: str,
        host: Host,
        *,
        most_bytes: int = MOST_INPUT_BYTES,
    ) -> Outcome:
        """Calls a function in a new instance."""
        if len(text.encode()) > most_bytes:
            return Outcome("invalid", f"its arguments are larger than {most_bytes // 1024} KiB")
        within_s = loaded.plugin.limits.timeout_s
        async with self._alone(loaded.plugin, host.person):
            return await self.pool.call(loaded.program, function, text, host, timeout_s=within_s)

    def _alone(self, plugin: PluginDef, person: str | None) -> AbstractAsyncContextManager[object]:
        """Returns a lock for a plugin that may write, so that calls do not change what another one
        reads from the same space."""
        writable = [one for one in plugin.stores if not one.is_read_only]
        if not writable:
            return nullcontext()
        owner = None if any(one.is_shared for one in writable) else person
        return self._writers.setdefault((plugin.name, owner), anyio.Lock())

    def tools(self, loaded: Loaded) -> tuple[PluginTool, ...]:
        names = loaded.described.names
        return tuple(
            PluginTool(spec, names[spec.name], loaded, self) for spec in loaded.described.tools
        )

    def adapter(self, loaded: Loaded) -> PluginAdapter | None:
        """Returns the channel adapter of a plugin; None if it is a tool."""
        description = loaded.described.adapter
        if description is None:
            return None
        return PluginAdapter(loaded.plugin, description, loaded, self)


@dataclass(slots=True)
class Plugins:
    """All configured plugins. `settled` is called for each plugin that is loaded or refused after
    the gateway has started to serve."""

    infos: tuple[PluginInfo, ...] = ()
    tools: tuple[Tool, ...] = ()
    adapters: tuple[Any, ...] = ()  # each implements the Adapter of the channels
    settled: Settled | None = None
    known: Mapping[str, Loaded] = field(default_factory=dict)  # loaded plugins to reuse
    _configured: tuple[PluginDef, ...] = ()
    _found: dict[str, Loaded | str] = field(default_factory=dict)
    _coming: dict[str, anyio.Event] = field(default_factory=dict)
    _sandbox: Sandbox | None = None
    _published: set[str] = field(default_factory=set)
    _loaded: dict[str, Loaded] = field(default_factory=dict)

    def unchanged(
        self, plugins: Iterable[PluginDef], digests: Mapping[Path, str]
    ) -> Mapping[str, Loaded]:
        """Returns the loaded plugins with an unchanged configuration and file; `digests` holds the
        current sha256 of each file."""
        return {
            one.name: loaded
            for one in plugins
            if (loaded := self._loaded.get(one.name)) is not None
            and loaded.plugin == one
            and loaded.compiled.sha256 == digests.get(one.path)
        }

    async def load(self, sandbox: Sandbox, plugins: Sequence[PluginDef]) -> None:
        """Loads all plugins in parallel. A plugin that cannot be loaded is logged and left out."""
        async with anyio.create_task_group() as group:
            await self.load_within(sandbox, plugins, group, wait_s=math.inf)

    async def load_within(
        self,
        sandbox: Sandbox,
        plugins: Sequence[PluginDef],
        group: TaskGroup,
        *,
        wait_s: float,
    ) -> None:
        """Loads all plugins, but waits at most `wait_s`; the rest continues in `group`."""
        self._sandbox, self._configured = sandbox, tuple(plugins)
        enabled = [one for one in plugins if one.is_enabled]
        self._coming = {one.name: anyio.Event() for one in enabled}
        for one in enabled:
            work = partial(self._load, sandbox, one)
            group.start_soon(contain, f"plugin:{one.name}", work)
        with anyio.move_on_after(wait_s):
            await self.ready(self._coming)
        self._publish_loaded(sandbox)

    async def ready(self, names: Iterable[str]) -> None:
        """Waits until the named plugins are loaded or refused; ignores other names."""
        for name in names:
            if name in self._coming:
                await self._coming[name].wait()

    @property
    def is_complete(self) -> bool:
        return all(one.is_set() for one in self._coming.values())

    async def _load(self, sandbox: Sandbox, plugin: PluginDef) -> None:
        name = plugin.name
        try:
            self._found[name] = self.known.get(name) or await sandbox.load(plugin)
        except PluginRefused as error:
            self._found[name] = error.problem
            log.warning("plugin_refused", extra={"plugin": name, "why": str(error)})
        finally:
            self._found.setdefault(name, "it could not be loaded; the log says why")
            self._coming[name].set()
        if self.settled is not None:
            await self._report_settled(sandbox, plugin)

    async def on_settled(self, settled: Settled) -> None:
        """Sets `settled`, and calls it for the plugins that settled since `load_within`."""
        self.settled, sandbox = settled, self._sandbox
        late = [one for one in self._configured if one.name in self._found.keys() - self._published]
        for plugin in late:
            assert sandbox is not None
            await self._report_settled(sandbox, plugin)

    async def _report_settled(self, sandbox: Sandbox, plugin: PluginDef) -> None:
        assert self.settled is not None
        self._publish_loaded(sandbox)
        found = self._found[plugin.name]
        tools = sandbox.tools(found) if isinstance(found, Loaded) else ()
        await self.settled(info(plugin, found), tools)

    def _publish_loaded(self, sandbox: Sandbox) -> None:
        self._published |= self._found.keys()
        self.infos = tuple(self._info(plugin) for plugin in self._configured)
        found = [self._found.get(plugin.name) for plugin in self._configured]
        self._loaded = {one.plugin.name: one for one in found if isinstance(one, Loaded)}
        # The gate keeps the first tool of a name, so a bundled tool cannot be replaced.
        bundled_first = sorted(self._loaded.values(), key=lambda one: not one.plugin.is_bundled)
        self.tools = tuple(tool for one in bundled_first for tool in sandbox.tools(one))
        adapters = map(sandbox.adapter, self._loaded.values())
        self.adapters = tuple(one for one in adapters if one is not None)

    def _info(self, plugin: PluginDef) -> PluginInfo:
        found = info(plugin, self._found.get(plugin.name))
        is_coming = plugin.name in self._coming and plugin.name not in self._found
        return replace(found, state="compiling") if is_coming else found

    def account(self, name: str) -> PluginAccount | None:
        """Returns the capabilities of a plugin and their use; None for an unknown name."""
        found = next((one for one in self.infos if one.name == name), None)
        if found is None:
            return None
        loaded, account = self._loaded.get(name), PluginAccount(found)
        if self._sandbox is not None:
            used, denied = self._sandbox.deps.ledger.of(name)
            account = PluginAccount(found, used=used, denied=denied)
        if loaded is None:
            return account
        inspection = loaded.compiled.inspection
        needs = needed_capabilities(inspection)
        return replace(
            account,
            guest=inspection.guest,
            needs={one: needs.get(one) for one in inspection.imports},
            lacking=frozenset(missing_capabilities(loaded.plugin, inspection)),
        )


def info(plugin: PluginDef, found: Loaded | str | None) -> PluginInfo:
    """Returns the public facts of a plugin; `found` is the plugin, the reason of its refusal, or None
    for a disabled one."""
    facts = PluginInfo(
        plugin.name,
        "disabled" if found is None else "refused",
        capabilities=tuple(map(str, plugin.capabilities)),
        sha256=plugin.sha256,
        why=found if isinstance(found, str) else None,
    )
    if not isinstance(found, Loaded):
        return facts
    return replace(
        facts,
        state="loaded",
        kind=found.compiled.inspection.kind,
        version=found.described.version,
        description=found.described.description,
        tools=found.described.tools,
        sha256=found.compiled.sha256,
    )


def _program(plugin: PluginDef, compiled: Compiled) -> Program:
    limits = plugin.limits
    bounds = Bounds(
        memory_bytes=limits.memory_mb << 20,
        fuel=limits.fuel or int(limits.timeout_s * FUEL_A_SECOND),
        output_bytes=limits.output_kb << 10,
    )
    texts = tuple((k, v) for k, v in plugin.config.items() if isinstance(v, str))
    guest = compiled.inspection.guest
    return Program(str(compiled.path), guest, bounds, texts, limits.concurrency)


def _with_room(program: Program, adapter: AdapterDescription | None) -> Program:
    """Raises the output bound of an adapter by its largest call, which its output may repeat."""
    more_bytes = min(adapter.largest_call if adapter else 0, MOST_EVENT_BYTES)
    bounds = replace(program.bounds, output_bytes=program.bounds.output_bytes + more_bytes)
    return replace(program, bounds=bounds)


# ----------------------------------------------------------------------------------------- opening
HOST_FUNCTIONS = "exogate.host_functions"
LOAD_WAIT_S = 5.0  # for compiling plugins, before the gateway serves without them
TURN_WAITS_S = 10.0


@asynccontextmanager
async def open_sandbox(
    cache: Path, deps: HostDeps, *, workers: int = 1, idle_s: float = 300.0
) -> AsyncIterator[Sandbox]:
    """Opens a sandbox and creates `cache`, where only the gateway may write."""
    compiling = await to_thread.run_sync(_in_private, cache, deps.clock.now())
    async with open_pool(cache, workers=workers, idle_s=idle_s, clock=deps.clock) as pool:
        yield Sandbox(pool, compiling, deps)


def _in_private(cache: Path, now: datetime) -> CompileCache:
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    cache.chmod(0o700)
    compiling = CompileCache(cache)
    compiling.tidy(now)
    return compiling


class NoFetch:
    """The Fetch port if no plugin may reach any host."""

    async def fetch(self, ask: FetchRequest, leave: FetchGrant) -> Fetched:
        raise Denied("no request is allowed, because no host is granted")


def host_functions(
    plugins: Sequence[PluginDef], own: Mapping[str, HostFunction]
) -> Mapping[str, HostFunction]:
    """Returns the gateway's own host functions, and the granted ones of installed packages.

    A package offers a function as an entry point of the group `exogate.host_functions`.
    """
    functions = dict(own)
    wanted = {name for plugin in plugins for name in plugin.functions} - {"clock", "random"}
    for name in wanted - functions.keys():
        found = tuple(entry_points(group=HOST_FUNCTIONS, name=name))
        if not found:
            log.warning("host_function_missing", extra={"function": name})
        for one in found:
            try:
                functions[name] = one.load()
            except Exception:  # the import of a package can raise any error
                extra = {"function": name, "package": one.value}
                log.exception("host_function_unloadable", extra=extra)
    return functions


class Offering(Protocol):
    """The parts of the gate that late plugins change."""

    foreign: McpServers

    def renew(self, family: str, tools: Sequence[Tool]) -> None: ...


@dataclass(frozen=True, slots=True)
class Coming:
    """Wraps an McpServers port while plugins compile: a turn waits up to TURN_WAITS_S for the plugins of
    its agent."""

    plugins: Plugins
    behind: McpServers

    async def prepare(self, agent: AgentDef) -> Sequence[UnreachableServer]:
        with anyio.move_on_after(min(TURN_WAITS_S, agent.limits.timeout_seconds)):
            await self.plugins.ready(agent.tools)
        return await self.behind.prepare(agent)

    def statuses(self) -> Sequence[McpStatus]:
        return self.behind.statuses()

    def outcomes(self) -> Mapping[tuple[str, str], int]:
        return self.behind.outcomes()


async def offer_late_plugins(plugins: Plugins, gate: Offering, audit: Audit, clock: Clock) -> None:
    """Offers the tools of plugins that are loaded after the start."""
    behind = gate.foreign
    if not plugins.is_complete:
        gate.foreign = Coming(plugins, behind)

    async def settled(info: PluginInfo, tools: Sequence[Tool]) -> None:
        if tools:
            gate.renew(info.name, tools)
        if plugins.is_complete:
            gate.foreign = behind
        extra = {"plugin": info.name, "state": info.state}
        log.info("plugin_settled", extra=extra)
        if info.state == "refused":
            facts = {"plugin": info.name, "why": info.why}
            await audit.append(AuditEvent(clock.now(), "plugin.refused", "config", facts))

    await plugins.on_settled(settled)
