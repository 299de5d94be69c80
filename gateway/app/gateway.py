"""A generation at work: what its front door is given, and how it is drained."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
from pydantic_core import from_json, to_json

from gateway.app.core import Core, Opened
from gateway.app.generation import Generation
from gateway.app.shared import Shared, provider_trial
from gateway.channels.pairing import PairingBook
from gateway.channels.room import ChannelRoom, keep_lines
from gateway.config.keys import json_schema
from gateway.domain.mcp import Door
from gateway.web.asgi import WebApp, build
from gateway.web.asyncapi import asyncapi
from gateway.web.chat_api import ChatApi
from gateway.web.conversations_api import ConversationsApi
from gateway.web.documents_api import documented
from gateway.web.health import Health, StoreWatch
from gateway.web.identity import Identities
from gateway.web.mcp import McpApi
from gateway.web.methods.audit import AuditMethods
from gateway.web.methods.budget import BudgetMethods
from gateway.web.methods.channels import ChannelMethods
from gateway.web.methods.chat import ChatMethods
from gateway.web.methods.events import EventMethods
from gateway.web.methods.insight import About, InsightMethods
from gateway.web.methods.memory import MemoryMethods
from gateway.web.methods.pairing import PairMethods
from gateway.web.methods.providers import ProviderMethods
from gateway.web.methods.replays import ReplayMethods
from gateway.web.methods.rules import RuleMethods
from gateway.web.methods.sessions import SessionMethods
from gateway.web.methods.settings import SettingsMethods
from gateway.web.methods.upkeep import UpkeepMethods
from gateway.web.metrics import ChannelFigures, Metrics
from gateway.web.openai_api import OpenAiApi
from gateway.web.rpc import Method
from gateway.web.settings import WebSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gateway:
    """The rooms of one generation over what is shared. `mcp` is what is served to MCP clients."""

    made: Generation
    version: str
    shared: Shared
    opened: Opened
    core: Core
    channels: ChannelRoom
    pairing: PairingBook
    watch: StoreWatch
    mcp: Door | None = None

    @property
    def health(self) -> Health:
        return self.watch.health

    def web(self, settings: WebSettings) -> WebApp:
        """The front door, with all methods and routes."""
        meter, gate, clock = self.opened.meter, self.opened.gate, self.shared.clock
        stores, front = self.shared.stores, self.core.front
        spending = BudgetMethods(front, stores.spending, meter)
        methods = self._methods(spending)
        metrics = Metrics(
            front,
            stores.spending,
            meter.refusals,
            spending.everything,
            self.health.reasons,
            self.version,
            ChannelFigures(self.channels.statuses, stores.dead_letters, *self.shared.traffic),
            gate.foreign,
        )
        started = int(clock.now().timestamp())
        apis = (
            ChatApi(front, to_json, from_json, self.shared.ids),
            OpenAiApi(front, self.core.stateless, to_json, from_json, started),
            ConversationsApi(front),
            SessionMethods(front),
            spending,
            McpApi(self.mcp),
            *((metrics,) if self.made.config.observability.metrics else ()),
        )
        documents = {
            "/config.schema.json": json_schema,
            "/asyncapi.json": lambda: asyncapi(methods, self.version),
        }
        routes = [route for api in apis for route in api.routes()]
        app = build(
            settings,
            methods=methods,
            routes=documented(routes, self.version, documents),
            ready=self.watch.reasons,
            clock=clock,
            identities=Identities(settings, clock, stores.audit),
        )
        app.open_webhooks(self.channels.door)
        return app

    def _methods(self, spending: BudgetMethods) -> Sequence[Method]:
        shared, core, config = self.shared, self.core, self.made.config
        stores, clock, plugins = shared.stores, shared.clock, self.opened.plugins
        front, memory = core.front, core.memory
        about = About(
            version=self.version,
            started=clock.monotonic(),
            store_url=config.store.url,
            pid=os.getpid(),
            origin=str(config.origin or "none (built-in defaults)"),
        )
        insight = InsightMethods(
            front,
            about,
            self.health.reasons,
            from_json,
            gate=self.opened.gate,
            plugins=lambda: plugins.infos,
            account=plugins.account,
            budget=spending.periods,
            backlog=lambda: {
                "backlog": memory.keeper.backlog,
                "unindexed": memory.indexer.backlog,
            },
            channels=self.channels.statuses,
            subagents=config.subagents,
        )
        channels = ChannelMethods(
            self.channels.statuses,
            stores.dead_letters,
            stores.channel_events,
            lambda: self.channels.intake.nudge(),
            clock,
            self.channels.take_again,
        )
        remembering = (stores.facts, memory.recall, clock, shared.ids, memory.settled)
        families = (
            spending,
            AuditMethods(stores.audit),
            PairMethods(self.pairing),
            channels,
            MemoryMethods(*remembering, self.made.sharing, front.upkeep),
            ChatMethods(front, to_json),
            SessionMethods(front),
            UpkeepMethods(front),
            EventMethods(shared.bus),
            SettingsMethods(shared.settings, self.made.choosable),
            RuleMethods(self.opened.rules.now),
            ReplayMethods(front, core.replays),
            ProviderMethods(provider_trial(config, self.opened.model, shared.ids)),
            insight,
        )
        return [method for family in families for method in family.all()]

    async def keep_lines(self) -> None:
        """Keeps the connections to platforms, until they are hung up."""
        if self.channels.open:
            sockets = self.shared.sockets
            fetch, dialler = await sockets.guarded("lines"), await sockets.dialler()
            await keep_lines(self.channels, fetch, dialler)

    async def drain(self) -> None:
        """Takes nothing more in, and waits for the runs that are at work."""
        core, lanes = self.core, self.shared.lanes
        self.health.draining = True
        self.channels.hang_up()
        core.front.reception.close()
        core.stateless.close()
        lanes.pause()
        log.info("draining", extra={"running": lanes.working})
        with anyio.move_on_after(self.made.config.gateway.drain_s) as scope:
            await lanes.rest()
            await core.stateless.rest()
        if scope.cancelled_caught:
            log.warning("runs are cut off and start again", extra={"running": lanes.working})
        await self.channels.drain()
        self.shared.live.abandon_all()
        core.stateless.abandon_all()
