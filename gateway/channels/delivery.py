"""Delivery of answers to a platform: cuts, formats, paces and sends them; shows drafts and typing.

A text is cut into messages within the platform's limit, at paragraphs, lines, sentences or words. Drafts and typing
show that an answer is coming. No delivery depends on them.
"""

import hashlib
import logging
import math
import re
import unicodedata
from base64 import b32encode
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Literal

import anyio
from anyio.abc import TaskGroup
from pydantic_core import from_json, to_json

from gateway.channels.adapter_json import read_context, read_formatted
from gateway.channels.adapters import (
    Adapter,
    AdapterReply,
    AdapterRequest,
    Formatted,
    Rate,
    ReplyContext,
)
from gateway.channels.health import ChannelHealth
from gateway.channels.recipes import Answer, Arrived, Declined, Moved, TryAgain, read_answer
from gateway.domain.channels import ChannelDef
from gateway.domain.errors import AdapterFailed, Denied
from gateway.domain.ids import RunId
from gateway.domain.inbox import TWICE, Delivery, NewDelivery, Receipt, Sending
from gateway.domain.ports import Clock, Fetch, FetchGrant, FetchRequest, HttpFailed
from gateway.domain.supervision import contain, result_of
from gateway.sessions.runs import LiveRun

log = logging.getLogger(__name__)

NOTHING_TO_SAY = "(The answer is empty.)"
MOST_HALVINGS = 4
AT_ONCE = 64  # parallel requests of a channel
TIMEOUT_S = 30.0
FIRST_S = 1.0  # until the first draft
QUIET_S = 120.0  # without progress, after which typing is no longer shown
_KNOWN_DRAFTS = 1_000  # of ended runs
_KNOWN_BUCKETS = 4_096  # idle buckets above this number are dropped

Do = Literal["send", "edit", "typing", "join"]


# --------------------------------------------------------------------------------------- splitting
Unit = Literal["utf16", "characters", "bytes"]

_OPENS = re.compile(r"^ {0,3}(?P<mark>`{3,12}|~{3,12})(?P<info>[^`\n]{0,80})$", re.MULTILINE)
# Parts that stay whole if they fit: character references, links, inline code.
_WHOLE = re.compile(r"&#?\w{1,32};|!?\[[^\[\]\n]*\]\([^()\n]*\)|(`{1,2})[^`\n]+\1")
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
_LINE = re.compile(r"\n")
_SENTENCE = re.compile(r"[.!?…][\"')\]]*\s+|[。！？]")  # the second branch is for other scripts
_WORD = re.compile(r"\s+")
_JOINER = "\u200d"


@dataclass(frozen=True, slots=True)
class Piece:
    """One message: `text` is the sent form of the slice from `start` to `end`; blank if that is."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced code block; its content is from `body` to `close`."""

    start: int
    body: int
    close: int
    end: int
    opening: str  # the mark and the first word of the info string
    mark: str


def width_of(text: str, unit: Unit) -> int:
    return sum(map(_WIDTHS[unit], text))


