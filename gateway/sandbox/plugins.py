"""Configured plugins become loaded or refused ones; a loaded one's tools can be called."""

import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import anyio
from anyio.abc import TaskGroup

from gateway.codec import encode
from gateway.domain.errors import AdapterFailed, ToolFailed
from gateway.domain.model import ToolSpec
from gateway.domain.plugins import AdapterSaid, PluginAccount, PluginDef, PluginInfo
from gateway.domain.ports import Tool, ToolScope
from gateway.domain.supervision import contained
from gateway.sandbox.compiling import Compiled, Compiling, Uncompiled
from gateway.sandbox.describing import Described, described, plain
from gateway.sandbox.grants import PluginRefused, missing, needed, require_granted
from gateway.sandbox.hosting import Host, Means
from gateway.sandbox.ledger import UseLedger
from gateway.sandbox.links import Outcome
from gateway.sandbox.pool import Pool
from gateway.sandbox.programs import Bounds, Program

log = logging.getLogger(__name__)

DESCRIBE_S = 2.0
FUEL_A_SECOND = 2_000_000_000
LONGEST_ERROR = 4096
MOST_INPUT_BYTES = 1024 * 1024
MOST_EVENT_BYTES = 8 * MOST_INPUT_BYTES  # a body of a platform, as a JSON text in JSON
# Why there is no answer, as a model is told; the rest of the sentence is the outcome's own.
_ADVICE = "Do not repeat the same call; use other arguments or do without it."


