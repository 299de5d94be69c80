"""Reloads the configuration in two phases: prepares the whole next generation, then swaps it in. A bad configuration
changes nothing.

`prepare` reads the texts of a generation, loads its plugins and opens its tool servers. It takes effect at the swap.
"""

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Protocol

import anyio
from anyio import to_thread

from gateway.agent.leaves import Plans
from gateway.api import operating as api
from gateway.api.declarations import build as as_value
from gateway.api.errors import InvalidParams
from gateway.app.doctor import find_refusals, find_unreadable
from gateway.app.generation import (
    FileSnapshot,
    Generation,
    build,
    files_changed,
    snapshot_files,
    souls_and_plans,
)
from gateway.app.shared import NO_PROVIDERS, Providers, Shared, SharedResource, models, open_fetch
from gateway.channels.adapter_json import read_description
from gateway.config.access import note_start
from gateway.config.document import build_error
from gateway.config.load import LoadedConfig
from gateway.config.problems import (
    Code,
    ConfigFinding,
    ConfigInvalid,
    ConfigProblem,
    KeyPath,
    dotted,
)
from gateway.config.schema import changes, need_restart, with_start_values
from gateway.config.values import GatewayConfig, ObservabilitySettings
from gateway.domain.errors import GatewayError
from gateway.domain.events import AuditEvent
from gateway.domain.ports import Clock, Model, Tool
from gateway.domain.supervision import contain, retry_store
from gateway.host.files import stamps_of
from gateway.host.folder import Folder
from gateway.host.notify import SILENT, Notifier
from gateway.memory.recall import Recall
from gateway.memory.souls import Souls
from gateway.memory.tool import MemoryTool
from gateway.sandbox.host_functions import HostDeps
from gateway.sandbox.plugins import (
    LOAD_WAIT_S,
    NoFetch,
    Plugins,
    Sandbox,
    host_functions,
    open_sandbox,
)
from gateway.schemas import SchemaChecks
from gateway.sessions.worker import TurnCount
from gateway.tools import ResultTool, ToolGate

log = logging.getLogger(__name__)


# --- a ready generation --------------------------------------------------------------------------
class GenerationRefused(GatewayError):
    """The configuration cannot be put into force; `findings` say where and why."""

    code = "config_error"

    def __init__(self, findings: Sequence[ConfigFinding]) -> None:
        super().__init__("; ".join(one.message for one in findings))
        self.findings = findings


@dataclass(frozen=True, slots=True, eq=False)
class ReadyGeneration:
    """A generation with its open resources. Other generations may share `servers` and `traces`. `turns` counts its running
    turns."""

    number: int
    generation: Generation
    snapshot: FileSnapshot
    providers: Providers
    model: Model
    souls: Souls
    plans: Plans
    plugins: Plugins
    sandbox: Sandbox
    gate: ToolGate
    servers: Sequence[SharedResource] = ()
    traces: SharedResource | None = None
    turns: TurnCount = field(default_factory=TurnCount)

    def begin(self) -> None:
        """Subscribes to the tools of the servers."""
        for part in self.servers:
            part.value.offer_to(self.gate.renew)

    def end(self, shared: Shared) -> None:
        """Unsubscribes from the servers and releases them, after the last turn."""
        for part in self.servers:
            part.value.gates.remove(self.gate.renew)
        self.leave(shared)

    def leave(self, shared: Shared) -> None:
        """Releases the shared resources."""
        for part in (*self.servers, *((self.traces,) if self.traces else ())):
            shared.resources.release(part)


