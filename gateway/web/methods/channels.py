"""channel.list, channel.dead_letters, channel.resubmit, channel.drop: how channels fare, and what did not arrive."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from gateway.api.errors import Forbidden
from gateway.domain.channels import ChannelStatus, FlowProgress
from gateway.domain.errors import Conflict
from gateway.domain.inbox import HeardMessage
from gateway.domain.outbox import Delivery
from gateway.domain.ports import ChannelStore, Clock, Outbox
from gateway.web.given import Place, Whole
from gateway.web.methods.chat import Text
from gateway.web.published.channels import (
    Channel,
    ChannelList,
    ChannelProgress,
    DeadLetter,
    DeadLetterPage,
    LetterSettled,
    UnreadMessage,
)
from gateway.web.rpc import Call, Method, NoParams
from gateway.web.shapes import stamp, stamp_or_none

LONGEST_TEXT = 4_000  # characters of a letter that are shown


class _Params(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Letters(_Params):
    channel: Text | None = None
    before: Place | None = None
    limit: Whole = Field(default=50, ge=1, le=500)


class Letter(_Params):
    id: Text
    channel: Text | None = None  # of one that came in; ids of platforms are alike


@dataclass(frozen=True, slots=True)
class ChannelMethods:
    statuses: Callable[[], Sequence[ChannelStatus]]
    letters: Outbox
    events: ChannelStore
    nudge: Callable[[], None]  # something is to be delivered
    clock: Clock
    take_again: Callable[[HeardMessage], Awaitable[None]]  # raises Conflict

    def all(self) -> Sequence[Method]:
        return (
            Method("channel.list", NoParams, ("read",), self.list),
            Method("channel.dead_letters", Letters, ("admin",), self.dead_letters),
            Method("channel.resubmit", Letter, ("admin",), self.resubmit),
            Method("channel.drop", Letter, ("admin",), self.drop),
        )

    async def list(self, call: Call, params: NoParams) -> ChannelList:
        """How the channels fare."""
        _require_all(call)
        tally = await self.letters.tally()
        unread = await self.events.count_unread()

        def held(channel: str, *states: str) -> int:
            return sum(
                n for (name, state), n in tally.items() if name == channel and state in states
            )

        return {
            "channels": [
                _shown(
                    one,
                    held(one.name, "pending", "sending"),
                    held(one.name, "unknown", "failed"),
                    unread.get(one.name, 0),
                )
                for one in self.statuses()
            ]
        }

    async def dead_letters(self, call: Call, params: Letters) -> DeadLetterPage:
        """What did not arrive, and what came in and could not be taken."""
        _require_all(call)
        more = params.limit + 1
        found = await self.letters.dead_letters(params.channel, before=params.before, limit=more)
        unread = (
            [] if params.before else await self.events.unread(params.channel, limit=params.limit)
        )
        tally = await self.letters.tally()
        counted = await self.events.count_unread()
        return {
            "letters": [_letter(one) for one in found[: params.limit]],
            "more": len(found) > params.limit,
            "unread": [_unread(one) for one in unread],
            "counts": {
                "outgoing": sum(
                    n
                    for (name, state), n in tally.items()
                    if state in {"unknown", "failed"} and params.channel in {None, name}
                ),
                "incoming": sum(n for name, n in counted.items() if params.channel in {None, name}),
            },
        }

    async def resubmit(self, call: Call, params: Letter) -> LetterSettled:
        """Sends a dead letter again, or takes it in again."""
        _require_all(call)
        if (found := await self._unread(params)) is not None:
            await self.take_again(found)
            await self.events.drop_unread(found)
            return {"id": params.id, "state": "taken"}
        await self.letters.resubmit(params.id, now=self.clock.now())
        self.nudge()
        return {"id": params.id, "state": "pending"}

    async def drop(self, call: Call, params: Letter) -> LetterSettled:
        """Gives a dead letter up."""
        _require_all(call)
        if (found := await self._unread(params)) is not None:
            await self.events.drop_unread(found)
        else:
            await self.letters.drop(params.id)
        return {"id": params.id, "state": "dropped"}

    async def _unread(self, params: Letter) -> HeardMessage | None:
        """Of those that came in; None: it can only be one that went out. Raises Conflict."""
        found = await self.events.find_unread(params.id, params.channel)
        if len(found) > 1:
            raise Conflict(f"more than one channel has a message {params.id}: name the channel too")
        return found[0] if found else None


def _require_all(call: Call) -> None:
    if call.principal.agents is not None:
        raise Forbidden("channels serve all agents, and your token reaches some only")


def _shown(one: ChannelStatus, pending: int, dead: int, unread: int) -> Channel:
    return {
        "name": one.name,
        "plugin": one.plugin,
        "account": one.account,
        "transport": one.transport,
        "state": one.state,
        "why": one.why,
        "receiving": _progress(one.receiving),
        "sending": _progress(one.sending),
        "refused": dict(one.refused),
        "pending": pending,
        "dead": dead,
        "unread": unread,
    }


def _progress(one: FlowProgress) -> ChannelProgress:
    return {
        "last_at": stamp_or_none(one.last_at),
        "count": one.count,
        "failing_since": stamp_or_none(one.failing_since),
        "why": one.why,
    }


def _unread(one: HeardMessage) -> UnreadMessage:
    return {
        "id": one.platform_id,
        "channel": one.channel,
        "account": one.account,
        "why": one.why or None,
        "text": one.detail[:LONGEST_TEXT],
        "at": stamp(one.at),
    }


def _letter(one: Delivery) -> DeadLetter:
    new = one.new
    return {
        "id": new.id,
        "place": one.place,
        "channel": new.channel,
        "account": new.account,
        "peer": new.peer,
        "state": one.state,
        "why": one.why,
        "attempts": one.attempts,
        "text": new.text[:LONGEST_TEXT],
        "arrived": one.arrived,
        "run_id": one.run_id,
        "at": stamp(one.settled_at or one.due_at),
    }
