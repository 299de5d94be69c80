"""Indexes messages for recall in the background, a few at a time."""

import logging
from collections.abc import Sequence

import anyio

from gateway.domain.errors import StoreLost, StoreUnavailable
from gateway.domain.ids import SessionKey
from gateway.domain.ports import Clock, FactStore

log = logging.getLogger(__name__)

GATHER_S = 1.0  # so that busy sessions share a commit; until then their windows show what was said
AGAIN_S = 5.0
PAUSE_S = 0.01
AT_ONCE = 64  # messages a commit: others wait for it a few milliseconds
SESSIONS_AT_ONCE = 1000


class Indexer:
    """The store keeps the position of each session; a restart continues there."""

    def __init__(self, index: FactStore, clock: Clock) -> None:
        self._index, self._clock = index, clock
        self._waiting: dict[SessionKey, None] = {}
        self._said = anyio.Event()
        self._is_behind = True  # sessions may wait that nobody has named to us

    @property
    def backlog(self) -> int:
        """Number of sessions with messages that are not yet indexed."""
        return len(self._waiting)

    def note(self, key: SessionKey) -> None:
        """Queues a session with new messages."""
        self._waiting[key] = None
        self._said.set()

    async def run(self) -> None:
        """Indexes until cancelled."""
        while True:
            try:
                if self._is_behind:
                    await self._take_up()
                else:
                    await self._said.wait()
                    await self._clock.sleep(GATHER_S)
                await self._work_off()
            except StoreLost:
                raise
            except StoreUnavailable as error:
                log.warning("what was said is not findable yet", extra={"why": str(error)})
                await self._clock.sleep(AGAIN_S)

    async def catch_up(self, key: SessionKey) -> None:
        """Returns once all messages of the session are indexed. Raises StoreUnavailable."""
        behind: Sequence[SessionKey] = (key,)
        while behind:
            behind = await self._index.index_turns(behind, limit=AT_ONCE)

    async def _take_up(self) -> None:
        """Queues the sessions that an earlier process left."""
        behind = await self._index.unindexed(limit=SESSIONS_AT_ONCE)
        self._waiting.update(dict.fromkeys(behind))
        self._is_behind = len(behind) == SESSIONS_AT_ONCE

    async def _work_off(self) -> None:
        self._said = anyio.Event()
        while self._waiting:
            keys = tuple(self._waiting)[:AT_ONCE]
            for key in keys:  # before it is looked at: what is said meanwhile must be noted anew
                del self._waiting[key]
            behind: Sequence[SessionKey] = keys  # should it fail
            try:
                behind = await self._index.index_turns(keys, limit=AT_ONCE)
            finally:
                for key in behind:
                    self.note(key)
            if behind:
                await self._clock.sleep(PAUSE_S)
