"""Who may talk in channels, and what they may do there: over the opened rooms."""

from functools import partial

from pydantic_core import from_json

from gateway.app.memory import Memory, sharing
from gateway.app.telling import tell_of_gateway
from gateway.channels.commands import ChatCommands
from gateway.channels.pairing import PairingBook
from gateway.config.values import GatewayConfig
from gateway.control.bus import Bus
from gateway.domain.ports import Clock, Ids, Stores
from gateway.sessions.front import Front


def pairing_book(stores: Stores, bus: Bus, clock: Clock, ids: Ids) -> PairingBook:
    tell = partial(tell_of_gateway, bus, clock)
    return PairingBook(stores.pairings, stores.audit, clock, ids, tell)


def chat_commands(
    config: GatewayConfig, stores: Stores, front: Front, memory: Memory, book: PairingBook
) -> ChatCommands:
    return ChatCommands(
        front=front,
        spending=stores.spending,
        budgets=config.budgets,
        facts=stores.facts,
        find=memory.recall,
        settled=memory.settled,
        shared=sharing(config.agents),
        book=book,
        decode=from_json,
    )
