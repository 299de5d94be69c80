"""What a run is shown of memory: looked for within a bound, taken down, and given again to a replay."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Protocol

import anyio

from gateway.domain.agents import AgentDef
from gateway.domain.bindings import person_in, person_key, speaker
from gateway.domain.errors import BadSessionKey
from gateway.domain.facts import Fact
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.inbox import NewEntry
from gateway.domain.recall import Recalled, Remember
from gateway.domain.tape import Record, Tape
from gateway.domain.times import to_micros, to_time
from gateway.memory.episodes import Episode
from gateway.memory.vault import Vault
from gateway.sessions.taping import damaged

log = logging.getLogger(__name__)

LONGEST_S = 0.5
TOO_SLOW = f"nothing was looked up: it took longer than {LONGEST_S:g} s"
FAILED = "nothing was looked up: it failed; the operator finds why in the log"
SWITCHED_OFF = "switched off by context.semantic"

Found = tuple[tuple[Recalled, ...], str]  # and why there is nothing
Look = Callable[[], Awaitable[tuple[Recalled, ...]]]


def person_of(new: NewEntry) -> str:
    """Who is let in: whose settings hold, and whom a tool is told of."""
    key = new.session_key
    return speaker(key.channel, key.account, person_in(key, new.sender))


class Recollection(Protocol):
    async def of(self, new: NewEntry, agent: AgentDef, episode: Episode) -> Found:
        """For the question of a message; never fails."""
        ...


@dataclass(frozen=True, slots=True)
class Recollected:
    """An answer goes on without its memory rather than not at all."""

    remember: Remember | None = None
    vaults: Mapping[AgentId, Vault] = field(default_factory=dict)  # of agents that read notes

    async def of(self, new: NewEntry, agent: AgentDef, episode: Episode) -> Found:
        vault = self.vaults.get(agent.id)
        listed: tuple[Recalled, ...] = ()
        if vault is not None:
            key = new.session_key
            names = partial(vault.named, person_key(key, new.sender), key, new.accepted_at)
            listed, _ = await self._found(names, new)
        if self.remember is None or not agent.context.semantic:
            return listed, SWITCHED_OFF if self.remember else ""
        asked = (new.content, new.session_key, new.sender, agent, episode.nodes)
        found, missing = await self._found(
            partial(self.remember.of, *asked, is_all=episode.is_all), new
        )
        return (*listed, *found), missing

    async def _found(self, look: Look, new: NewEntry) -> Found:
        try:
            with anyio.fail_after(LONGEST_S):
                return await look(), ""
        except TimeoutError:
            log.warning("nothing remembered in time", extra={"run": new.run_id})
            return (), TOO_SLOW
        except Exception:
            log.exception("nothing remembered", extra={"run": new.run_id})
            return (), FAILED


@dataclass(frozen=True, slots=True)
class TapedRecollection:
    recollection: Recollection
    record: Record

    async def of(self, new: NewEntry, agent: AgentDef, episode: Episode) -> Found:
        found, missing = await self.recollection.of(new, agent, episode)
        if found or missing:
            self.record("remembered", [_plain(one) for one in found], missing)
        return found, missing


@dataclass(frozen=True, slots=True)
class RecollectionThen:
    """The same again, whatever is known by now."""

    found: Found

    async def of(self, new: NewEntry, agent: AgentDef, episode: Episode) -> Found:
        return self.found


def recollection_on(tape: Tape) -> RecollectionThen:
    """Raises TapeUnreadable."""
    found, missing = next((m.values for m in tape.marks if m.kind == "remembered"), ([], ""))
    try:
        return RecollectionThen((tuple(Recalled(**_values(one)) for one in found), missing))
    except (TypeError, ValueError, AttributeError, OverflowError, BadSessionKey) as error:
        raise damaged(error) from error


_NAMES = {kind: [one.name for one in fields(kind)] for kind in (Recalled, Fact)}
_TIMES = frozenset({"at", "learned_at", "valid_from", "valid_to", "superseded_at"})


def _plain(thing: Recalled | Fact) -> dict[str, object]:
    values = {name: getattr(thing, name) for name in _NAMES[type(thing)]}
    for name in _TIMES & values.keys():
        values[name] = to_micros(values[name]) if values[name] else None
    values["session_key"] = str(thing.session_key)
    if isinstance(thing, Recalled) and thing.fact:
        values["fact"] = _plain(thing.fact)
    return values


def _values(plain: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(plain)
    for name, value in plain.items():
        if name in _TIMES and value is not None:
            values[name] = to_time(value)
        elif name == "session_key":
            values[name] = SessionKey.parse(value)
        elif name == "source_message_ids":
            values[name] = tuple(value)
        elif name == "fact" and value is not None:
            values[name] = Fact(**_values(value))
    return values
