"""A model that looks for facts in its own time: debounced, metered, on nobody's way."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import anyio
from anyio.abc import TaskGroup

from gateway.domain.budgets import BudgetExceeded
from gateway.domain.errors import ModelFailed, StoreUnavailable
from gateway.domain.facts import Claim
from gateway.domain.hearing import Said
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.model import Delta
from gateway.domain.supervision import contained
from gateway.domain.words import words_of
from gateway.memory import extraction
from gateway.memory.keeping import Keeping

log = logging.getLogger(__name__)

AT_ONCE = 2  # models that are asked
PAGE = 100  # nodes
LONGEST_WAIT_S = 60.0  # however much is said meanwhile
ASK_S = 60.0
LOOKED_FOR = 40  # words by which known facts are found


@dataclass(slots=True)
class _Debt:
    said_at: float
    since: NodeId | None  # the first node that the store may not know to be owed


class Reader:
    """One task for each session in which something is owed."""

    def __init__(self, keeping: Keeping, group: TaskGroup) -> None:
        self._keeping, self._group = keeping, group
        self._debts: dict[SessionKey, _Debt] = {}
        self._slots = anyio.Semaphore(AT_ONCE)

    @property
    def behind(self) -> frozenset[SessionKey]:
        return frozenset(self._debts)

    def resume(self, keys: Sequence[SessionKey]) -> None:
        now = self._keeping.clock.monotonic()
        self._debts = {key: _Debt(now, None) for key in keys}
        self._group.start_soon(contained, "facts by a model", partial(self._pay_all, tuple(keys)))

    def owe(self, key: SessionKey, since: NodeId) -> None:
        """All that was said since that node is to be looked at, once the session is quiet."""
        now, debt = self._keeping.clock.monotonic(), self._debts.get(key)
        if debt is None:
            debt = self._debts[key] = _Debt(now, since)
            self._group.start_soon(contained, "facts by a model", partial(self._pay, key, debt))
        debt.said_at, debt.since = now, debt.since or since

    async def _pay_all(self, keys: Sequence[SessionKey]) -> None:
        for key in keys:
            await self._pay(key, self._debts[key])

    async def _pay(self, key: SessionKey, debt: _Debt) -> None:
        keeping, is_resumed = self._keeping, debt.since is None
        try:
            while is_resumed or debt.since is not None:
                if debt.since is not None:
                    await keeping.hearing.owe(key, debt.since)
                    await self._until_quiet(debt, keeping.agents[key.agent].context.quiet_s)
                is_resumed = False
                async with self._slots:
                    await self._read(key, debt)
        except StoreUnavailable as error:  # it is owed still, and seen to with the next turn
            log.warning("a model looks later", extra={"why": str(error), "session": str(key)})
        except Exception:
            # As with a lane's work: a defect of ours must not cancel the neighbours.
            log.exception("a model cannot look for facts", extra={"session": str(key)})
        finally:
            del self._debts[key]

    async def _until_quiet(self, debt: _Debt, quiet_s: float) -> None:
        clock = self._keeping.clock
        latest = clock.monotonic() + LONGEST_WAIT_S
        while (rest := min(debt.said_at + quiet_s, latest) - clock.monotonic()) > 0:
            await clock.sleep(rest)

    async def _read(self, key: SessionKey, debt: _Debt) -> None:
        hearing, is_owed = self._keeping.hearing, True
        while is_owed:
            debt.since = None  # what was told so far is in the store, beyond what is read now
            heard = await hearing.next_owed(key, limit=PAGE)
            if heard.upto is None:
                return
            await self._look_at(key, heard.said)
            is_owed = await hearing.read(key, heard.upto)

    async def _look_at(self, key: SessionKey, said: Sequence[Said]) -> None:
        """Each person by themselves: whose facts they are is not for a model to decide."""
        for person in dict.fromkeys(one.sender for one in said):
            theirs = [one for one in said if one.sender == person]
            for start in range(0, len(theirs), extraction.MOST_MESSAGES):
                some = theirs[start : start + extraction.MOST_MESSAGES]
                claims = await self._asked(key, person, some)
                await self._keeping.keep(key, person, claims)

    async def _asked(
        self, key: SessionKey, person: str | None, said: Sequence[Said]
    ) -> Sequence[Claim]:
        """What cannot be asked is left to the patterns, which have looked already."""
        keeping, agent = self._keeping, self._keeping.agents[key.agent]
        words = tuple(dict.fromkeys(word for one in said for word in words_of(one.text[:500])))
        known = await keeping.facts.matching(
            keeping.whose(key, person), words[:LOOKED_FOR], limit=extraction.KNOWN_SHOWN
        )
        request = extraction.request(agent, key, said, known, keeping.encode)
        try:
            with anyio.fail_after(ASK_S):
                reply = await keeping.model.reply(request, _unheard)
        except (BudgetExceeded, ModelFailed, TimeoutError) as error:
            log.warning("facts are left to patterns", extra={"why": str(error), "key": str(key)})
            return ()
        claims = extraction.claims_of(reply.text, key, said, keeping.decode)
        if claims is None:
            log.warning("a model's facts cannot be read", extra={"session": str(key)})
        return claims or ()


def _unheard(_delta: Delta) -> None:
    """Nobody listens."""
