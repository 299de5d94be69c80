"""The parts of what a model is asked, so that two requests can be told apart by name. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from os.path import commonprefix

from gateway.agent.job import Job
from gateway.domain.messages import Message
from gateway.domain.model import ModelRequest, ToolSpec

_SETTINGS = ("provider", "model", "max_tokens", "temperature", "thinking", "stream")
_BETWEEN = "\1"
_SHOWN = 60  # characters of a text from where it differs


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs part, as words, and what stands there in each."""

    at: str
    recorded: object
    now: object
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """`tools` and `messages` are digests: by name, and by place with the role in front."""

    settings: Mapping[str, object] = field(default_factory=dict)
    system: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)
    messages: tuple[str, ...] = ()

    def since(self, before: "Parts") -> dict[str, object]:
        """As plain as it gets: only what is another than before."""
        kept = len(commonprefix((before.messages, self.messages)))
        told: dict[str, object] = {"kept": kept, "messages": list(self.messages[kept:])}
        for name in ("settings", "system", "tools"):
            if getattr(self, name) != getattr(before, name):
                told[name] = getattr(self, name)
        return told

    def then(self, told: Mapping[str, object]) -> "Parts":
        """The inverse; raises ValueError for what `since` never gives."""
        match {**asdict(self), **told}:
            case {
                "settings": dict(settings),
                "system": str(system),
                "tools": dict(tools),
                "kept": int(kept),
                "messages": list(messages),
            }:
                return Parts(settings, system, tools, (*self.messages[:kept], *messages))
            case _:
                raise ValueError("it holds a request that is none")


def parts_of(request: ModelRequest) -> Parts:
    settings = {name: getattr(request, name) for name in _SETTINGS}
    return Parts(settings, request.system, _tools(request.tools), _messages(request.messages))


def parts_at(job: Job) -> Parts:
    """What is known before anything is asked."""
    return Parts({}, job.context.system, _tools(job.tools), _messages(job.context.messages))


def _tools(tools: Sequence[ToolSpec]) -> Mapping[str, str]:
    return {tool.name: _digest(f"{tool.description}\0{tool.parameters}") for tool in tools}


def _messages(messages: Sequence[Message]) -> tuple[str, ...]:
    return tuple(map(_message, messages))


def _message(message: Message) -> str:
    """Made once in a message's life. What took how long is nothing that a model is told."""
    kept = message.kept.get("digest")
    if kept is None:
        result, extras = message.result, message.extras
        told = [message.text, message.thinking, extras.json if extras else ""]
        told += [f"{call.id}\0{call.name}\0{call.arguments}" for call in message.tool_calls]
        if result is not None:
            told += [result.call_id, result.name, result.told, str(result.is_error)]
        kept = f"{message.role} {_digest(_BETWEEN.join(told))}".encode()
        message.kept["digest"] = kept
    return kept.decode()


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def parted(call: str, recorded: Parts, now: Parts, soul: str) -> Difference | None:
    """The first part that is another; `call` and `soul` name the call and the soul's file."""
    if (other := unequal(recorded.settings, now.settings)) is not None:
        return Difference(f"{call}: the setting {other.at}", other.recorded, other.now)
    if list(recorded.tools) != list(now.tools):
        return Difference(f"{call}: the tools offered", list(recorded.tools), list(now.tools))
    if recorded.system != now.system:
        where = f"{call}: the system text (soul {soul})"
        return apart(where, recorded.system, now.system)
    for name, digest in recorded.tools.items():
        if now.tools[name] != digest:
            told = f"{call}: the description or the parameters of the tool {name}"
            return Difference(told, digest, now.tools[name])
    if recorded.messages != now.messages:
        place = len(commonprefix((recorded.messages, now.messages)))
        one, other_one = (
            messages[place] if place < len(messages) else None
            for messages in (recorded.messages, now.messages)
        )
        return Difference(f"{call}: message {place + 1} of the request", one, other_one)
    return None


def apart(where: str, recorded: str, now: str) -> Difference:
    """From the first character on that is another."""
    place = len(commonprefix((recorded, now)))
    shown = slice(place, place + _SHOWN)
    return Difference(f"{where}, character {place + 1}", recorded[shown], now[shown])


def unequal(recorded: object, now: object, name: str = "") -> Difference | None:
    """The first value in nested mappings that is another, under its dotted name."""
    if not isinstance(recorded, Mapping) or not isinstance(now, Mapping):
        return None if recorded == now else Difference(name, recorded, now)
    for key in (*recorded, *(key for key in now if key not in recorded)):
        path = f"{name}.{key}" if name else str(key)
        found = unequal(recorded.get(key), now.get(key), path)
        if found is not None:
            return found
    return None
