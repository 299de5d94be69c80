"""The composition: a configuration is built into a generation, and started over what is shared."""

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

import anyio
from anyio import to_thread
from pydantic_core import from_json, to_json

from gateway.agent.leaves import Plans
from gateway.app.background import Rulebook, sweep
from gateway.app.core import Core, Opened, strict_json, wired
from gateway.app.gateway import Gateway
from gateway.app.generation import Generation, build, usual_agent
from gateway.app.shared import Shared, opened, scrubbing
from gateway.channels.commands import ChatCommands
from gateway.channels.crossing import read_description
from gateway.channels.pairing import PairingBook
from gateway.channels.room import ChannelRoom, channel_room, delivering
from gateway.config.authority import note_start
from gateway.config.values import GatewayConfig
from gateway.domain.events import Deed
from gateway.domain.mcp import Door
from gateway.domain.supervision import Work, supervise
from gateway.host.folder import Folder
from gateway.host.texts import FileTexts
from gateway.memory.recall import Recall
from gateway.memory.souls import Souls
from gateway.memory.tool import MemoryTool
from gateway.sandbox.hosting import Means
from gateway.sandbox.opening import Nowhere, follow, host_functions, open_plugins, open_sandbox
from gateway.sandbox.plugins import Plugins
from gateway.schemas import SchemaChecks
from gateway.sessions.intake import Front, ServedDesk
from gateway.tools.gate import ToolGate
from gateway.tools.originals import ResultTool
from gateway.web.health import StoreWatch


@asynccontextmanager
async def assembled(
    config: GatewayConfig, *, version: str, accept_loss: bool = False
) -> AsyncIterator[Gateway]:
    """Everything but the front doors, at work until the context is left."""
    async with opened(config, accept_loss=accept_loss) as shared:
        made = await to_thread.run_sync(build, config)
        async with start(made, shared, version=version) as gateway:
            try:
                yield gateway
            finally:
                shared.group.cancel_scope.cancel()


@asynccontextmanager
async def start(made: Generation, shared: Shared, *, version: str) -> AsyncIterator[Gateway]:
    """Opens what the generation needs for itself, and sets it to work until the context is left."""
    config, stores, clock = made.config, shared.stores, shared.clock
    async with AsyncExitStack() as stack:
        found = await _open(made, shared, stack)
        await follow(found.plugins, found.gate, stores.audit, clock)
        await note_start(stores.audit, config, found.plugins.infos, version, clock.now())
        core = wired(made, shared, found)
        book = PairingBook(stores.pairings, stores.audit, clock, shared.ids, shared.tell)
        room = _channels(made, shared, core, book)
        await room.load(config.channels, found.plugins.adapters, found.plugins.infos)
        room.refuse_alike()
        await _deliver(made, shared, room, core.front, stack)
        mcp = await _serve_mcp(config, shared, found.gate, core.front, stack)
        watch = StoreWatch(stores.care.probe, clock)
        gateway = Gateway(made, version, shared, found, core, room, book, watch, mcp)
        await core.memory.keeper.resume()
        _work_beside(gateway)
        try:
            yield gateway
        finally:
            found.group.cancel_scope.cancel()


async def _open(made: Generation, shared: Shared, stack: AsyncExitStack) -> Opened:
    """Raises McpNotInstalled, SoulUnreadable, TreeInvalid."""
    config, stores, clock = made.config, shared.stores, shared.clock
    meter = shared.meter(config, made.prices)
    model = await shared.models(config, meter)
    texts = FileTexts(clock)
    souls = Souls(texts, made.souls, clock=clock, templates=made.templates)
    await souls.load()
    plans = Plans(texts, made.trees, shared.tell, decisions=made.decisions)
    await plans.load()
    group = await stack.enter_async_context(anyio.create_task_group())
    plugins = await _open_plugins(config, shared, stack)
    recall = Recall(stores.turns, stores.facts)
    own = (
        MemoryTool(stores.facts, recall, clock, shared.ids, made.sharing),
        ResultTool(stores.originals, stores.transcript),
    )
    gate = ToolGate(
        (*own, *plugins.tools),
        schemas=SchemaChecks(),
        decode=strict_json,
        clock=clock,
        originals=stores.originals,
    )
    await _open_mcp_servers(config, shared, gate, stack)
    return Opened(group, meter, model, souls, plans, plugins, gate, Rulebook(made, clock))