Settled = Callable[[PluginInfo, Sequence[Tool]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plugin that passed its trial."""

    plugin: PluginDef
    program: Program
    compiled: Compiled
    described: Described


@dataclass(frozen=True, slots=True)
class PluginTool:
    """Implements the Tool port."""

    spec: ToolSpec
    name: str  # the plugin's own
    loaded: Loaded
    sandbox: "Sandbox"

    async def call(self, arguments: Mapping[str, object], scope: ToolScope) -> str:
        plugin = self.loaded.plugin
        asked = {
            "tool": self.name,
            "arguments": arguments,
            "call_id": scope.call_id,
            "session": {"id": _opaque(plugin.name, str(scope.session_key))},
            "config": plugin.config,
        }
        text = encode(asked).decode()
        outcome = await self.sandbox.run(
            self.loaded,
            "handle-tool-call",
            text,
            person=scope.person,
            keeps=scope.is_kept,
        )
        if outcome.status == "ok":
            return outcome.text
        if outcome.status == "err":
            raise ToolFailed(plain(outcome.text[:LONGEST_ERROR]) or f"{self.spec.name} failed.")
        raise ToolFailed(f"{self.spec.name} gave no answer: {outcome.text}. {_ADVICE}")


@dataclass(frozen=True, slots=True)
class PluginAdapter:
    """Implements the Adapter of the channels."""

    plugin: PluginDef
    description: Any  # what `read_adapter` gave
    loaded: Loaded
    sandbox: "Sandbox"

    async def parse(self, event: str) -> str:
        return await self._translate("parse-incoming", event)

    async def format(self, reply: str) -> str:
        return await self._translate("format-outgoing", reply)

    async def _translate(self, function: str, text: str) -> str:
        outcome = await self.sandbox.run(self.loaded, function, text, most_bytes=MOST_EVENT_BYTES)
        if outcome.status == "ok":
            return outcome.text
        why = plain(outcome.text[:LONGEST_ERROR])
        raise AdapterFailed(f"plugin {self.plugin.name}: {function} failed: {why}")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Loads plugins and calls them."""

    pool: Pool
    compiling: Compiling
    means: Means
    _writers: WeakValueDictionary[tuple[str, str | None], anyio.Lock] = field(
        default_factory=WeakValueDictionary
    )

    async def load(self, plugin: PluginDef) -> Loaded:
        """Raises PluginRefused with its name, why, and what would help."""
        try:
            compiled = await self.compiling.compiled(plugin.path, pinned=plugin.sha256)
        except Uncompiled as error:
            raise PluginRefused(plugin.name, str(error)) from error
        require_granted(plugin, compiled.inspection)
        program = _program(plugin, compiled)
        host = Host(self.means, plugin)
        outcome = await self.pool.call(program, "describe", "", host, timeout_s=DESCRIBE_S)
        if outcome.status != "ok":
            why = plain(outcome.text[:LONGEST_ERROR])
            raise PluginRefused(plugin.name, f"describe gave no answer: {why}")
        try:
            means, kind = self.means, compiled.inspection.kind
            said = described(plugin, kind, outcome.text, means.read_adapter)
        except ValueError as error:
            raise PluginRefused(plugin.name, str(error)) from error
        return Loaded(plugin, _with_room(program, said.adapter), compiled, said)

    async def run(
        self,
        loaded: Loaded,
        function: str,
        text: str,
        *,
        person: str | None = None,
        keeps: bool = True,
        most_bytes: int = MOST_INPUT_BYTES,
    ) -> Outcome:
        """One call on behalf of a person, in a fresh instance."""
        if len(text.encode()) > most_bytes:
            told = f"its arguments are larger than {most_bytes // 1024} KiB"
            return Outcome("invalid", told)
        host = Host(self.means, loaded.plugin, person, keeps=keeps)
        within_s = loaded.plugin.limits.timeout_s
        async with self._alone(loaded.plugin, person):
            return await self.pool.call(loaded.program, function, text, host, timeout_s=within_s)

    def _alone(self, plugin: PluginDef, person: str | None) -> AbstractAsyncContextManager[object]:
        """Who may write works alone in its space: what a call reads there, no other changes."""
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
        """None: it is no channel adapter."""
        description = loaded.described.adapter
        if description is None:
            return None
        return PluginAdapter(loaded.plugin, description, loaded, self)


@dataclass(slots=True)
class Plugins:
    """All configured plugins, once they are loaded or refused; `settled` is told of those that come
    when the gateway serves already."""

    infos: tuple[PluginInfo, ...] = ()
    tools: tuple[Tool, ...] = ()
    adapters: tuple[Any, ...] = ()  # each an Adapter of the channels
    settled: Settled | None = None
    _configured: tuple[PluginDef, ...] = ()
    _found: dict[str, Loaded | str] = field(default_factory=dict)
    _coming: dict[str, anyio.Event] = field(default_factory=dict)
    _sandbox: Sandbox | None = None
    _taken: set[str] = field(default_factory=set)
    _ledger: UseLedger = field(default_factory=UseLedger)
    _loaded: dict[str, Loaded] = field(default_factory=dict)

    async def load(self, sandbox: Sandbox, plugins: Sequence[PluginDef]) -> None:
        """All at once; what cannot be loaded is told and left out."""
        async with anyio.create_task_group() as group:
            self._begin(sandbox, plugins, group)
        self._take(sandbox)

    async def load_beside(
        self,
        sandbox: Sandbox,
        plugins: Sequence[PluginDef],
        group: TaskGroup,
        *,
        patience_s: float,
    ) -> None:
        """As `load`, but waits no longer than that: the rest goes on in the group."""
        self._begin(sandbox, plugins, group)
        with anyio.move_on_after(patience_s):
            await self.ready(self._coming)
        self._take(sandbox)

    async def ready(self, names: Iterable[str]) -> None:
        """Until these are loaded or refused; a name that is no plugin's is."""
        for name in names:
            if name in self._coming:
                await self._coming[name].wait()

    @property
    def is_complete(self) -> bool:
        return all(one.is_set() for one in self._coming.values())

    def _begin(self, sandbox: Sandbox, plugins: Sequence[PluginDef], group: TaskGroup) -> None:
        self._sandbox, self._ledger = sandbox, sandbox.means.ledger
        self._configured = tuple(plugins)
        enabled = [one for one in plugins if one.is_enabled]
        self._coming = {one.name: anyio.Event() for one in enabled}
        for one in enabled:
            work = partial(self._load, sandbox, one)
            group.start_soon(contained, f"plugin:{one.name}", work)

    async def _load(self, sandbox: Sandbox, plugin: PluginDef) -> None:
        name = plugin.name
        try:
            self._found[name] = await sandbox.load(plugin)
        except PluginRefused as error:
            self._found[name] = error.problem
            log.warning("a plugin is refused", extra={"plugin": name, "why": str(error)})
        finally:
            self._found.setdefault(name, "it could not be loaded; the log says why")
            self._coming[name].set()
        if self.settled is not None:
            await self._tell(sandbox, plugin)

    async def follow(self, settled: Settled) -> None:
        """From now on those are told that are settled; first those that were since `load_beside`."""
        self.settled, sandbox = settled, self._sandbox
        late = [one for one in self._configured if one.name in self._found.keys() - self._taken]
        for plugin in late:
            assert sandbox is not None
            await self._tell(sandbox, plugin)

    async def _tell(self, sandbox: Sandbox, plugin: PluginDef) -> None:
        assert self.settled is not None
        self._take(sandbox)
        found = self._found[plugin.name]
        tools = sandbox.tools(found) if isinstance(found, Loaded) else ()
        await self.settled(info(plugin, found), tools)

    def _take(self, sandbox: Sandbox) -> None:
        self._taken |= self._found.keys()
        self.infos = tuple(self._info(plugin) for plugin in self._configured)
        found = [self._found.get(plugin.name) for plugin in self._configured]
        self._loaded = {one.plugin.name: one for one in found if isinstance(one, Loaded)}
        # Of two tools with one name the gate takes the first: nobody gets a bundled one's.
        bundled_first = sorted(self._loaded.values(), key=lambda one: not one.plugin.is_bundled)
        self.tools = tuple(tool for one in bundled_first for tool in sandbox.tools(one))
        adapters = map(sandbox.adapter, self._loaded.values())
        self.adapters = tuple(one for one in adapters if one is not None)

    def _info(self, plugin: PluginDef) -> PluginInfo:
        told = info(plugin, self._found.get(plugin.name))
        is_coming = plugin.name in self._coming and plugin.name not in self._found
        return replace(told, state="compiling") if is_coming else told

    def account(self, name: str) -> PluginAccount | None:
        """What it can touch and what it did; None if no plugin is configured by this name."""
        told = next((one for one in self.infos if one.name == name), None)
        if told is None:
            return None
        uses, loaded = self._ledger.of(name), self._loaded.get(name)
        account = PluginAccount(told, used=uses.granted, denied=uses.denied)
        if loaded is None:
            return account
        inspection = loaded.compiled.inspection
        needs = needed(inspection)
        return replace(
            account,
            guest=inspection.guest,
            needs={one: needs.get(one) for one in inspection.imports},
            lacking=frozenset(missing(loaded.plugin, inspection)),
        )


def info(plugin: PluginDef, found: Loaded | str | None) -> PluginInfo:
    """What is told of a plugin: it is loaded, or why not, or (None) it is disabled."""
    told = PluginInfo(
        plugin.name,
        "disabled" if found is None else "refused",
        capabilities=tuple(map(str, plugin.capabilities)),
        sha256=plugin.sha256,
        why=found if isinstance(found, str) else None,
    )
    if not isinstance(found, Loaded):
        return told
    return replace(
        told,
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


def _with_room(program: Program, adapter: AdapterSaid | None) -> Program:
    """What an adapter makes of a call is about as large as the call, and it is read as a whole."""
    more_bytes = min(adapter.largest_call if adapter else 0, MOST_EVENT_BYTES)
    bounds = replace(program.bounds, output_bytes=program.bounds.output_bytes + more_bytes)
    return replace(program, bounds=bounds)


def _opaque(plugin: str, session: str) -> str:
    """The same for every call of a session, and another for every plugin."""
    return hashlib.sha256(f"{plugin}\0{session}".encode()).hexdigest()[:32]
