"""Estimates of the tokens of a prompt, corrected by what providers report."""

from collections import OrderedDict
from math import ceil

from gateway.domain.ids import SessionKey
from gateway.domain.messages import BYTES_A_TOKEN, MESSAGE_OVERHEAD, Message
from gateway.domain.model import ModelRequest

KEPT = 4096  # sessions and models; about 0.3 kB each
# The first estimate is rather too high. What is held too much is given back when the call ends.
FIRST = 1.25
# The weight of the old correction if a report is below it. A report above it counts at once.
_MEMORY = 0.8
# A reply is cut off only if it is certainly too long. So a token of a reply counts more bytes than one
# of a prompt: at least BYTES_OF_REPLY, and more for a model whose replies had more, with a margin.
BYTES_OF_REPLY, MOST_OF_REPLY, MARGIN = 4.0, 8.0, 1.1
WITHOUT_LIMIT = 32  # bytes a token where no limit holds: only an endless reply is cut off
LEAST_LEARNED = 512  # bytes; shorter replies teach nothing
# Bounds of a correction: cheap text must not make a dense prompt look cheap.
_BOUNDS = (0.5, 50.0)


class Estimates:
    """Corrections by session and model. A new session begins with the correction of its model."""

    def __init__(self) -> None:
        self._corrections: OrderedDict[tuple[SessionKey | None, str], float] = OrderedDict()
        self._densities: OrderedDict[str, float] = OrderedDict()

    def of(self, raw: int, session: SessionKey, model: str) -> int:
        """The corrected estimate. `raw` is `prompt_tokens` of the request."""
        known = self._corrections
        correction = known.get((session, model)) or known.get((None, model)) or FIRST
        return ceil(raw * correction)

    def bytes_a_token(self, model: str) -> float:
        """More bytes a token than any reply of this model had."""
        return self._densities.get(model, BYTES_OF_REPLY)

    def learn_reply(self, size: int, model: str, reported: int) -> None:
        """`size`: bytes of the reply. `reported`: its tokens without hidden reasoning."""
        if reported <= 0:
            return
        seen = min(MOST_OF_REPLY, MARGIN * size / reported)
        if seen > self._densities.get(model, BYTES_OF_REPLY):
            self._densities[model] = seen
            if len(self._densities) > KEPT:
                self._densities.popitem(last=False)

    def learn(self, raw: int, session: SessionKey, model: str, reported: int) -> None:
        if raw <= 0 or reported <= 0:
            return
        lowest, highest = _BOUNDS
        seen = min(highest, max(lowest, reported / raw))
        for key in ((session, model), (None, model)):
            old = self._corrections.pop(key, seen)
            self._corrections[key] = max(seen, old * _MEMORY + seen * (1 - _MEMORY))
        while len(self._corrections) > KEPT:
            self._corrections.popitem(last=False)


def prompt_tokens(request: ModelRequest) -> int:
    """The estimate before any correction, from the bytes that are sent."""
    size = len(request.system.encode())
    if request.tools:
        texts = [tool.name + tool.description + tool.parameters for tool in request.tools]
        size += len("".join(texts).encode())
    sizes = [one.kept.get("size") or _measured(one) for one in request.messages]
    return ceil((size + sum(sizes)) / BYTES_A_TOKEN) + MESSAGE_OVERHEAD * len(sizes)


def _measured(message: Message) -> int:
    """Counts the bytes of a message and keeps the number with it."""
    texts = [message.text, message.thinking]
    for call in message.tool_calls:
        texts += (call.id, call.name, call.arguments)
    if message.result is not None:
        texts += (message.result.call_id, message.result.told)
    size: int = len("".join(texts).encode())
    message.kept["size"] = size
    return size
