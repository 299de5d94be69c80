"""Brings the answers of one channel to its platform: cut, formatted by the adapter, sent by us."""

import hashlib
from base64 import b32encode
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import anyio
from pydantic_core import to_json

from gateway.channels.adapters import Adapter, Formatted, Request, Whence
from gateway.channels.answers import Arrived, Declined, Moved, TryAgain, read_answer
from gateway.channels.crossing import read_formatted, read_whence
from gateway.channels.progress import Health
from gateway.channels.rates import Rates
from gateway.channels.splitting import Piece, Splitting
from gateway.domain.channels import ChannelDef
from gateway.domain.errors import AdapterFailed, Denied
from gateway.domain.ids import RunId
from gateway.domain.inbox import NewDelivery
from gateway.domain.outbox import TWICE, Delivery, Receipt, Sending
from gateway.domain.ports import Clock, Fetch, FetchGrant, FetchRequest, HttpFailed

NOTHING_TO_SAY = "(The answer is empty.)"
MOST_HALVINGS = 4
AT_ONCE = 64  # requests of a channel
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What an adapter is asked to format; `edits` names the message to put it in the place of."""

    do: str
    key: str
    whence: Whence
    text: str = ""
    edits: str | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A message that an answer has begun in, and what stands there, if that is known."""

    message_id: str
    text: str = ""


async def _no_draft(_: RunId) -> Draft | None:
    return None


class TooLong(Exception):
    """The adapter wants the text cut smaller."""


@dataclass(slots=True)
class Post:
    """The way to one platform: asks the adapter for requests, and makes them, within its rates."""

    channel: ChannelDef
    adapter: Adapter
    fetch: Fetch
    clock: Clock
    rates: Rates = field(init=False)
    _leave: FetchGrant = field(init=False)
    _slots: anyio.CapacityLimiter = field(init=False)

    def __post_init__(self) -> None:
        description = self.adapter.description
        # The others go nowhere, but a platform that repeats one is not to be quoted.
        secrets = tuple(
            one if one.name in description.outbound.secrets else replace(one, origins=frozenset())
            for one in self.channel.secrets
        )
        self._leave = FetchGrant(self.adapter.plugin.origins, secrets)
        self.rates = Rates(description.limits.rates, self.clock)
        self._slots = anyio.CapacityLimiter(AT_ONCE)

    async def format(self, reply: Reply) -> Formatted:
        """Raises AdapterFailed, TooLong."""
        config, whence = self.channel.config, reply.whence
        asked = {
            "do": reply.do,
            "key": reply.key,
            "peer": whence.peer,
            "thread": whence.thread,
            "is_group": whence.is_group,
            "reply_to": whence.reply_to,
            "answer": whence.answer,
            "text": reply.text,
            "edits": reply.edits,
            "account": self.channel.account,
            "config": config,
            "api_base": config.get("api_base") or self.adapter.description.api_base,
        }
        formatted = read_formatted(await self.adapter.format(to_json(asked).decode()))
        if formatted.too_long:
            raise TooLong
        return formatted

    async def ask(self, request: Request, peer: str) -> Arrived | TryAgain | Moved | Declined:
        """Raises Denied, HttpFailed."""
        if "${" in request.url.partition("?")[2]:
            # What a platform is asked in a query may end where others read it.
            raise Denied(
                "an adapter's request has a secret in its query; put it in a header or path"
            )
        headers = tuple(request.headers.items())
        if (key := request.idempotency) is not None and key.header is not None:
            headers = (*headers, (key.header, key.key))
        ask = FetchRequest(request.method, request.url, headers, request.body.encode(), TIMEOUT_S)
        async with self._slots:
            fetched = await self.fetch.fetch(ask, self._leave)
        answer = read_answer(self.adapter.description.outbound, fetched)
        if isinstance(answer, TryAgain) and answer.after_s is not None:
            self.rates.close(peer, answer.after_s)
        return answer


class Ended(Exception):
    """A part did not arrive: what becomes of its delivery, and whether all others would fare so."""

    def __init__(self, receipt: Receipt, *, is_ours: bool = False) -> None:
        super().__init__(receipt.why)
        self.receipt, self.is_ours = receipt, is_ours


