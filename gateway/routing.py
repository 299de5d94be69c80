"""Which agent answers a message: bindings in, one route out, and why the others lost. Pure."""

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

Closed = Mapping[AgentId, frozenset[str]]  # agents of projects, and whom they answer
Values = tuple[str | None, ...]
Rank = tuple[int, int]  # the tier, and how many fields are given: less is better


@dataclass(frozen=True, slots=True)
class Route:
    """Who answers, under which session key, and which binding decided it (None: no binding)."""

    agent_id: AgentId
    session_key: SessionKey
    matched_by: MatchedBy
    binding_index: int | None = None


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a binding was not the one."""

    index: int
    why: str


class Router:
    """Looks a message up by the fields that bindings give, so a thousand bindings cost like ten."""

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
        # The bindings that give the same fields, by what they give; the best rank first.
        tables: dict[tuple[int, ...], dict[object, int]] = {}
        for index, given in enumerate(self._values):
            fields = tuple(place for place, value in enumerate(given) if value is not None)
            tables.setdefault(fields, {}).setdefault(itemgetter(*fields)(given), index)
        self._tables = [
            ((fields[0], -len(fields)), itemgetter(*fields), table)
            for fields, table in sorted(tables.items(), key=lambda one: (one[0][0], -len(one[0])))
        ]

    def resolve(self, address: Address, *, requested: str | None = None) -> Route:
        """The route of a message. `requested` names an agent and overrides the bindings.

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
        """Raises NotOfProject if the agent does not answer whoever speaks from there."""
        if not self.answers(agent, address):
            raise NotOfProject(agent)

    def answers(self, agent: str, address: Address) -> bool:
        """Whether the agent's project lets it answer whoever speaks from there."""
        users = self._closed.get(agent)
        person = address.sender or _peer(address)
        return users is None or speaker(address.channel, address.account, person) in users

    def rejected(self, address: Address) -> tuple[Rejection, ...]:
        """Every binding that did not decide, with the reason, in file order."""
        winner, said = self._winner(address), _address_values(address)
        others = [index for index in range(len(self._values)) if index != winner]
        return tuple(
            Rejection(one, self._why_not(self._values[one], said, winner)) for one in others
        )

    def _winner(self, address: Address) -> int | None:
        said = _address_values(address)
        best: tuple[Rank, int] | None = None
        for rank, fields_of, table in self._tables:
            if best is not None and rank > best[0]:
                break
            index = table.get(fields_of(said))
            if index is not None and (best is None or index < best[1]):
                best = rank, index
        return None if best is None else best[1]

    def _why_not(self, given: Values, said: Values, winner: int | None) -> str:
        for name, want, have in zip(TIERS, given, said, strict=True):
            if want is not None and want != have:
                what = "is not given" if have is None else f"is {have!r}"
                return f"{name} {what}, the binding wants {want!r}"
        # It matches, so some winner exists and outranks it.
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
    """The peer of the session key. A principal names conversations as it likes."""
    if address.channel in OWN_CHANNELS and thread is None and not address.is_foreign:
        return address.peer
    peer = peer_of(address.peer, thread, is_foreign=address.is_foreign)
    return peer if address.channel in OWN_CHANNELS else key_peer(peer, is_room=address.is_room)
