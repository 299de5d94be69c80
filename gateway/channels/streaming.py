"""Shows that an answer is coming: typing, and drafts that are edited. Nothing depends on either."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import anyio
from anyio.abc import TaskGroup
from pydantic_core import from_json

from gateway.channels.adapters import Whence
from gateway.channels.answers import Arrived
from gateway.channels.crossing import read_whence
from gateway.channels.delivery import Draft, Post, Reply, TooLong, key_of
from gateway.channels.splitting import Piece, Splitting
from gateway.domain.errors import AdapterFailed, Denied
from gateway.domain.ids import RunId
from gateway.domain.ports import HttpFailed
from gateway.domain.supervision import contained
from gateway.sessions.runs import LiveRun

log = logging.getLogger(__name__)

FIRST_S = 1.0  # of text, before the first draft
QUIET_S = 120.0  # without progress: then nobody is told any longer that we type
_KNOWN = 1_000  # drafts of runs that have ended


@dataclass(slots=True)
class _Followed:
    run_id: RunId
    whence: Whence
    heard_at: float
    text: str = ""
    draft: Draft | None = None
    drafts: int = 0
    is_over: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Streaming:
    """Of one channel. Its tasks run in `group`, one a run."""

    def __init__(
        self, post: Post, find: Callable[[RunId], LiveRun | None], group: TaskGroup
    ) -> None:
        self._post, self._find, self._group = post, find, group
        self._followed: OrderedDict[RunId, _Followed] = OrderedDict()

    def follow(self, run_id: RunId, whence: str) -> None:
        """A message was accepted; `whence` is JSON, as it is kept with it."""
        outbound, run = self._post.adapter.description.outbound, self._find(run_id)
        if run is None or run_id in self._followed:
            return
        if outbound.edits or outbound.typing_every_s is not None:
            mine = _Followed(run_id, read_whence(whence), self._post.clock.monotonic())
            self._followed[run_id] = mine
            self._group.start_soon(
                contained, "an answer on its way", partial(self._accompany, mine, run)
            )
        ended = [name for name, one in self._followed.items() if one.is_over.is_set()]
        for name in ended[: max(0, len(self._followed) - _KNOWN)]:
            del self._followed[name]

    async def draft_of(self, run_id: RunId) -> Draft | None:
        """Where the answer of a run has begun, once nothing of it is under way any more."""
        mine = self._followed.get(run_id)
        if mine is None:
            return None
        mine.scope.cancel()
        await mine.is_over.wait()
        return mine.draft

    async def _accompany(self, mine: _Followed, run: LiveRun) -> None:
        def hear(event: bytes, is_last: bool) -> None:  # noqa: FBT001  # the shape of a Listener
            if is_last:
                mine.scope.cancel()
            else:
                self._hear(mine, event)

        stop = run.listen(hear)
        try:
            with mine.scope:
                await self._show(mine, run)
        except Exception:
            # Whatever a platform or an adapter provokes here ends nothing else.
            log.exception("an answer is not shown as it comes", extra={"run": mine.run_id})
        finally:
            stop()
            mine.text = ""
            mine.is_over.set()

    async def _show(self, mine: _Followed, run: LiveRun) -> None:
        outbound = self._post.adapter.description.outbound
        async with anyio.create_task_group() as group:
            if outbound.edits:
                group.start_soon(self._keep_drafting, mine)
            if outbound.typing_every_s is not None:
                group.start_soon(self._keep_typing, mine, run, outbound.typing_every_s)

    def _hear(self, mine: _Followed, event: bytes) -> None:
        chunk = from_json(event)
        mine.heard_at = self._post.clock.monotonic()
        if chunk["type"] == "content":
            mine.text += chunk["content"]
        elif chunk["type"] == "tool_result" or "discard_from_seq" in chunk.get("metadata", ()):
            mine.text = ""  # the answer is what is said after the last tool

    async def _keep_typing(self, mine: _Followed, run: LiveRun, every_s: float) -> None:
        clock = self._post.clock
        while clock.monotonic() - mine.heard_at < QUIET_S:
            if run.state != "running":
                mine.heard_at = clock.monotonic()  # it waits for others
            elif not await self._send(mine, "typing"):
                return
            await clock.sleep(every_s)

    async def _keep_drafting(self, mine: _Followed) -> None:
        description, is_group = self._post.adapter.description, mine.whence.is_group
        outbound, limits = description.outbound, description.limits
        every_s = outbound.edit_every_s_group if is_group else outbound.edit_every_s
        while True:
            await self._post.clock.sleep(FIRST_S if mine.draft is None else every_s)
            text = mine.text and Splitting(mine.text, limits.unit).cut(0, limits.text).text
            text = text.rstrip()
            if not text or (mine.draft and mine.draft.text == text):
                continue
            await self._post.rates.take(mine.whence.peer, is_group=is_group)
            if not await self._send(mine, "edit" if mine.draft else "send", text):
                return

    async def _send(self, mine: _Followed, do: str, text: str = "") -> bool:
        """False: it did not work, and is not tried again."""
        # What is under way gets to its end, or nobody would know which message it made.
        is_sent = False
        with anyio.CancelScope(shield=True):
            try:
                is_sent = await self._ask(mine, do, text)
            except (AdapterFailed, Denied, HttpFailed, TooLong) as error:
                extra = {"channel": self._post.channel.name, "why": str(error)}
                log.info("a draft or a sign of typing was not sent", extra=extra)
        return is_sent

    async def _ask(self, mine: _Followed, do: str, text: str) -> bool:
        mine.drafts += 1  # what is shown again after something else is another edit
        key = key_of(f"{mine.run_id}:{do}:{mine.drafts}", Piece(0, len(text), text))
        made = mine.draft.message_id if mine.draft else None
        formatted = await self._post.format(Reply(do, key, mine.whence, text, made))
        if do == "send" and not formatted.edit:
            return False
        for request in formatted.requests:
            answer = await self._post.ask(request, mine.whence.peer)
            if not isinstance(answer, Arrived):
                return False
            made = made or answer.message_id
        if do != "typing" and made is not None:
            mine.draft = Draft(made, text)
        return do == "typing" or made is not None