@dataclass(slots=True)
class Courier:
    """Implements Deliver. `draft_of` tells where a run's answer has begun already."""

    post: Post
    health: Health
    draft_of: Callable[[RunId], Awaitable[Draft | None]] = _no_draft

    async def deliver(self, delivery: Delivery, sending: Sending) -> Receipt:
        try:
            receipt = Receipt("sent", await self._all_parts(delivery, sending))
        except Ended as ended:
            if ended.is_ours:
                self.health.failed("out", str(ended))
            return ended.receipt
        except (AdapterFailed, Denied) as error:
            self.health.failed("out", str(error))
            return Receipt("failed", why=str(error))
        self.health.worked("out")
        return receipt

    def unsure(self, delivery: Delivery) -> Receipt:
        if delivery.is_safe:
            return Receipt("pending", why="it is sent again, which shows it once")
        return self.unkeyed()

    def unkeyed(self) -> Receipt:
        """The operator's choice, and the record of it."""
        if self.post.channel.on_unknown_send == "hold":
            return Receipt("unknown", why="it may have arrived")
        return Receipt("pending", why=f"it is sent again; {TWICE}")

    async def _all_parts(self, delivery: Delivery, sending: Sending) -> str | None:
        new, limits = delivery.new, self.post.adapter.description.limits
        splitting = Splitting(new.text if new.text.strip() else NOTHING_TO_SAY, limits.unit)
        start, limit, receipt = delivery.arrived, limits.text, delivery.receipt
        while start < len(splitting.text):
            piece = splitting.cut(start, limit)
            whence = _whence_of(new, is_first=start == 0)
            part = _Part(self, new.id, piece, sending, whence, receipt if start else None)
            try:
                draft = await self._draft(delivery) if start == 0 else None
                receipt = await part.send(draft) or receipt
                start = piece.end
                if start < len(splitting.text):
                    await sending(start, receipt=receipt, waits=True)
            except TooLong:
                limit = self._smaller(limit)
        return receipt

    async def _draft(self, delivery: Delivery) -> Draft | None:
        """That of this process, or what was edited when another one was killed."""
        mine = await self.draft_of(delivery.run_id) if delivery.run_id else None
        return mine or (Draft(delivery.receipt) if delivery.receipt else None)

    def _smaller(self, limit: int) -> int:
        limits = self.post.adapter.description.limits
        if limit <= limits.text >> MOST_HALVINGS:
            why = f"the adapter finds {limit} {limits.unit} too long"
            raise Ended(Receipt("failed", why=why))
        return limit // 2


def _whence_of(new: NewDelivery, *, is_first: bool) -> Whence:
    """Only the first part answers the question by name."""
    whence = read_whence(new.whence) if new.whence else Whence(new.peer, new.thread)
    return whence if is_first else replace(whence, reply_to=None)


@dataclass(slots=True)
class _Part:
    """One piece on its way. The requests that the adapter makes of it count as one."""

    courier: Courier
    delivery_id: str
    piece: Piece
    sending: Sending
    whence: Whence
    first: str | None  # the platform's id of the first part, if this is another one
    was_moved: bool = False

    async def send(self, draft: Draft | None) -> str | None:
        """The platform's id of the message. Raises Ended, AdapterFailed, Denied, TooLong."""
        if not self.piece.text.strip():
            return None
        if draft is not None and draft.text == self.piece.text.rstrip():
            return draft.message_id  # platforms refuse an edit that changes nothing
        post, whence, start = self.courier.post, self.whence, self.piece.start
        requests, is_safe = await self._requests(draft)
        receipt = edits = None if draft is None else draft.message_id
        for request in requests:
            await post.rates.take(whence.peer, is_group=whence.is_group)
            await self.sending(start, is_safe=is_safe, receipt=edits or self.first)
            answer = await self._ask(request, is_safe=is_safe)
            if not isinstance(answer, Arrived):
                return await self._otherwise(answer, draft)
            receipt = receipt or answer.message_id
        return receipt

    async def _requests(self, draft: Draft | None) -> tuple[Sequence[Request], bool]:
        """True: to make them all twice is to make them once."""
        post, name, text = self.courier.post, self.delivery_id, self.piece.text
        if draft is None:
            reply = Reply(self.whence.do, key_of(name, self.piece), self.whence, text)
        else:
            key = key_of(f"{name}:edit", self.piece)
            reply = Reply("edit", key, self.whence, text, draft.message_id)
        requests = (await post.format(reply)).requests
        return requests, draft is not None or all(one.idempotency for one in requests)

    async def _otherwise(
        self, answer: TryAgain | Moved | Declined, draft: Draft | None
    ) -> str | None:
        match answer:
            case Moved() if not self.was_moved:
                self.was_moved, self.whence = True, replace(self.whence, peer=answer.peer)
                return await self.send(draft)
            case Declined() if draft is not None:
                return await self.send(None)  # that message may be gone: the answer must not be
            case TryAgain():
                again = Receipt("pending", why=answer.why, retry_after_s=answer.after_s)
                raise Ended(again, is_ours=answer.after_s is None)
        is_ours = isinstance(answer, Declined) and answer.is_ours
        raise Ended(Receipt("failed", why=answer.why), is_ours=is_ours)

    async def _ask(
        self, request: Request, *, is_safe: bool
    ) -> Arrived | TryAgain | Moved | Declined:
        try:
            answer = await self.courier.post.ask(request, self.whence.peer)
        except HttpFailed as error:
            answer = TryAgain(str(error), None, is_unsure=error.sent)
        if isinstance(answer, TryAgain) and answer.is_unsure and not is_safe:
            unsure = self.courier.unkeyed()
            why = f"{answer.why}; {unsure.why}"
            raise Ended(replace(unsure, why=why, retry_after_s=answer.after_s), is_ours=True)
        return answer


def key_of(delivery_id: str, piece: Piece) -> str:
    """The same for the same part, and another one if it was cut elsewhere: no platform may take the
    one for the other."""
    name = f"{delivery_id}:{piece.start}:{piece.end}".encode()
    return b32encode(hashlib.sha256(name).digest())[:20].decode().lower()