async def prepare(
    generation: Generation,
    shared: Shared,
    before: ReadyGeneration | None = None,
    *,
    snapshot: FileSnapshot,
    patience_s: float = LOAD_WAIT_S,
) -> ReadyGeneration:
    """Prepares the generation after `before`, from which it takes unchanged parts. `snapshot` is the snapshot of its files.

    At a start (`before` is None) a plugin may load late or be refused alone. A reload needs every plugin and text. Raises
    GenerationRefused; at a start SoulUnreadable, TreeInvalid.
    """
    config, stores, clock = generation.config, shared.stores, shared.clock
    if config.providers:  # a later build would block the event loop during a call
        await to_thread.run_sync(generation.prices.warm)
    souls, plans = await to_thread.run_sync(souls_and_plans, config, generation.decisions, clock)
    findings = list[ConfigFinding]()
    sandbox = await _sandbox(config, shared)
    plugins = Plugins()
    if before is None:
        await souls.load()
        await plans.load()
        await plugins.load_within(sandbox, config.plugins, shared.group, wait_s=patience_s)
    else:
        for path, why in (await find_unreadable(souls, plans)).items():
            place = snapshot.keys.get(path, ())
            findings.append(finding(place, why, "correct the file or the path"))
        await before.plugins.ready([one.name for one in before.generation.config.plugins])
        plugins.known = before.plugins.unchanged(config.plugins, snapshot.digests)
        await plugins.load(sandbox, config.plugins)
        findings += _refused(config, plugins, clock)
        generation.rules.keep_faults(before.generation.rules)
    if findings:
        raise GenerationRefused(findings)
    recall = Recall(stores.facts)
    tools: tuple[Tool, ...] = (
        MemoryTool(stores.facts, recall, clock, shared.ids, generation.sharing),
        ResultTool(stores.tools, stores.sessions),
        *plugins.tools,
    )
    make_gate = shared.cluster.gate if shared.cluster else ToolGate
    gate = make_gate(tools, schemas=SchemaChecks(), clock=clock, originals=stores.tools)
    servers = await _servers(config, shared, gate)
    providers = shared.providers(config, before.providers if before else NO_PROVIDERS)
    return ReadyGeneration(
        number=before.number + 1 if before else 1,
        generation=generation,
        snapshot=snapshot,
        providers=providers,
        model=models(providers),
        souls=souls,
        plans=plans,
        plugins=plugins,
        sandbox=sandbox,
        gate=gate,
        servers=servers,
        traces=await _traces(config.observability, shared),
    )


async def _traces(settings: ObservabilitySettings, shared: Shared) -> SharedResource | None:
    endpoint, content = settings.otlp_endpoint, settings.otlp_content
    if endpoint is None:
        return None
    from gateway.traces import Collector, tracing  # noqa: PLC0415  # an extra, and slow to import

    headers = tuple((name, value.reveal()) for name, value in settings.otlp_headers.items())
    collector = Collector(endpoint, headers, content)
    how = (shared.http, shared.clock, shared.reports, shared.logs.clean)
    return await shared.resources.acquire(collector, partial(tracing, collector, *how))


def finding(place: KeyPath, message: str, fix: str) -> ConfigFinding:
    """Returns the reason why a generation is refused."""
    return ConfigFinding(Code.REFUSED_AT_START, place, message, fix)


def _refused(config: GatewayConfig, plugins: Plugins, clock: Clock) -> Iterator[ConfigFinding]:
    for place, name, why in find_refusals(config, plugins, clock):
        kind, fix = "channel", f"exogate channel set {name} changes its settings"
        if place[0] == "plugins":
            kind, fix = "plugin", f"exogate plugin inspect {name} shows its needs and grants"
        yield finding(place, f"{kind} {name}: {why}", fix)


async def _sandbox(config: GatewayConfig, shared: Shared) -> Sandbox:
    """Returns the sandbox of the process, with the host functions that these plugins are granted."""
    enabled = [one for one in config.plugins if one.is_enabled]
    functions = await to_thread.run_sync(host_functions, enabled, {"folder": Folder()})
    deps = HostDeps(NoFetch(), shared.stores.tools, shared.clock, read_description)
    cache, limits = config.gateway.data_dir / "plugins", config.sandbox
    opening = partial(open_sandbox, cache, deps, workers=limits.workers, idle_s=limits.idle_s)
    sandbox: Sandbox = (await shared.resources.acquire("sandbox", opening)).value
    fetch = sandbox.deps.fetch
    if any(plugin.origins for plugin in enabled):
        fetch = (await shared.resources.acquire("fetch", open_fetch)).value
    return replace(sandbox, deps=replace(sandbox.deps, fetch=fetch, functions=functions))


