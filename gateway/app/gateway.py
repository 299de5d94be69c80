"""A generation at work: what its front door is given, and how it is drained."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
from pydantic_core import from_json, to_json

from gateway.app.core import Memory, Opened
from gateway.app.generation import Generation
from gateway.app.provider_test import ProviderTest
from gateway.app.shared import Shared
from gateway.channels.pairing import PairingBook
from gateway.channels.room import ChannelRoom, keep_lines
from gateway.config.keys import json_schema
from gateway.config.values import GatewayConfig
from gateway.control.notices import Bus
from gateway.domain.mcp import Door
from gateway.domain.ports import Clock, Stores
from gateway.memory.souls import Souls
from gateway.sandbox.plugins import Plugins
from gateway.sessions.intake import Front
from gateway.sessions.lanes import Lanes
from gateway.sessions.replay import Replays
from gateway.sessions.stateless import Stateless
from gateway.tools.gate import ToolGate
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
    config: GatewayConfig
    clock: Clock
    stores: Stores
    lanes: Lanes
    bus: Bus
    souls: Souls
    gate: ToolGate
    plugins: Plugins
    front: Front
    memory: Memory
    replays: Replays
    stateless: Stateless
    channels: ChannelRoom
    pairing: PairingBook
    watch: StoreWatch
    mcp: Door | None = None

    @property
    def health(self) -> Health:
        return self.watch.health

    def web(self, settings: WebSettings) -> WebApp:
        """The front door, with all methods and routes."""
        meter, stores, front = self.opened.meter, self.stores, self.front
        spending = BudgetMethods(front, stores.spending, meter)
        methods = self._methods(spending)
        metrics = Metrics(
            front,
            stores.spending,
            meter.refusals,
            spending.everything,
            self.health.reasons,
            self.version,
            self._channel_figures(),
            self.gate.foreign,
        )
        started = int(self.clock.now().timestamp())
        apis = (
            ChatApi(front, to_json, from_json, self.shared.ids),
            OpenAiApi(front, self.stateless, to_json, from_json, started),
            ConversationsApi(front),
            SessionMethods(front),
            spending,
            McpApi(self.mcp),
            *((metrics,) if self.config.observability.metrics else ()),
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
            clock=self.clock,
            identities=Identities(settings, self.clock, stores.audit),
        )
        app.open_webhooks(self.channels.door)
        return app

    def _methods(self, spending: BudgetMethods) -> Sequence[Method]:
        stores, front, made, memory = self.stores, self.front, self.made, self.memory
        about = About(
            version=self.version,
            started=self.clock.monotonic(),
            store_url=self.config.store.url,
            pid=os.getpid(),
            origin=str(self.config.origin or "none (built-in defaults)"),
        )
        insight = InsightMethods(
            front,
            about,
            self.health.reasons,
            from_json,
            gate=self.gate,
            plugins=lambda: self.plugins.infos,
            account=self.plugins.account,
            budget=spending.periods,
            backlog=memory.backlog,
            channels=self.channels.statuses,
            subagents=self.config.subagents,
        )
        channels = ChannelMethods(
            self.channels.statuses,
            stores.dead_letters,
            stores.channel_events,
            lambda: self.channels.intake.nudge(),
            self.clock,
            self.channels.take_again,
        )
        remembering = (stores.facts, memory.recall, self.clock, self.shared.ids, memory.settled)
        families = (
            spending,
            AuditMethods(stores.audit),
            PairMethods(self.pairing),
            channels,
            MemoryMethods(*remembering, made.sharing, front.upkeep),
            ChatMethods(front, to_json),
            SessionMethods(front),
            UpkeepMethods(front),
            EventMethods(self.bus),
            SettingsMethods(self.shared.settings, made.choosable),
            RuleMethods(self.opened.rules.now),
            ReplayMethods(front, self.replays),
            ProviderMethods(ProviderTest(self.config, self.opened.model, self.shared.ids)),
            insight,
        )
        return [method for family in families for method in family.all()]

    def _channel_figures(self) -> ChannelFigures:
        counted, letters = self.shared.counters, self.stores.dead_letters
        counts = (counted.taken, counted.ignored, counted.delivered)
        return ChannelFigures(self.channels.statuses, letters, *counts)

    async def keep_lines(self) -> None:
        """Keeps the connections to platforms, until they are hung up."""
        if self.channels.open:
            sockets = self.shared.sockets
            fetch, dialler = await sockets.guarded("lines"), await sockets.dialler()
            await keep_lines(self.channels, fetch, dialler)

    async def drain(self) -> None:
        """Takes nothing more in, and waits for the runs that are at work."""
        self.health.draining = True
        self.channels.hang_up()
        self.front.reception.close()
        self.stateless.close()
        self.lanes.pause()
        log.info("draining", extra={"running": self.lanes.working})
        with anyio.move_on_after(self.config.gateway.drain_s) as scope:
            await self.lanes.rest()
            await self.stateless.rest()
        if scope.cancelled_caught:
            log.warning("runs are cut off and start again", extra={"running": self.lanes.working})
        await self.channels.drain()
        self.front.live.abandon_all()
        self.stateless.abandon_all()