async def _open_plugins(config: GatewayConfig, shared: Shared, stack: AsyncExitStack) -> Plugins:
    enabled = [one for one in config.plugins if one.is_enabled]
    fetches = any(plugin.origins for plugin in enabled)
    own = {"folder": Folder(to_json, from_json)}
    means = Means(
        fetch=await shared.sockets.guarded("plugins") if fetches else Nowhere(),
        store=shared.stores.plugins,
        clock=shared.clock,
        encode=to_json,
        decode=from_json,
        read_adapter=read_description,
        functions=await to_thread.run_sync(host_functions, enabled, own),
    )
    cache, limits = config.gateway.data_dir / "plugins", config.sandbox
    opening = open_sandbox(cache, means, workers=limits.workers, idle_s=limits.idle_s)
    sandbox = await stack.enter_async_context(opening)
    needed = {channel.plugin for channel in config.channels}
    return await stack.enter_async_context(open_plugins(sandbox, config.plugins, needed=needed))


async def _open_mcp_servers(
    config: GatewayConfig, shared: Shared, gate: ToolGate, stack: AsyncExitStack
) -> None:
    """Nothing is connected until a turn of an agent that has it begins."""
    if not config.mcp_servers:
        return
    # An extra, and slow to import.
    from gateway.mcp.connecting import Dialling  # noqa: PLC0415
    from gateway.mcp.servers import open_servers  # noqa: PLC0415
    from gateway.mcp.supervising import Means as ServerMeans  # noqa: PLC0415

    async def told_changed(facts: Mapping[str, object]) -> None:
        shared.tell("mcp.tool.changed", facts)
        deed = Deed(shared.clock.now(), "mcp.tool.changed", f"mcp:{facts['server']}", facts)
        await shared.stores.audit.append(deed)

    http = await shared.sockets.http("mcp")
    means = ServerMeans(
        dial=Dialling(http, config.gateway.data_dir / "mcp", shared.clock).line,
        clock=shared.clock,
        schemas=SchemaChecks(),
        store=shared.stores.plugins,
        renew=gate.renew,
        tell=shared.tell,
        told_changed=told_changed,
        random=random.random,
    )
    gate.foreign = await stack.enter_async_context(open_servers(config.mcp_servers, means))


async def _serve_mcp(
    config: GatewayConfig, shared: Shared, gate: ToolGate, front: Front, stack: AsyncExitStack
) -> Door | None:
    """What is served at /mcp, if anything is."""
    if not config.mcp_serving.is_enabled:
        return None
    from gateway.mcp.serving import serving  # noqa: PLC0415  # takes a third of a second

    agent = replace(usual_agent(config), tools=config.mcp_serving.tools)
    desk = ServedDesk(front, gate, agent, to_json, from_json, shared.ids)
    most_bytes = config.gateway.max_body_bytes
    door = serving(desk, schemas=SchemaChecks(), most_bytes=most_bytes)
    return await stack.enter_async_context(door)


def _channels(made: Generation, shared: Shared, core: Core, book: PairingBook) -> ChannelRoom:
    stores = shared.stores
    commands = ChatCommands(
        front=core.front,
        spending=stores.spending,
        budgets=made.config.budgets,
        facts=stores.facts,
        find=core.memory.recall,
        settled=core.memory.settled,
        shared=made.sharing,
        book=book,
        decode=from_json,
    )
    return channel_room(
        stores, commands, tell=shared.tell, scrubbing=scrubbing, traffic=shared.traffic
    )


async def _deliver(
    made: Generation, shared: Shared, room: ChannelRoom, front: Front, stack: AsyncExitStack
) -> None:
    channels, outbox = made.config.channels, shared.stores.outbox
    if not channels:
        await outbox.strand((), at=shared.clock.now())
        return
    accounts = frozenset((one.name, one.account) for one in channels)
    fetch = await shared.sockets.guarded("deliveries")
    sending = delivering(room, accounts, outbox, front, shared.bus, fetch=fetch)
    await stack.enter_async_context(sending)


def _work_beside(gateway: Gateway) -> None:
    """What goes on for as long as the generation is at work."""
    opened, shared = gateway.opened, gateway.shared
    clock = shared.clock
    beside: Mapping[str, Work] = {
        "souls": opened.souls.keep_fresh,
        "trees": opened.plans.keep_fresh,
        "rules": opened.rules.keep_fresh,
        "store": gateway.watch.run,
        "sweep": partial(sweep, gateway.made.config, shared.stores, clock),
        "index": gateway.core.memory.indexer.run,
    }
    for name, task in beside.items():
        may_end = name == "rules"  # there may be none to follow
        work = partial(supervise, name, task, clock, may_end=may_end)
        opened.group.start_soon(work, name=name)
