"""HTTP requests and answers as JSON, on the worker's side: the gateway reads and writes none that is
large, for it would keep everybody waiting."""

import json
from collections.abc import Mapping

MOST_HEADERS = 200
_KEYS = ("method", "url", "headers", "body", "body_base64", "timeout_ms")


def flat_request(text: str) -> str:
    """Only what the gateway looks at, and nothing nested but the headers. Raises ValueError."""
    try:
        asked = json.loads(text)
    except RecursionError:
        asked = None
    if not isinstance(asked, dict):
        raise ValueError('a request is a JSON object with "url", and maybe method, headers, body')
    kept = {key: asked[key] for key in _KEYS if asked.get(key) is not None}
    headers = kept.get("headers", {})
    if not isinstance(headers, dict) or len(headers) > MOST_HEADERS or _is_nested(headers):
        raise ValueError(f'"headers" has to be an object of at most {MOST_HEADERS} texts')
    if _is_nested({**kept, "headers": None}):
        raise ValueError("nothing in a request is nested but its headers")
    return json.dumps(kept)


def whole_answer(head: str, body: str) -> str:
    """Status and headers as the gateway tells them; its `body` names the key of the body."""
    told = json.loads(head)
    key = told.pop("body")
    return json.dumps({**told, key: body})


def _is_nested(values: Mapping[str, object]) -> bool:
    return any(isinstance(value, dict | list) for value in values.values())
