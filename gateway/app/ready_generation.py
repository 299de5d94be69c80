"""Prepares a generation: reads its texts, loads its plugins and opens its tool servers. It takes effect at the swap."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType

from anyio import to_thread

from gateway.agent.leaves import Plans
from gateway.app.generation import FileSnapshot, Generation, souls_and_plans
from gateway.app.shared import NO_PROVIDERS, Providers, Shared, SharedResource, models, open_fetch
from gateway.app.trial import find_refusals, find_unreadable
from gateway.channels.adapter_json import read_description
from gateway.config.problems import Code, ConfigFinding, KeyPath
from gateway.config.values import GatewayConfig, ObservabilitySettings
from gateway.domain.errors import GatewayError
from gateway.domain.events import AuditEvent
from gateway.domain.ports import Clock, Model, Tool
from gateway.host.folder import Folder
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
    connections, servers = await to_thread.run_sync(_import_mcp)

    async def on_changed(facts: Mapping[str, object]) -> None:
        shared.publish("mcp.tool.changed", facts)
        event = AuditEvent(shared.clock.now(), "mcp.tool.changed", f"mcp:{facts['server']}", facts)
        await shared.stores.audit.append(event)

    means = servers.ServerDeps(
        connector=connections.Connector(shared.http, config.gateway.data_dir / "mcp", shared.clock),
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


def _import_mcp() -> tuple[ModuleType, ModuleType]:
    from gateway.mcp import connections, servers  # noqa: PLC0415  # an extra, and slow to import

    return connections, servers
