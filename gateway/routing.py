"""Routing: finds the agent that answers a message, from the bindings. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import MappingProxyType

from gateway.domain.agents import (
    OWN_CHANNELS,
    Address,
    Binding,
    MatchedBy,
    key_peer,
    peer_of,
    speaker,
)
from gateway.domain.errors import NoRoute, NotOfProject, UnknownAgent
from gateway.domain.ids import AgentId, SessionKey

# Highest first; a binding belongs to the tier of its highest field.
TIERS: tuple[MatchedBy, ...] = ("peer", "guild", "team", "account", "channel")

Closed = Mapping[AgentId, frozenset[str]]  # agents of projects, with the users that they answer
Values = tuple[str | None, ...]
Rank = tuple[int, int]  # the tier, and minus the number of fields: less is better


@dataclass(frozen=True, slots=True)
class Route:
    """The agent that answers, the session key, and the binding that decided (None: no binding)."""

    agent_id: AgentId
    session_key: SessionKey
    matched_by: MatchedBy
    binding_index: int | None = None


@dataclass(frozen=True, slots=True)
class Rejection:
    """A binding that did not decide, and the reason."""

    index: int
    why: str


class Router:
    """Finds the binding of a message in tables by its fields, so that a thousand bindings cost as ten."""

    def __init__(
        self,
        agents: Sequence[AgentId],
        bindings: Sequence[Binding],
        default: AgentId | None,
        *,
        closed: Closed = MappingProxyType({}),
    ) -> None:
        self._agents = {str(agent): agent for agent in agents}
        self._closed: Mapping[str, frozenset[str]] = {str(one): closed[one] for one in closed}
        self._bindings = tuple(bindings)
        self._values = [_binding_values(binding) for binding in bindings]
        self._default = default
        # One table for all bindings with the same fields, keyed by their values; the best rank first.
        tables: dict[tuple[int, ...], dict[object, int]] = {}
        for index, given in enumerate(self._values):
            fields = tuple(place for place, value in enumerate(given) if value is not None)
            tables.setdefault(fields, {}).setdefault(itemgetter(*fields)(given), index)
        self._tables = [
            ((fields[0], -len(fields)), itemgetter(*fields), table)
            for fields, table in sorted(tables.items(), key=lambda one: (one[0][0], -len(one[0])))
        ]

    def resolve(self, address: Address, *, requested: str | None = None) -> Route:
        """Returns the route of a message. `requested` names an agent and overrides the bindings.

        Raises NoRoute, UnknownAgent for a requested agent that is not defined, or NotOfProject.
        """
        index: int | None = None
        matched_by: MatchedBy = "default"
        if requested is not None:
            agent, matched_by = self._agents.get(requested), "request"
            if agent is None:
                raise UnknownAgent(requested, tuple(sorted(self._agents)))
        else:
            agent = self._default
            index = self._winner(address) if self._tables else None
            if index is not None:
                agent, matched_by = self._bindings[index].agent_id, _tier(self._values[index])
            elif agent is None:
                raise NoRoute(address.channel, address.account, address.peer)
        if agent in self._closed:
            self.require_user(agent, address)
        peer = _peer(address, address.thread)
        key = SessionKey(agent, address.channel, address.account, peer)
        return Route(agent, key, matched_by, index)

    def require_user(self, agent: str, address: Address) -> None:
        """Raises NotOfProject if the agent does not answer the sender."""
        if not self.answers(agent, address):
            raise NotOfProject(agent)

    def answers(self, agent: str, address: Address) -> bool:
        """True if the agent's project lets it answer the sender."""
        users = self._closed.get(agent)
        person = address.sender or _peer(address)
        return users is None or speaker(address.channel, address.account, person) in users

    def rejected(self, address: Address) -> tuple[Rejection, ...]:
        """Returns every binding that did not decide, with the reason, in file order."""
        winner, have = self._winner(address), _address_values(address)
        others = [index for index in range(len(self._values)) if index != winner]
        return tuple(
            Rejection(one, self._why_not(self._values[one], have, winner)) for one in others
        )

    def _winner(self, address: Address) -> int | None:
        values = _address_values(address)
        best: tuple[Rank, int] | None = None
        for rank, fields_of, table in self._tables:
            if best is not None and rank > best[0]:
                break
            index = table.get(fields_of(values))
            if index is not None and (best is None or index < best[1]):
                best = rank, index
        return None if best is None else best[1]

    def _why_not(self, given: Values, values: Values, winner: int | None) -> str:
        for name, want, have in zip(TIERS, given, values, strict=True):
            if want is not None and want != have:
                what = "is not given" if have is None else f"is {have!r}"
                return f"{name} {what}, the binding wants {want!r}"
        # The binding matches, so a winner exists and outranks it.
        assert winner is not None
        better = self._values[winner]
        if _tier(better) != _tier(given):
            return f"binding {winner} matches by {_tier(better)}, this one by {_tier(given)}"
        more, fewer = (len(values) - values.count(None) for values in (better, given))
        if more != fewer:
            return f"binding {winner} is more specific: {more} fields, here {fewer}"
        return f"binding {winner} is as specific and comes first in the file"


def _binding_values(binding: Binding) -> Values:
    place = (binding.peer_id, binding.guild_id, binding.team_id)
    return (*place, binding.account_id, binding.channel)


def _address_values(address: Address) -> Values:
    return (address.peer, address.guild, address.team, address.account, address.channel)


def _tier(given: Values) -> MatchedBy:
    return next(tier for tier, value in zip(TIERS, given, strict=True) if value is not None)


def _peer(address: Address, thread: str | None = None) -> str:
    """Returns the peer of the session key. A principal may choose any name for a conversation."""
    if address.channel in OWN_CHANNELS and thread is None and not address.is_foreign:
        return address.peer
    peer = peer_of(address.peer, thread, is_foreign=address.is_foreign)
    return peer if address.channel in OWN_CHANNELS else key_peer(peer, is_room=address.is_room)
