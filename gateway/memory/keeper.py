"""Keeps what people say of themselves: patterns right after each turn, a model in its own time.

Patterns cost some ten microseconds a message, so a lane has them look before it takes its session's
next message, and only what they found has to be written: `settled` waits for that. So a fact told
in one turn is known in the next, and a turn in which nothing was told costs no read and no write;
how far they have looked is noted now and then, for many sessions at once. What a crash makes
unknown is looked at again, which changes nothing.
"""

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

import anyio
from anyio.abc import TaskGroup

from gateway.domain.errors import StoreUnavailable
from gateway.domain.facts import Claim
from gateway.domain.hearing import Said
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Node
from gateway.domain.supervision import contained
from gateway.memory.keeping import Keeping
from gateway.memory.patterns import claims_in
from gateway.memory.reader import Reader

log = logging.getLogger(__name__)

PAGE = 100  # nodes
NOTE_EVERY_S = 2.0
SETTLE_S = 0.5
AGAIN_S = 5.0  # after the store was away
REMEMBERED_LAST = 1_024  # sessions in which the last claim may be corrected

_Found = Sequence[tuple[str | None, Claim]]  # with who said it


class Keeper:
    """Its tasks live in the task group that it is given, and end with it."""

    def __init__(self, keeping: Keeping, group: TaskGroup) -> None:
        self._keeping, self._group = keeping, group
        self._reader = Reader(keeping, group)
        self._places: dict[SessionKey, NodeId] = {}  # looked at, and not noted yet
        self._is_noting = False
        self._writing: dict[SessionKey, anyio.Event] = {}
        self._behind: dict[SessionKey, int] = {}  # turns that came meanwhile
        self._catching: dict[SessionKey, anyio.Event] = {}  # of those behind, who is at work on
        self.last: dict[SessionKey, Claim] = {}

    @property
    def backlog(self) -> int:
        """Sessions in which something was said that is not looked at, or not kept, yet."""
        return len(self._behind.keys() | self._writing.keys() | self._reader.behind)

    async def resume(self) -> None:
        """Goes on where the process before this one was. Raises StoreUnavailable."""
        hearing, how = self._keeping.hearing, self._keeping.how
        self._behind = {key: 0 for key in await hearing.behind() if how(key) != "off"}
        self._reader.resume([key for key in await hearing.owed() if how(key) in {"auto", "model"}])
        self._group.start_soon(
            contained, "facts", partial(self._catch_up_all, tuple(self._behind), anyio.Event())
        )

    def told(self, key: SessionKey, said: Sequence[Said], upto: NodeId) -> None:
        """What people said in a run that has ended, with that node. Never waits."""
        how = self._keeping.how(key)
        if how == "off" or not said:
            return
        if how == "model":
            self._reader.owe(key, said[0].message_id)
        if key in self._behind:
            self._behind[key] += 1  # it is read from the store, in its order
        elif found := self._found(key, said):
            written = self._writing[key] = anyio.Event()
            self._group.start_soon(
                contained, "facts", partial(self._write, key, found, upto, written)
            )
        else:
            self._looked(key, upto)

    async def settled(self, key: SessionKey) -> None:
        """Waits, but not for long, until what was said in this session so far can be found."""
        written = self._writing.get(key)
        if written is None and key not in self._behind:
            return
        if written is None:
            written = anyio.Event()
            self._group.start_soon(contained, "facts", partial(self._catch_up_all, (key,), written))
        with anyio.move_on_after(SETTLE_S):
            await written.wait()

    def on_compacted(self, key: SessionKey, nodes: Sequence[Node]) -> None:
        """A summary stands for these now, and a model was asked anyway: it also looks at what was
        said in them and since."""
        if nodes and self._keeping.how(key) in {"auto", "model"}:
            self._reader.owe(key, nodes[0].id)

    def _found(self, key: SessionKey, said: Sequence[Said]) -> _Found:
        return [(one.sender, claim) for one in said for claim in self._claims(key, one)]

    def _claims(self, key: SessionKey, one: Said) -> Sequence[Claim]:
        last = self.last.pop(key, None)
        is_own = last and last.source and last.source.said_by == (one.sender or key.peer)
        claims = claims_in(one, key, last=last if is_own else None)
        if claims:
            self.last[key] = claims[-1]
            if len(self.last) > REMEMBERED_LAST:
                del self.last[next(iter(self.last))]
        return claims

    async def _write(
        self, key: SessionKey, found: _Found, upto: NodeId, written: anyio.Event
    ) -> None:
        try:
            for person, claims in _by_person(found):
                await self._keeping.keep(key, person, claims)
            self._looked(key, upto)
        except StoreUnavailable as error:
            self._fall_behind(key, error)
        except Exception:
            # As with a lane's work: a defect of ours must not cancel the neighbours.
            log.exception("facts are lost", extra={"session": str(key)})
        finally:
            written.set()
            if self._writing.get(key) is written:
                del self._writing[key]

    def _looked(self, key: SessionKey, upto: NodeId) -> None:
        self._places[key] = upto
        if not self._is_noting:
            self._is_noting = True
            self._group.start_soon(contained, "facts", partial(self._note))

    async def _note(self) -> None:
        """In one commit for all, while there is something; never ahead of facts on their way."""
        while self._places:
            await self._keeping.clock.sleep(NOTE_EVERY_S)
            due = {key: at for key, at in self._places.items() if key not in self._writing}
            try:
                await self._keeping.hearing.looked(due)
            except StoreUnavailable as error:
                log.warning("how far was looked is not noted yet", extra={"why": str(error)})
                continue
            for key, at in due.items():
                if self._places.get(key) == at:
                    del self._places[key]
        self._is_noting = False

    def _fall_behind(self, key: SessionKey, error: StoreUnavailable) -> None:
        log.warning("facts are kept later", extra={"why": str(error), "session": str(key)})
        self._places.pop(key, None)
        if key not in self._behind:
            self._behind[key] = 0
        self._group.start_soon(contained, "facts", partial(self._catch_up_later, key))

    async def _catch_up_later(self, key: SessionKey) -> None:
        await self._keeping.clock.sleep(AGAIN_S)
        await self._catch_up(key)

    async def _catch_up_all(self, keys: Sequence[SessionKey], done: anyio.Event) -> None:
        for key in keys:
            await self._catch_up(key)
        done.set()

    async def _catch_up(self, key: SessionKey) -> None:
        """Reads what patterns have not looked at, oldest first, until there is no more."""
        if key in self._catching:
            return await self._catching[key].wait()
        done = self._catching[key] = anyio.Event()
        hearing = self._keeping.hearing
        try:
            while (turns := self._behind.get(key)) is not None:
                heard = await hearing.next(key, limit=PAGE)
                for one in heard.said:
                    await self._keeping.keep(key, one.sender, self._claims(key, one))
                if heard.upto is not None:
                    await hearing.looked({key: heard.upto})
                elif self._behind.get(key) == turns:
                    self._behind.pop(key, None)
        except StoreUnavailable as error:
            self._fall_behind(key, error)
        except Exception:
            log.exception("facts of a session are lost", extra={"session": str(key)})
            self._behind.pop(key, None)
        finally:
            del self._catching[key]
            done.set()


def _by_person(found: _Found) -> Iterator[tuple[str | None, Sequence[Claim]]]:
    for person, those in groupby(found, key=lambda one: one[0]):
        yield person, [claim for _, claim in those]
