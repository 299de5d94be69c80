"""`/healthz` says that the process answers, `/readyz` whether it should be sent work."""

from collections.abc import Callable, Sequence

from starlette.responses import Response

from gateway.web.published.answers import Alive, NotReady, ReadyForWork
from gateway.web.published.errors import ErrorAnswer
from gateway.web.published.operations import WAIT, Answer, Operation
from gateway.web.responses import json_response

Ready = Callable[[], Sequence[str]]  # the reasons against it; none: ready
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
        Answer(503, "Not now, and why.", NotReady | ErrorAnswer, headers=(WAIT,)),
    ),
)


def alive() -> Response:
    answer: Alive = {"status": "ok"}
    return json_response(answer)


def readiness(ready: Ready) -> Response:
    reasons = list(ready())
    if not reasons:
        answer: ReadyForWork = {"status": "ready"}
        return json_response(answer)
    why: NotReady = {"status": "not_ready", "reasons": reasons}
    return json_response(why, 503, {"retry-after": RETRY_AFTER_S})
