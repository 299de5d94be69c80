"""HTTP for guests that do not speak our JSON themselves."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.sandbox.calls import current

MOST_BODY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes


def fetch(request: Mapping[str, object], body: bytes | None) -> Reply | str:
    """Has the gateway do it; a text says why it did not. Raises Ended."""
    if body and len(body) > MOST_BODY_BYTES:
        return f"the body of a request is larger than {MOST_BODY_BYTES // 1024} KiB"
    sent = {"body_base64": base64.b64encode(body).decode()} if body else {}
    answer, text = current().ask("http.request", json.dumps({**request, **sent}))
    if answer != "ok":
        return text
    told = json.loads(text)
    packed = told.get("body_base64")
    got = told.get("body", "").encode() if packed is None else base64.b64decode(packed)
    return Reply(told["status"], told["headers"], got)
