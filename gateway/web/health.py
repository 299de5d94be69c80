"""`/healthz` says that the process answers, `/readyz` whether it should be sent work."""

from collections.abc import Callable, Sequence

from starlette.responses import Response

from gateway.web.responses import json_response

Ready = Callable[[], Sequence[str]]  # the reasons against it; none: ready
RETRY_AFTER_S = "2"


def alive() -> Response:
    return json_response({"status": "ok"})


def readiness(ready: Ready) -> Response:
    reasons = list(ready())
    if not reasons:
        return json_response({"status": "ready"})
    return json_response(
        {"status": "not_ready", "reasons": reasons}, 503, {"retry-after": RETRY_AFTER_S}
    )