class Splitting:
    """A text that can be cut from any offset. Joined slices give the text for all limits."""

    def __init__(self, text: str, unit: Unit = "characters") -> None:
        self.text = text
        self._unit: Unit = unit
        self._fences = tuple(_fences(text))
        self._starts = [fence.start for fence in self._fences]

    def cut(self, start: int, limit: int) -> Piece:
        """Returns the longest piece from `start` that fits, including the fences around it."""
        opened, reserved = self._fence_around(start, limit), 0
        before = opened.opening + "\n" if opened else ""
        while True:
            room = limit - width_of(before, self._unit) - reserved
            end = self._end(start, max(1, room))
            closed = self._fence_around(end, limit)
            after = "\n" + closed.mark if closed else ""
            needed = width_of(after, self._unit)
            if needed <= reserved:
                return Piece(start, end, self._dress(start, end, before, after))
            reserved = needed

    def _dress(self, start: int, end: int, before: str, after: str) -> str:
        said = self.text[start:end]
        if not before:
            said = said.lstrip("\n")
        if not after:
            return before + said.rstrip()
        return f"{before}{said}{'' if said.endswith(chr(10)) else chr(10)}{after.strip()}"

    def _fence_around(self, place: int, limit: int) -> Fence | None:
        """Returns the fence around an offset; None also if its opening is too long for the limit."""
        at = bisect_right(self._starts, place) - 1
        fence = self._fences[at] if at >= 0 else None
        is_around = fence and fence.body <= place < fence.close
        return fence if fence and is_around and 4 * len(fence.opening) < limit else None

    def _end(self, start: int, room: int) -> int:
        most = _fit_end(self.text, start, room, self._unit)
        if most == len(self.text):
            return most
        whole = self._whole(start, most, room)
        half = start + (most - start) // 2
        for pattern, least in (
            (_PARAGRAPH, half),
            (_LINE, half),
            (_SENTENCE, half),
            (_WORD, start),
        ):
            found = [match.end() for match in pattern.finditer(self.text, least, most + 1)]
            for end in reversed(found):
                if start < end <= most and end not in whole and not _joins(self.text, end):
                    return end
        return self._anywhere(start, most, whole)

    def _anywhere(self, start: int, most: int, whole: Set[int]) -> int:
        """Returns an end within a word, but not within one visible character if that fits."""
        end = most
        while end in whole:
            end -= 1
        end = place = end if end > start else most
        while place > start and _joins(self.text, place):
            place -= 1
        return place if place > start else end

    def _whole(self, start: int, most: int, room: int) -> Set[int]:
        """Returns the offsets inside the parts that stay whole; a part that cannot fit is cut."""
        spans = [match.span() for match in _WHOLE.finditer(self.text, start, most + room)]
        at = max(0, bisect_right(self._starts, start) - 1)
        for fence in self._fences[at : bisect_right(self._starts, most)]:
            spans.append((fence.start, min(fence.body + 1, len(self.text))))
            spans.append((max(fence.body, fence.close - 2), fence.end))
        return {
            place
            for first, last in spans
            if first >= start and last - first <= room
            for place in range(first + 1, last)
        }


def _fit_end(text: str, start: int, room: int, unit: Unit) -> int:
    """Returns the end of the longest slice that fits; at least one character always fits."""
    if unit == "characters":
        return min(len(text), start + room)
    width, end = _WIDTHS[unit], start
    for char in text[start : start + room]:
        room -= width(char)
        if room < 0:
            break
        end += 1
    return max(end, min(len(text), start + 1))


def _joins(text: str, place: int) -> bool:
    """True if the characters before and at an offset are visible as one."""
    if not 0 < place < len(text):
        return False
    char, before = text[place], text[place - 1]
    if before == "\r" and char == "\n":
        return True
    if char == _JOINER or before == _JOINER or _extends(char):
        return True
    flags = 0
    while _is_flag(char) and flags < min(place, 64) and _is_flag(text[place - 1 - flags]):
        flags += 1
    return flags % 2 == 1


def _extends(char: str) -> bool:
    return unicodedata.category(char).startswith("M") or (
        "\U0001f3fb" <= char <= "\U0001f3ff" or "\U000e0020" <= char <= "\U000e007f"
    )


