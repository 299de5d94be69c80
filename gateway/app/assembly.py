"""The composition: a configuration is built into a generation, and started over what is shared."""

import importlib.util
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
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
from gateway.channels.doorkeeping import Doorman
from gateway.channels.intake import Intake
from gateway.channels.pairing import PairingBook
from gateway.channels.room import ChannelRoom, delivering
from gateway.channels.webhooks import WebhookDoor
from gateway.config.authority import note_start
from gateway.config.values import GatewayConfig
from gateway.domain.events import Deed
from gateway.domain.mcp import Door, McpNotInstalled
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
        gateway = Gateway(
            made=made,
            version=version,
            shared=shared,
            opened=found,
            config=config,
            clock=clock,
            stores=stores,
            lanes=shared.lanes,
            bus=shared.bus,
            souls=found.souls,
            gate=found.gate,
            plugins=found.plugins,
            front=core.front,
            memory=core.memory,
            replays=core.replays,
            stateless=core.stateless,
            channels=room,
            pairing=book,
            watch=StoreWatch(stores.care.probe, clock),
            mcp=await _serve_mcp(made, shared, found, core.front, stack),
        )
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
    """Raises McpNotInstalled. Nothing is connected until a turn of an agent that has it begins."""
    if not config.mcp_servers:
        return
    if importlib.util.find_spec("mcp") is None:
        raise McpNotInstalled
    # An extra, and slow to import.
    from gateway.mcp.connecting import Dialling  # noqa: PLC0415
    from gateway.mcp.servers import open_servers  # noqa: PLC0415
    from gateway.mcp.supervising import Means as ServerMeans  # noqa: PLC0415

    clock, stores = shared.clock, shared.stores

    async def told_changed(facts: Mapping[str, object]) -> None:
        shared.tell("mcp.tool.changed", facts)
        actor = f"mcp:{facts['server']}"
        await stores.audit.append(Deed(clock.now(), "mcp.tool.changed", actor, facts))

    http = await shared.sockets.http("mcp")
    means = ServerMeans(
        dial=Dialling(http, config.gateway.data_dir / "mcp", clock).line,
        clock=clock,
        schemas=SchemaChecks(),
        store=stores.plugins,
        renew=gate.renew,
        tell=shared.tell,
        told_changed=told_changed,
        random=random.random,
    )
    gate.foreign = await stack.enter_async_context(open_servers(config.mcp_servers, means))


async def _serve_mcp(
    made: Generation, shared: Shared, found: Opened, front: Front, stack: AsyncExitStack
) -> Door | None:
    """What is served at /mcp, if anything is. Raises McpNotInstalled."""
    config = made.config
    if not config.mcp_serving.is_enabled:
        return None
    agent = replace(usual_agent(config), tools=config.mcp_serving.tools)
    desk = ServedDesk(front, found.gate, agent, to_json, from_json, shared.ids)
    serving = await to_thread.run_sync(_serving, desk, config.gateway.max_body_bytes)
    return await stack.enter_async_context(serving)


def _serving(desk: ServedDesk, most_bytes: int) -> AbstractAsyncContextManager[Door]:
    """To import it takes a third of a second, which a gateway without MCP does not wait."""
    try:
        from gateway.mcp.serving import serving  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise McpNotInstalled from error
    return serving(desk, schemas=SchemaChecks(), most_bytes=most_bytes)


def _channels(made: Generation, shared: Shared, core: Core, book: PairingBook) -> ChannelRoom:
    """No channel is open yet. Deliveries wait until somebody delivers."""
    stores, clock, counters = shared.stores, shared.clock, shared.counters
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
    intake = Intake(
        core.front.reception.accept,
        stores.channel_events,
        stores.channel_memos,
        clock,
        lambda: None,
        Doorman(book),
        commands,
        counters.taken,
        counters.ignored,
    )
    door = WebhookDoor(stores.audit, clock)
    kept = (stores.channel_memos, clock, shared.tell, door, scrubbing, counters.delivered)
    return ChannelRoom(intake, *kept)


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
    opened, clock = gateway.opened, gateway.clock
    beside: Mapping[str, Work] = {
        "souls": opened.souls.keep_fresh,
        "trees": opened.plans.keep_fresh,
        "rules": opened.rules.keep_fresh,
        "store": gateway.watch.run,
        "sweep": partial(sweep, gateway.config, gateway.stores, clock),
        "index": gateway.memory.indexer.run,
    }
    for name, task in beside.items():
        may_end = name == "rules"  # there may be none to follow
        work = partial(supervise, name, task, clock, may_end=may_end)
        opened.group.start_soon(work, name=name)
