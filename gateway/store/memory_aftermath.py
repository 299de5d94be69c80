"""Settings, the state of rules and the notice board in memory."""

from collections.abc import Sequence
from datetime import datetime

from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import Ending
from gateway.domain.notices import Notice
from gateway.store.aftermath import MOST_POSTED, pack_notice, unpack_notice
from gateway.store.memory_shelf import Posted, Shelf
from gateway.store.rows import require_text, to_micros


class MemorySettings:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def read(self, user: str) -> str | None:
        require_text("the user's name", user)
        await self._shelf.ready()
        return self._shelf.settings.get(user)

    async def write(self, user: str, record: str, *, expected: str | None) -> bool:
        require_text("a user's settings", user, record)
        await self._shelf.ready()
        if self._shelf.settings.get(user) != expected:
            return False
        self._shelf.settings[user] = record
        return True


class MemoryRuleStates:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def of(self, key: SessionKey) -> str | None:
        require_text("the session's key", str(key))
        await self._shelf.ready()
        return self._shelf.rule_states.get(key)


class MemoryNotices:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def claim(
        self, person: str, session_key: SessionKey, run_id: RunId, *, now: datetime
    ) -> Sequence[Notice]:
        require_text("the person or the run", person, str(session_key), run_id)
        if not self._shelf.posted:
            return ()
        await self._shelf.ready()
        mine = [one for one in self._shelf.posted if one.person == person]
        mine = [one for one in mine if one.session_key.agent == session_key.agent]
        free = [one for one in mine if one.session_key != session_key]
        free = [one for one in free if one.claimed_by in {None, run_id}]
        free = [one for one in free if one.until is None or one.until > to_micros(now)]
        for one in free:
            one.claimed_by = run_id
        return [unpack_notice(one.until, one.packed) for one in free]


def leave(ending: Ending, shelf: Shelf) -> None:
    """Its share of the commit that ends a run."""
    for one in [one for one in shelf.posted if one.claimed_by == ending.run_id]:
        if ending.leaves_claimed:
            one.claimed_by = None
        else:
            shelf.posted.remove(one)
    if ending.rule_state is not None:
        shelf.rule_states[ending.session_key] = ending.rule_state
    for notice in ending.posts:
        until = None if notice.expires_at is None else to_micros(notice.expires_at)
        packed = pack_notice(notice)
        shelf.posted.append(Posted(ending.person, ending.session_key, until, packed))
    who = (ending.session_key.agent, ending.person)
    beside = [one for one in shelf.posted if (one.session_key.agent, one.person) == who]
    for old in [one for one in beside if one.claimed_by is None][:-MOST_POSTED]:
        shelf.posted.remove(old)
