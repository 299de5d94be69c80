"""How many tokens a prompt will be: a guess that learns from what providers report."""

from collections import OrderedDict
from math import ceil

from gateway.domain.ids import SessionKey
from gateway.domain.messages import BYTES_A_TOKEN, MESSAGE_OVERHEAD, Message
from gateway.domain.model import ModelRequest

KEPT = 4096  # sessions and models; about 0.3 kB each
# A first guess is rather too high: what is held too much is given back a moment later.
FIRST = 1.25
# Of an old correction, where a report is below it; where it is above, it counts at once.
_MEMORY = 0.8
# A reply is only cut off that is surely too long, so a token of it has more bytes than in a prompt:
# at least so many, and more of a model whose replies were longer than that, with a margin.
BYTES_OF_REPLY, MOST_OF_REPLY, MARGIN = 4.0, 8.0, 1.1
WITHOUT_LIMIT = 32  # where nothing can be passed: only what does not end is cut off
LEAST_LEARNED = 512  # bytes; shorter replies say little
# A user may say what is cheap to read, so that a dense prompt seems cheap too.
_BOUNDS = (0.5, 50.0)


class Estimates:
    """Corrections by session and model; a session that is new begins with its model's."""

    def __init__(self) -> None:
        self._corrections: OrderedDict[tuple[SessionKey | None, str], float] = OrderedDict()
        self._densities: OrderedDict[str, float] = OrderedDict()

    def of(self, raw: int, session: SessionKey, model: str) -> int:
        """`raw` is `prompt_tokens` of the request."""
        known = self._corrections
        correction = known.get((session, model)) or known.get((None, model)) or FIRST
        return ceil(raw * correction)

    def bytes_a_token(self, model: str) -> float:
        """So many that no reply of this model has more."""
        return self._densities.get(model, BYTES_OF_REPLY)

    def learn_reply(self, size: int, model: str, reported: int) -> None:
        """`size` in bytes, of what came of a reply; `reported` without what is hidden."""
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
    """The same guess for everybody, from the bytes that are sent."""
    size = len(request.system.encode())
    if request.tools:
        texts = [tool.name + tool.description + tool.parameters for tool in request.tools]
        size += len("".join(texts).encode())
    sizes = [one.kept.get("size") or _measured(one) for one in request.messages]
    return ceil((size + sum(sizes)) / BYTES_A_TOKEN) + MESSAGE_OVERHEAD * len(sizes)


def _measured(message: Message) -> int:
    """The bytes of a message, which are kept with it."""
    texts = [message.text, message.thinking]
    for call in message.tool_calls:
        texts += (call.id, call.name, call.arguments)
    if message.result is not None:
        texts += (message.result.call_id, message.result.told)
    size: int = len("".join(texts).encode())
    message.kept["size"] = size
    return size
