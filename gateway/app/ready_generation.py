"""A generation made ready to work: texts read, plugins loaded, servers there. Nobody sees it before the swap."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType

from anyio import to_thread

from gateway.agent.leaves import Plans
from gateway.app.generation import FileSnapshot, Generation
from gateway.app.shared import NO_PROVIDERS, Providers, Shared, SharedResource, models, open_fetch
from gateway.app.trial import find_refusals
from gateway.channels.adapter_json import read_description
from gateway.config.problems import Code, ConfigFinding, KeyPath
from gateway.config.values import GatewayConfig, ObservabilitySettings
from gateway.control.trees.reader import TreeInvalid
from gateway.domain.errors import GatewayError, SoulUnreadable
from gateway.domain.events import AuditEvent
from gateway.domain.ports import Clock, Model, Tool
from gateway.host.files import FileTexts
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
from gateway.tools.gate import ToolGate
from gateway.tools.results import ResultTool


class GenerationRefused(GatewayError):
    """It cannot be made as it is configured; `findings` say where and why."""

    code = "config_error"

    def __init__(self, findings: Sequence[ConfigFinding]) -> None:
        super().__init__("; ".join(one.message for one in findings))
        self.findings = findings


@dataclass(frozen=True, slots=True, eq=False)
class ReadyGeneration:
    """A generation with all that it opened. `servers` are parts that other generations may have too; `turns`
    counts those that have begun under it and have not ended."""

    number: int
    made: Generation
    look: FileSnapshot
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
        """Its servers offer it their tools."""
        for part in self.servers:
            part.value.offer_to(self.gate.renew)

    def end(self, shared: Shared) -> None:
        """Nothing of it is at work any more."""
        for part in self.servers:
            part.value.gates.remove(self.gate.renew)
        self.leave(shared)

    def leave(self, shared: Shared) -> None:
        """Servers and a tracer that no other generation has are closed."""
        for part in (*self.servers, *((self.traces,) if self.traces else ())):
            shared.resources.release(part)


async def prepare(
    made: Generation,
    shared: Shared,
    before: ReadyGeneration | None = None,
    *,
    look: FileSnapshot,
    patience_s: float = LOAD_WAIT_S,
) -> ReadyGeneration:
    """The generation after the one `before`. What did not change is taken over; `look` is at the files that
    it is made of. At a start a plugin may come late or be refused alone; at a reload nothing may be missing.

    Raises GenerationRefused; at a start SoulUnreadable, TreeInvalid.
    """
    config, stores, clock = made.config, shared.stores, shared.clock
    if config.providers:  # before any call: to build it later would block the event loop
        await to_thread.run_sync(made.prices.warm)
    souls = Souls(FileTexts(), made.souls, clock=clock, templates=made.templates)
    plans = Plans(FileTexts(), made.trees, decisions=made.decisions)
    if before is None:
        await souls.load()
        await plans.load()
    findings = [] if before is None else await _unread(look, souls, plans)
    sandbox = await _sandbox(config, shared)
    plugins = Plugins()
    if before is None:
        await plugins.load_within(sandbox, config.plugins, shared.group, wait_s=patience_s)
    else:
        await before.plugins.ready([one.name for one in before.made.config.plugins])
        plugins.known = before.plugins.unchanged(config.plugins, look.digests)
        await plugins.load(sandbox, config.plugins)
        findings += _refused(config, plugins, clock)
        made.rules.keep_faults(before.made.rules)
    if findings:
        raise GenerationRefused(findings)
    recall = Recall(stores.facts)
    tools: tuple[Tool, ...] = (
        MemoryTool(stores.facts, recall, clock, shared.ids, made.sharing),
        ResultTool(stores.tools, stores.sessions),
        *plugins.tools,
    )
    make_gate = shared.cluster.gate if shared.cluster else ToolGate
    gate = make_gate(tools, schemas=SchemaChecks(), clock=clock, originals=stores.tools)
    servers = await _servers(config, shared, gate)
    providers = shared.providers(config, before.providers if before else NO_PROVIDERS)
    return ReadyGeneration(
        number=before.number + 1 if before else 1,
        made=made,
        look=look,
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


async def _unread(look: FileSnapshot, *texts: Souls | Plans) -> list[ConfigFinding]:
    """The texts that cannot be used."""
    findings: list[ConfigFinding] = []
    for path, read in ((path, each.read) for each in texts for path in each.files):
        try:
            await read(path)
        except (SoulUnreadable, TreeInvalid) as error:
            why, fix = str(error).partition("\n")[0], "correct the file or the path"
            findings.append(finding(look.keys.get(path, ()), why, fix))
    return findings


def finding(place: KeyPath, message: str, fix: str) -> ConfigFinding:
    """Why a generation cannot be made."""
    return ConfigFinding(Code.REFUSED_AT_START, place, message, fix)


def _refused(config: GatewayConfig, plugins: Plugins, clock: Clock) -> Iterator[ConfigFinding]:
    places = {one.name: index for index, one in enumerate(config.plugins)}
    for kind, name, why in find_refusals(config.channels, plugins, clock):
        place: KeyPath = ("channels", name)
        fix = f"exogate channel set {name} changes what it is given"
        if kind == "plugins":
            place = ("plugins", places[name], *(("sha256",) if "sha256" in why else ()))
            fix = f"exogate plugin inspect {name} shows what it needs and has"
        yield finding(place, f"{kind[:-1]} {name}: {why}", fix)


async def _sandbox(config: GatewayConfig, shared: Shared) -> Sandbox:
    """The one of the process, with the host functions that these plugins are granted."""
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
    """Each is connected when a turn of an agent that has it begins."""
    if not config.mcp.servers:
        return ()
    # An extra, and slow to import.
    connections, servers = await to_thread.run_sync(_mcp)

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


def _mcp() -> tuple[ModuleType, ModuleType]:
    from gateway.mcp import connections, servers  # noqa: PLC0415  # an extra, and slow to import

    return connections, servers