def _is_flag(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _fences(text: str) -> Iterator[Fence]:
    place = 0
    while opens := _OPENS.search(text, place):
        mark = opens["mark"]
        body = min(len(text), opens.end() + 1)
        closing = re.compile(rf"^ {{0,3}}{mark[0]}{{{len(mark)},}}[ \t]*$", re.MULTILINE)
        closes = closing.search(text, body)
        close, place = closes.span() if closes else (len(text), len(text))
        word = opens["info"].split()[:1]
        yield Fence(opens.start(), body, close, place, mark + "".join(word), mark)
        if not closes:
            return


_WIDTHS: dict[Unit, Callable[[str], int]] = {
    "characters": lambda _char: 1,
    "utf16": lambda char: 2 if char > "\uffff" else 1,
    "bytes": lambda char: len(char.encode(errors="surrogatepass")),
}


# ----------------------------------------------------------------------------------------- rates
@dataclass(slots=True)
class _Bucket:
    """A token bucket of `count` tokens that refills in `per_s` seconds. Tasks wait in order."""

    count: float
    per_s: float
    tokens: float
    filled_at: float
    closed_until: float = -math.inf
    turn: anyio.Lock = field(default_factory=anyio.Lock)

    def wait_s(self, now: float) -> float:
        """Refills the bucket and returns the wait for a token."""
        gained = (now - self.filled_at) * self.count / self.per_s
        self.tokens, self.filled_at = min(self.count, self.tokens + gained), now
        missing = max(0.0, 1 - self.tokens) * self.per_s / self.count
        # A rounding error of the fractions is no reason to wait.
        return max(self.closed_until - now, missing if missing > 1e-6 else 0.0)

    def is_idle(self, now: float) -> bool:
        statistics = self.turn.statistics()
        is_free = not statistics.locked and not statistics.tasks_waiting
        return is_free and self.wait_s(now) <= 0 and self.tokens >= self.count


class Rates:
    """The request rates of a platform: buckets by peer, by room and for the account."""

    def __init__(self, rates: tuple[Rate, ...], clock: Clock) -> None:
        self._rates, self._clock = rates, clock
        self._buckets: OrderedDict[tuple[int, str], _Bucket] = OrderedDict()

    async def reserve(self, peer: str, *, is_group: bool) -> None:
        """Waits until one more request is allowed."""
        await self._pass(self._bucket(-1, peer, None))
        for number, rate in enumerate(self._rates):
            if rate.scope != "group" or is_group:
                name = "" if rate.scope == "account" else peer
                await self._pass(self._bucket(number, name, rate))

    def close(self, peer: str, seconds: float) -> None:
        """Blocks requests to a peer for the wait that the platform named."""
        bucket = self._bucket(-1, peer, None)
        bucket.closed_until = max(bucket.closed_until, self._clock.monotonic() + seconds)

    async def _pass(self, bucket: _Bucket) -> None:
        async with bucket.turn:
            while (wait_s := bucket.wait_s(self._clock.monotonic())) > 0:
                await self._clock.sleep(wait_s)
            bucket.tokens -= 1

    def _bucket(self, number: int, name: str, rate: Rate | None) -> _Bucket:
        """Returns the bucket of a peer for one rate; `rate` None has no limit unless closed."""
        now, key = self._clock.monotonic(), (number, name)
        bucket = self._buckets.get(key)
        if bucket is None:
            count, per_s = (rate.count, rate.per_s) if rate else (math.inf, 1.0)
            bucket = self._buckets[key] = _Bucket(count, per_s, count, now)
            self._forget(now)
        self._buckets.move_to_end(key)
        return bucket

    def _forget(self, now: float) -> None:
        """Drops up to three idle buckets for each new one."""
        is_full = len(self._buckets) > _KNOWN_BUCKETS
        for key in tuple(islice(self._buckets, 3)) if is_full else ():
            if self._buckets[key].is_idle(now):
                del self._buckets[key]
            else:
                self._buckets.move_to_end(key)


# --------------------------------------------------------------------------------------- sending
@dataclass(frozen=True, slots=True)
class Draft:
    """A sent message with the beginning of an answer, and its text if known."""

    message_id: str
    text: str = ""


async def _no_draft(_: RunId) -> Draft | None:
    return None


class TooLong(Exception):
    """The adapter asks for a shorter text."""


@dataclass(slots=True)
class PlatformClient:
    """Gets the requests of one channel from its adapter and sends them within the rates."""

    channel: ChannelDef
    adapter: Adapter
    fetch: Fetch
    clock: Clock
    rates: Rates = field(init=False)
    _grant: FetchGrant = field(init=False)
    _slots: anyio.CapacityLimiter = field(init=False)

    def __post_init__(self) -> None:
        description = self.adapter.description
        # A secret without origins is never sent, but is still removed from quoted answers.
        secrets = tuple(
            one if one.name in description.outbound.secrets else replace(one, origins=frozenset())
            for one in self.channel.secrets
        )
        self._grant = FetchGrant(self.adapter.plugin.origins, secrets)
        self.rates = Rates(description.limits.rates, self.clock)
        self._slots = anyio.CapacityLimiter(AT_ONCE)

    async def format(
        self, do: Do, key: str, to: ReplyContext, text: str = "", *, edits: str | None = None
    ) -> Formatted:
        """Returns the adapter's requests; `edits` is the id of the message to replace. Raises
        AdapterFailed, TooLong."""
        base, channel = self.adapter.description.api_base, self.channel
        if isinstance(own := channel.config.get("api_base"), str) and own:
            base = own
        what = (to.peer, to.thread, to.is_group, to.reply_to, to.answer, text, edits)
        reply = AdapterReply(do, key, *what, channel.account, channel.config, base)
        formatted = read_formatted(await self.adapter.format(to_json(reply).decode()))
        if formatted.too_long:
            raise TooLong
        return formatted

    async def ask(self, request: AdapterRequest, peer: str) -> Answer:
        """Sends one request and reads its answer. Raises Denied, HttpFailed."""
        if "${" in request.url.partition("?")[2]:  # queries end up in logs of others
            raise Denied("the request has a secret in its query; put it in a header or path")
        headers = tuple(request.headers.items())
        if (key := request.idempotency) is not None and key.header is not None:
            headers = (*headers, (key.header, key.key))
        ask = FetchRequest(request.method, request.url, headers, request.body.encode(), TIMEOUT_S)
        async with self._slots:
            fetched = await self.fetch.fetch(ask, self._grant)
        answer = read_answer(self.adapter.description.outbound, fetched)
        if isinstance(answer, TryAgain) and answer.after_s is not None:
            self.rates.close(peer, answer.after_s)
        return answer


class Ended(Exception):
    """A part did not arrive. `receipt` is the result of the delivery; with `is_ours` every delivery
    would fail."""

    def __init__(self, receipt: Receipt, *, is_ours: bool = False) -> None:
        super().__init__(receipt.why)
        self.receipt, self.is_ours = receipt, is_ours


@dataclass(slots=True)
class ChannelSender:
    """Implements Deliver. `draft_of` returns the draft of a run's answer."""

    client: PlatformClient
    health: ChannelHealth
    draft_of: Callable[[RunId], Awaitable[Draft | None]] = _no_draft

    async def deliver(self, delivery: Delivery, sending: Sending) -> Receipt:
        try:
            receipt = Receipt("sent", await self._send_parts(delivery, sending))
        except Ended as ended:
            if ended.is_ours:
                self.health.record_failure("out", str(ended))
            return ended.receipt
        except (AdapterFailed, Denied) as error:
            self.health.record_failure("out", str(error))
            return Receipt("failed", why=str(error))
        self.health.record_success("out")
        return receipt

    def unsure(self, delivery: Delivery) -> Receipt:
        if delivery.is_safe:
            return Receipt("pending", why="retried; the platform shows it once")
        return self.receipt_unkeyed()

    def receipt_unkeyed(self) -> Receipt:
        """Returns the receipt that the operator chose for a message that may have arrived."""
        if self.client.channel.on_unknown_send == "hold":
            return Receipt("unknown", why="it may have arrived")
        return Receipt("pending", why=f"retried; {TWICE}")

    async def _send_parts(self, delivery: Delivery, sending: Sending) -> str | None:
        new, limits = delivery.new, self.client.adapter.description.limits
        splitting = Splitting(new.text if new.text.strip() else NOTHING_TO_SAY, limits.unit)
        start, limit, receipt = delivery.arrived, limits.text, delivery.receipt
        while start < len(splitting.text):
            piece = splitting.cut(start, limit)
            part = _Part(self, new, piece, sending, receipt if start else None)
            try:
                draft = await self._draft(delivery) if start == 0 else None
                receipt = await part.send(draft) or receipt
                start = piece.end
                if start < len(splitting.text):
                    await sending(start, receipt=receipt, waits=True)
            except TooLong:
                if limit <= limits.text >> MOST_HALVINGS:
                    why = f"the adapter refuses a text of {limit} {limits.unit} as too long"
                    raise Ended(Receipt("failed", why=why)) from None
                limit //= 2
        return receipt

    async def _draft(self, delivery: Delivery) -> Draft | None:
        """Returns the draft of this process, or the message that a killed process was editing."""
        mine = await self.draft_of(delivery.run_id) if delivery.run_id else None
        return mine or (Draft(delivery.receipt) if delivery.receipt else None)


@dataclass(slots=True)
class _Part:
    """The sending of one piece; the adapter's requests for it count as one. `first` is the platform's
    id of the first part; None in the first part."""

    sender: ChannelSender
    new: NewDelivery
    piece: Piece
    sending: Sending
    first: str | None
    _to: ReplyContext = field(init=False)
    _was_moved: bool = False

    def __post_init__(self) -> None:
        new = self.new
        to = read_context(new.whence) if new.whence else ReplyContext(new.peer, new.thread)
        # Only the first part refers to the question.
        self._to = to if self.piece.start == 0 else replace(to, reply_to=None)

    async def send(self, draft: Draft | None) -> str | None:
        """Sends the piece, or edits the draft, and returns the platform's id of the message. Raises
        Ended, AdapterFailed, Denied, TooLong."""
        client, to, text = self.sender.client, self._to, self.piece.text
        if not text.strip():
            return None
        if draft is not None and draft.text == text.rstrip():
            return draft.message_id  # platforms refuse an edit that changes nothing
        requests, is_safe = await self._requests(draft)
        receipt = edits = None if draft is None else draft.message_id
        for request in requests:
            await client.rates.reserve(to.peer, is_group=to.is_group)
            await self.sending(self.piece.start, is_safe=is_safe, receipt=edits or self.first)
            answer = await self._ask(request, is_safe=is_safe)
            if not isinstance(answer, Arrived):
                return await self._send_otherwise(answer, draft)
            receipt = receipt or answer.message_id
        return receipt

    async def _requests(self, draft: Draft | None) -> tuple[Sequence[AdapterRequest], bool]:
        """Returns the adapter's requests, and True if repeating them all is idempotent."""
        do: Do = self._to.do
        name, edits = self.new.id, None
        if draft is not None:
            do, name, edits = "edit", f"{name}:edit", draft.message_id
        key, text = key_of(name, self.piece), self.piece.text
        formatted = await self.sender.client.format(do, key, self._to, text, edits=edits)
        requests = formatted.requests
        return requests, draft is not None or all(one.idempotency for one in requests)

    async def _send_otherwise(
        self, answer: TryAgain | Moved | Declined, draft: Draft | None
    ) -> str | None:
        match answer:
            case Moved() if not self._was_moved:
                self._was_moved, self._to = True, replace(self._to, peer=answer.peer)
                return await self.send(draft)
            case Declined() if draft is not None:
                return await self.send(None)  # the draft may be gone, but the answer must arrive
            case TryAgain():
                again = Receipt("pending", why=answer.why, retry_after_s=answer.after_s)
                raise Ended(again, is_ours=answer.after_s is None)
        is_ours = isinstance(answer, Declined) and answer.is_ours
        raise Ended(Receipt("failed", why=answer.why), is_ours=is_ours)

    async def _ask(self, request: AdapterRequest, *, is_safe: bool) -> Answer:
        try:
            answer = await self.sender.client.ask(request, self._to.peer)
        except HttpFailed as error:
            answer = TryAgain(str(error), None, is_unsure=error.sent)
        if isinstance(answer, TryAgain) and answer.is_unsure and not is_safe:
            unsure = self.sender.receipt_unkeyed()
            why = f"{answer.why}; {unsure.why}"
            raise Ended(replace(unsure, why=why, retry_after_s=answer.after_s), is_ours=True)
        return answer


def key_of(delivery_id: str, piece: Piece) -> str:
    """Returns the idempotency key of a part. A part with other bounds gets another key."""
    name = f"{delivery_id}:{piece.start}:{piece.end}".encode()
    return b32encode(hashlib.sha256(name).digest())[:20].decode().lower()


# ------------------------------------------------------------------------------ drafts and typing
@dataclass(slots=True)
class _LiveDraft:
    run_id: RunId
    to: ReplyContext
    progress_at: float
    text: str = ""
    draft: Draft | None = None
    drafts: int = 0
    is_over: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Drafts:
    """The drafts and typing of one channel, one task in `group` for each run."""

    def __init__(
        self, client: PlatformClient, find: Callable[[RunId], LiveRun | None], group: TaskGroup
    ) -> None:
        self._client, self._find, self._group = client, find, group
        self._drafts: OrderedDict[RunId, _LiveDraft] = OrderedDict()

    def start(self, run_id: RunId, context: str) -> None:
        """Starts to show the progress of a run; `context` is the JSON kept with its message."""
        outbound, run = self._client.adapter.description.outbound, self._find(run_id)
        if run is None or run_id in self._drafts:
            return
        if outbound.edits or outbound.typing_every_s is not None:
            mine = _LiveDraft(run_id, read_context(context), self._client.clock.monotonic())
            self._drafts[run_id] = mine
            work = partial(self._show_until_over, mine, run)
            self._group.start_soon(contain, "an answer on its way", work)
        ended = [name for name, one in self._drafts.items() if one.is_over.is_set()]
        for name in ended[: max(0, len(self._drafts) - _KNOWN_DRAFTS)]:
            del self._drafts[name]

    async def draft_of(self, run_id: RunId) -> Draft | None:
        """Stops the drafts of a run and returns the last one."""
        mine = self._drafts.get(run_id)
        if mine is None:
            return None
        mine.scope.cancel()
        await mine.is_over.wait()
        return mine.draft

    async def _show_until_over(self, mine: _LiveDraft, run: LiveRun) -> None:
        def on_event(event: bytes, is_last: bool) -> None:  # noqa: FBT001  # the shape of a Listener
            if is_last:
                mine.scope.cancel()
                return
            chunk = from_json(event)
            mine.progress_at = self._client.clock.monotonic()
            if chunk["type"] == "content":
                mine.text += chunk["content"]
            elif chunk["type"] == "tool_result" or "discard_from_seq" in chunk.get("metadata", ()):
                mine.text = ""  # only the text after the last tool is the answer

        stop = run.listen(on_event)
        try:
            with mine.scope:  # a failure of the platform or the adapter ends only the drafts
                await result_of("draft_failed", {"run": mine.run_id}, self._show, mine, run)
        finally:
            stop()
            mine.text = ""
            mine.is_over.set()

    async def _show(self, mine: _LiveDraft, run: LiveRun) -> None:
        outbound = self._client.adapter.description.outbound
        async with anyio.create_task_group() as group:
            if outbound.edits:
                group.start_soon(self._keep_drafting, mine)
            if outbound.typing_every_s is not None:
                group.start_soon(self._keep_typing, mine, run, outbound.typing_every_s)

    async def _keep_typing(self, mine: _LiveDraft, run: LiveRun, every_s: float) -> None:
        clock = self._client.clock
        while clock.monotonic() - mine.progress_at < QUIET_S:
            if run.state != "running":
                mine.progress_at = clock.monotonic()  # a queued run makes no progress yet
            elif not await self._send(mine, "typing"):
                return
            await clock.sleep(every_s)

    async def _keep_drafting(self, mine: _LiveDraft) -> None:
        description, is_group = self._client.adapter.description, mine.to.is_group
        outbound, limits = description.outbound, description.limits
        every_s = outbound.edit_every_s_group if is_group else outbound.edit_every_s
        while True:
            await self._client.clock.sleep(FIRST_S if mine.draft is None else every_s)
            text = mine.text and Splitting(mine.text, limits.unit).cut(0, limits.text).text
            text = text.rstrip()
            if not text or (mine.draft and mine.draft.text == text):
                continue
            await self._client.rates.reserve(mine.to.peer, is_group=is_group)
            if not await self._send(mine, "edit" if mine.draft else "send", text):
                return

    async def _send(self, mine: _LiveDraft, do: Do, text: str = "") -> bool:
        """Sends a draft or a sign of typing; False if it failed, without a retry."""
        # A started request finishes, because its answer holds the id of the message.
        is_sent = False
        with anyio.CancelScope(shield=True):
            try:
                is_sent = await self._ask(mine, do, text)
            except (AdapterFailed, Denied, HttpFailed, TooLong) as error:
                extra = {"channel": self._client.channel.name, "why": str(error)}
                log.info("draft_not_sent", extra=extra)
        return is_sent

    async def _ask(self, mine: _LiveDraft, do: Do, text: str) -> bool:
        mine.drafts += 1  # gives each edit its own key
        key = key_of(f"{mine.run_id}:{do}:{mine.drafts}", Piece(0, len(text), text))
        made = mine.draft.message_id if mine.draft else None
        formatted = await self._client.format(do, key, mine.to, text, edits=made)
        if do == "send" and not formatted.edit:
            return False
        for request in formatted.requests:
            answer = await self._client.ask(request, mine.to.peer)
            if not isinstance(answer, Arrived):
                return False
            made = made or answer.message_id
        if do != "typing" and made is not None:
            mine.draft = Draft(made, text)
        return do == "typing" or made is not None
