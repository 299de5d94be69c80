"""Which agent answers a message: bindings in, one route out, and why the others lost. Pure."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gateway.domain.agents import (
    OWN_CHANNELS,
    Address,
    Binding,
    MatchedBy,
    Rejection,
    Route,
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
Mask = tuple[bool, ...]


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
        self._agents = frozenset(agents)
        self._closed = closed
        self._bindings = tuple(bindings)
        self._default = default
        self._by_mask: dict[Mask, dict[Values, int]] = {}
        for index, binding in enumerate(bindings):
            given = _given(binding)
            mask = tuple(value is not None for value in given)
            self._by_mask.setdefault(mask, {}).setdefault(given, index)
        self._masks = sorted(self._by_mask, key=_rank)

    @property
    def agents(self) -> frozenset[AgentId]:
        return self._agents

    def resolve(self, address: Address, *, requested: str | None = None) -> Route:
        """The route of a message. `requested` names an agent and overrides the bindings.

        Raises NoRoute, UnknownAgent for a requested agent that is not defined, or NotOfProject.
        """
        route = self._route(address, requested)
        self.require_user(route.agent_id, address)
        return route

    def require_user(self, agent: str, address: Address) -> None:
        """Raises NotOfProject if the agent does not answer whoever speaks from there."""
        if not self.answers(agent, address):
            raise NotOfProject(agent)

    def answers(self, agent: str, address: Address) -> bool:
        """Whether the agent's project lets it answer whoever speaks from there."""
        person = address.sender or _peer(address)
        users = self._closed.get(AgentId(agent))
        return users is None or speaker(address.channel, address.account, person) in users

    def _route(self, address: Address, requested: str | None) -> Route:
        if requested is not None:
            if requested not in self._agents:
                raise UnknownAgent(requested, tuple(sorted(self._agents)))
            return _route(AgentId(requested), address, "request", None)
        index = self._winner(address)
        if index is not None:
            binding = self._bindings[index]
            return _route(binding.agent_id, address, _tier(_given(binding)), index)
        if self._default is None:
            raise NoRoute(address.channel, address.account, address.peer)
        return _route(self._default, address, "default", None)

    def rejected(self, address: Address) -> tuple[Rejection, ...]:
        """Every binding that did not decide, with the reason, in file order."""
        winner = self._winner(address)
        said = _said(address)
        return tuple(
            Rejection(index, self._why_not(_given(binding), said, winner))
            for index, binding in enumerate(self._bindings)
            if index != winner
        )

    def _winner(self, address: Address) -> int | None:
        said = _said(address)
        best: tuple[tuple[int, int], int] | None = None
        for mask in self._masks:
            rank = _rank(mask)
            if best is not None and rank > best[0]:
                break
            wanted = tuple(
                value if given else None for value, given in zip(said, mask, strict=True)
            )
            index = self._by_mask[mask].get(wanted)
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
        better = _given(self._bindings[winner])
        if _tier(better) != _tier(given):
            return f"binding {winner} matches by {_tier(better)}, this one by {_tier(given)}"
        if _count(better) != _count(given):
            return (
                f"binding {winner} is more specific: {_count(better)} fields, here {_count(given)}"
            )
        return f"binding {winner} is as specific and comes first in the file"


def _given(binding: Binding) -> Values:
    return (
        binding.peer_id,
        binding.guild_id,
        binding.team_id,
        binding.account_id,
        binding.channel,
    )


def _said(address: Address) -> Values:
    return (address.peer, address.guild, address.team, address.account, address.channel)


def _tier(given: Values) -> MatchedBy:
    return next(tier for tier, value in zip(TIERS, given, strict=True) if value is not None)


def _count(given: Values) -> int:
    return sum(value is not None for value in given)


def _rank(mask: Mask) -> tuple[int, int]:
    return mask.index(True), -sum(mask)


def _route(
    agent: AgentId, address: Address, matched_by: MatchedBy, binding_index: int | None
) -> Route:
    key = SessionKey(agent, address.channel, address.account, _peer(address, address.thread))
    return Route(agent, key, matched_by, binding_index)


def _peer(address: Address, thread: str | None = None) -> str:
    peer = peer_of(address.peer, thread, is_foreign=address.is_foreign)
    return peer if address.channel in OWN_CHANNELS else key_peer(peer, is_room=address.is_room)