async def _servers(
    config: GatewayConfig, shared: Shared, gate: ToolGate
) -> Sequence[SharedResource]:
    """Opens the MCP servers, which connect when a turn needs them."""
    if not config.mcp.servers:
        return ()
    servers = await to_thread.run_sync(_import_mcp)

    async def on_changed(facts: Mapping[str, object]) -> None:
        shared.publish("mcp.tool.changed", facts)
        event = AuditEvent(shared.clock.now(), "mcp.tool.changed", f"mcp:{facts['server']}", facts)
        await shared.stores.audit.append(event)

    means = servers.ServerDeps(
        connector=servers.Connector(shared.http, config.gateway.data_dir / "mcp", shared.clock),
        clock=shared.clock,
        schemas=SchemaChecks(),
        store=shared.stores.tools,
        publish=shared.publish,
        report_change=on_changed,
        random=random.random,
    )
    found = [
        await shared.resources.acquire(("mcp", one), partial(servers.open_server, one, means))
        for one in config.mcp.servers
    ]
    gate.foreign = servers.Servers({part.value.server.name: part.value for part in found})
    return found


def _import_mcp() -> ModuleType:
    from gateway.mcp import servers  # noqa: PLC0415  # an extra, and slow to import

    return servers


# --- reloading -----------------------------------------------------------------------------------
PREPARE_TIMEOUT_S = 30.0
WATCH_EVERY_S = 2.0
QUIET_S, LONGEST_UNREST_S = 0.3, 2.0  # files must rest before a reload; the longest wait for that
GONE_S = 2.0  # before a missing file counts as deleted
UNFINISHED_S = 1.0  # invalid TOML of a younger file is read once more
# A file changed, or another gateway reloaded: no caller waits for these reloads.
BY_ITSELF = frozenset({"watch", "hint"})
NOTICED_S = 5.0  # after a reload by the watch, a call reports the changes of that reload

ReadConfig = Callable[[Path | None], LoadedConfig]


class Target(Protocol):
    """The gateway, into which generations are swapped."""

    current: ReadyGeneration
    version: str

    async def serve_mcp(self, config: GatewayConfig) -> None: ...

    def swap(self, new: ReadyGeneration) -> None: ...

    async def load_channels(self) -> None: ...


