"""`/healthz` says that the process answers, `/readyz` whether it should be sent work."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.web.published.answers import Alive, NotReady, ReadyForWork
from gateway.web.published.errors import ErrorAnswer
from gateway.web.published.operations import WAIT, Answer, Operation
from gateway.web.responses import json_response

Ready = Callable[[], Awaitable[Sequence[str]]]  # the reasons against it; none: ready
RETRY_AFTER_S = "2"


ALIVE = Operation(
    "GET",
    "/healthz",
    "Whether the process answers.",
    (Answer(200, "It does.", Alive),),
    refusals=(403,),
    is_guarded=False,
)
READY = Operation(
    "GET",
    "/readyz",
    "Whether it should be sent work.",
    (
        Answer(200, "It should.", ReadyForWork),
        Answer(503, "Not now; with `read`, and why.", NotReady | ErrorAnswer, headers=(WAIT,)),
    ),
    refusals=(401, 403, 429),
    is_guarded=False,
)


def alive() -> Response:
    answer: Alive = {"status": "ok"}
    return json_response(answer)


@dataclass(frozen=True, slots=True)
class Readiness:
    """ASGI: answers once the store was looked at."""

    ready: Ready
    tells_why: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = _readiness(await self.ready(), tells_why=self.tells_why)
        await response(scope, receive, send)


def _readiness(reasons: Sequence[str], *, tells_why: bool) -> Response:
    if not reasons:
        answer: ReadyForWork = {"status": "ready"}
        return json_response(answer)
    why: NotReady = {"status": "not_ready"}
    if tells_why:
        why["reasons"] = list(reasons)
    return json_response(why, 503, {"retry-after": RETRY_AFTER_S})