@dataclass(slots=True)
class Reloader:
    """Reloads one at a time, in a task of the process: a caller that goes away does not cancel a reload."""

    shared: Shared
    read: ReadConfig
    snapshot: InitVar[FileSnapshot]  # the files of the generation in force
    target: Target
    observe: Callable[[GatewayConfig], None] = lambda config: None  # configures logging
    notify: Notifier = SILENT
    notify_others: Callable[[], object] = lambda: None  # hints other gateways to reload
    problems: tuple[ConfigProblem, ...] = ()  # of the present files
    restart_needed: Sequence[str] = ()
    _booted: GatewayConfig = field(init=False)
    _turn: anyio.Lock = field(default_factory=anyio.Lock)
    _logged: str = ""  # the digest of the last bad configuration in the log
    # The time and changes of a reload by the watch that no caller knows of.
    _noticed: tuple[float, Sequence[str]] = (float("-inf"), ())
    _seen: FileSnapshot = field(init=False)

    def __post_init__(self, snapshot: FileSnapshot) -> None:
        self._seen = snapshot
        self._booted = self.target.current.generation.config
        self._count(is_good=True)

    def state(self) -> api.ConfigState:
        """Returns the state of the configuration for `status`."""
        origin = self.target.current.generation.config.origin
        return api.ConfigState(
            path=None if origin is None else str(origin),
            errors=[as_value(api.ConfigError, one) for one in self.problems],
            restart_needed=list(self.restart_needed),
        )

    async def reload(
        self, *, dry_run: bool = False, path: str | None = None, by: str = "call"
    ) -> api.Reloaded:
        """Reloads, and returns when the generation is in force or refused. Raises InvalidParams."""
        if path is not None and not dry_run:
            why = "only a dry run reads another file"
            raise InvalidParams(f"path: {why}", [("path", why)])
        done, results = anyio.Event(), list[api.Reloaded]()

        async def work() -> None:
            try:
                async with self._turn:
                    file = None if path is None else Path(path)
                    results.append(await (self._try(file) if dry_run else self._reload(by)))
            finally:
                done.set()

        self.shared.group.start_soon(contain, "reload", work)
        await done.wait()
        if by not in BY_ITSELF and not dry_run:
            self.notify_others()
        if not results:
            raise GatewayError(
                "the reload failed because of a defect; nothing was changed, see the log"
            )
        return results[0]

    # -- the two phases

    async def _try(self, path: Path | None) -> api.Reloaded:
        plan = await self._plan(path)
        if plan.new is not None:
            plan.new.leave(self.shared)
        return self._result(plan.changed, plan)

    async def _reload(self, by: str) -> api.Reloaded:
        clock, before = self.shared.clock, self.target.current
        self.notify.reloading()
        began, plan = clock.monotonic(), await self._plan(None)
        if by in BY_ITSELF and plan.is_unfinished(self._booted.origin, clock.now()):
            await clock.sleep(UNFINISHED_S)
            plan = await self._plan(None)
        self._seen, self.problems, self.restart_needed = plan.snapshot, plan.problems, plan.restart
        self._count(is_good=not plan.problems)
        if plan.problems:
            self._report_refused(plan)
            self.notify.ready(
                f"generation {before.number}; the configuration is bad, see `exogate status`"
            )
            return self._result((), plan)
        self._logged = ""
        if plan.new is not None:
            self.observe(plan.new.generation.config)
            await self.target.serve_mcp(plan.new.generation.config)
            self.target.swap(plan.new)
            await self.target.load_channels()
            took_ms = round((clock.monotonic() - began) * 1000, 1)
            facts = {"changed": list(plan.changed), "by": by, "took_ms": took_ms}
            log.info("config_reloaded", extra={"generation": plan.new.number, **facts})
            await self._note(before, plan.new)
        elif by not in BY_ITSELF:
            log.info("config_unchanged", extra={"generation": before.number, "by": by})
        self.notify.ready(f"generation {self.target.current.number}")
        return self._result(self._with_noticed(by, plan.changed), plan)

    def _with_noticed(self, by: str, changed: Sequence[str]) -> Sequence[str]:
        """Returns the changes, or for a call those that the watch reloaded just before it."""
        now = self.shared.clock.monotonic()
        if by == "watch":
            self._noticed = (now, changed)
            return changed
        at, noticed = self._noticed
        self._noticed = (float("-inf"), ())
        return changed or (noticed if now - at < NOTICED_S else ())

    def _result(self, changed: Sequence[str], plan: "ReloadPlan") -> api.Reloaded:
        return api.Reloaded(
            generation=self.target.current.number,
            changed=list(changed),
            restart_needed=list(plan.restart),
            errors=[as_value(api.ConfigError, one) for one in plan.problems],
        )

    async def _plan(self, path: Path | None) -> "ReloadPlan":
        """Reads and compares the configuration, and prepares the next generation beside the one in force."""
        before, origin = self.target.current, path or self._booted.origin
        snapshot = await to_thread.run_sync(snapshot_files, before.generation.config)
        try:
            loaded = await to_thread.run_sync(self.read, origin)
        except ConfigInvalid as error:
            return ReloadPlan(snapshot, self.restart_needed, problems=error.problems)
        config = with_start_values(self._booted, loaded.config)
        restart = need_restart(self._booted, loaded.config)
        snapshot = await to_thread.run_sync(snapshot_files, config, snapshot)
        changed = [
            *changes(before.generation.config, config),
            *files_changed(config, before.snapshot, snapshot),
        ]
        if not changed:
            return ReloadPlan(snapshot, restart)
        if config.rule_folder and config.rule_folder.problems:
            return ReloadPlan(snapshot, restart, problems=config.rule_folder.problems)
        try:
            with anyio.fail_after(PREPARE_TIMEOUT_S):
                generation = await to_thread.run_sync(build, config)
                new = await prepare(generation, self.shared, before, snapshot=snapshot)
        except GenerationRefused as error:
            findings = error.findings
        except TimeoutError:
            text = f"it was not ready within {PREPARE_TIMEOUT_S:g} s"
            findings = [finding((), text, "see the log")]
        except GatewayError as error:
            findings = [finding((), str(error), "correct it, then reload")]
        else:
            return ReloadPlan(snapshot, restart, tuple(dict.fromkeys(changed)), new=new)
        return ReloadPlan(
            snapshot, restart, problems=build_error(findings, loaded.document).problems
        )

    # -- reports

    def _count(self, *, is_good: bool) -> None:
        figures = self.shared.reports.figures
        figures.reload_successful.set((), int(is_good))
        if is_good:
            figures.reload_timestamp.set((), self.shared.clock.now().timestamp())

    def _report_refused(self, plan: "ReloadPlan") -> None:
        """Logs the problems of a bad configuration once, however often it is tried."""
        digest = sha256(repr([*plan.snapshot.digests.values(), plan.problems]).encode()).hexdigest()
        if digest == self._logged:
            return
        self._logged = digest
        for one in plan.problems:
            where = f"{one.source}:{one.line}:{one.column}" if one.line else one.source
            facts = {"where": where, "code": one.code, "key": one.key, "why": one.message}
            log.error("config_refused", extra={"generation": self.target.current.number, **facts})
        trees = {dotted(key): path for path, key in plan.snapshot.keys.items() if key[-1] == "tree"}
        for one in plan.problems:
            if one.key in trees:
                self.shared.publish("tree.refused", {"path": trees[one.key], "why": one.message})

    async def _note(self, before: ReadyGeneration, new: ReadyGeneration) -> None:
        """Records the reload in the audit and on the bus."""
        generation, audit, now = new.generation, self.shared.stores.audit, self.shared.clock.now()
        for path in new.plans.files:
            if new.snapshot.digests.get(Path(path)) != before.snapshot.digests.get(Path(path)):
                self.shared.publish("tree.reloaded", {"path": path, "tree": new.plans.name(path)})
        facts = (audit, generation.config, new.plugins.infos, self.target.version, now)
        await retry_store(self.shared.clock, note_start, *facts)

    # -- the watch

    async def watch(self) -> None:
        """Reloads changed files until cancelled. A check costs a few `stat` calls, which is less than the thread of a file
        watcher, and works on every file system."""
        while True:
            await self.shared.clock.sleep(WATCH_EVERY_S)
            config = self.target.current.generation.config
            if config.gateway.watch and await self._has_changed(config):
                await self.reload(by="watch")

    async def _has_changed(self, config: GatewayConfig) -> bool:
        """Waits until the files rest, then compares their content. A touched file has not changed."""
        clock, seen = self.shared.clock, self._seen
        # The stamp of a folder changes with its files.
        now = await to_thread.run_sync(stamps_of, seen.stamps)
        until = clock.monotonic() + LONGEST_UNREST_S
        while now != seen.stamps:
            is_gone = any(now.get(path) is None for path in seen.stamps if seen.stamps[path])
            await clock.sleep(GONE_S if is_gone else QUIET_S)
            before, now = now, await to_thread.run_sync(stamps_of, seen.stamps)
            if now == before or clock.monotonic() >= until:
                break
        if now == seen.stamps:
            return False
        snapshot = await to_thread.run_sync(snapshot_files, config)
        if snapshot.digests == seen.digests and self._seen is seen:
            self._seen = snapshot
        return snapshot.digests != seen.digests


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """The effect of a reload: nothing, the `new` generation, or the problems."""

    snapshot: FileSnapshot
    restart: Sequence[str]
    changed: Sequence[str] = ()
    problems: tuple[ConfigProblem, ...] = ()
    new: ReadyGeneration | None = None

    def is_unfinished(self, origin: Path | None, now: datetime) -> bool:
        """True if the file may be half written."""
        stamp = self.snapshot.stamps.get(origin or Path())
        is_young = stamp is not None and now.timestamp() - stamp[1] / 1e9 < UNFINISHED_S
        return is_young and any(one.code == Code.SYNTAX for one in self.problems)
