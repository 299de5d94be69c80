"""A mock model server for both wires, a separate process: it sends prebuilt bytes and is never the bottleneck.

    python -m bench.model_server --port 0 --latency-ms 0 --tokens 20 --chunk-interval-ms 0

Prints one JSON line with its port. `GET /stats` counts requests and open calls.
"""

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import uvloop

Call = tuple[str, str, str]  # id, name, arguments
MODEL = "mock-1"
USAGE = (100, 20)


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def openai_events(
    texts: Sequence[str],
    *,
    thinking: Sequence[str] = (),
    calls: Sequence[Call] = (),
    usage: tuple[int, int] | None = USAGE,
    finish: str | None = None,
    done: bool = True,
) -> list[bytes]:
    """Returns the events of a streamed chat completion, one text piece each."""
    head = {"id": "chatcmpl-mock", "object": "chat.completion.chunk", "created": 0, "model": MODEL}

    def event(delta: object, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return f"data: {_compact({**head, 'choices': [choice]})}\n\n".encode()

    events = [event({"role": "assistant", "content": ""})]
    events += [event({"reasoning_content": text}) for text in thinking]
    events += [event({"content": text}) for text in texts]
    for index, (id, name, arguments) in enumerate(calls):
        begun = {"index": index, "id": id, "type": "function", "function": {"name": name}}
        events.append(event({"tool_calls": [begun]}))
        rest = {"index": index, "function": {"arguments": arguments}}
        events.append(event({"tool_calls": [rest]}))
    events.append(event({}, finish or ("tool_calls" if calls else "stop")))
    if usage is not None:
        told = _compact({**head, "choices": [], "usage": _counted(usage)})
        events.append(f"data: {told}\n\n".encode())
    return [*events, b"data: [DONE]\n\n"] if done else events


def anthropic_events(
    texts: Sequence[str],
    *,
    thinking: Sequence[str] = (),
    calls: Sequence[Call] = (),
    usage: tuple[int, int] | None = USAGE,
    finish: str | None = None,
    done: bool = True,
) -> list[bytes]:
    """Returns the events of a streamed message, one text piece each."""
    told = usage or (0, 0)
    blocks: list[tuple[dict[str, object], list[dict[str, object]]]] = []
    if thinking:
        deltas: list[dict[str, object]] = [
            {"type": "thinking_delta", "thinking": text} for text in thinking
        ]
        deltas.append({"type": "signature_delta", "signature": "c2lnbmVk"})
        blocks.append(({"type": "thinking", "thinking": ""}, deltas))
    if texts:
        blocks.append(
            ({"type": "text", "text": ""}, [{"type": "text_delta", "text": t} for t in texts])
        )
    for id, name, arguments in calls:
        begun: dict[str, object] = {"type": "tool_use", "id": id, "name": name, "input": {}}
        blocks.append((begun, [{"type": "input_json_delta", "partial_json": arguments}]))
    message = {
        "id": "msg_mock",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
        "usage": {"input_tokens": told[0], "output_tokens": 1},
    }
    events = [_named("message_start", message=message), _named("ping")]
    for index, (begun, pieces) in enumerate(blocks):
        events.append(_named("content_block_start", index=index, content_block=begun))
        events += [_named("content_block_delta", index=index, delta=piece) for piece in pieces]
        events.append(_named("content_block_stop", index=index))
    reason = finish or ("tool_use" if calls else "end_turn")
    delta = {"stop_reason": reason, "stop_sequence": None}
    events.append(_named("message_delta", delta=delta, usage={"output_tokens": told[1]}))
    return [*events, _named("message_stop")] if done else events


def _named(type: str, **fields: object) -> bytes:
    return f"event: {type}\ndata: {_compact({'type': type, **fields})}\n\n".encode()


def openai_whole(text: str, *, calls: Sequence[Call] = (), usage: tuple[int, int] = USAGE) -> bytes:
    """Returns a chat completion that is not streamed."""
    message: dict[str, object] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in calls
        ]
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls" if calls else "stop",
    }
    head = {"id": "chatcmpl-mock", "object": "chat.completion", "created": 0, "model": MODEL}
    return _compact({**head, "choices": [choice], "usage": _counted(usage)}).encode()


def _counted(usage: tuple[int, int]) -> dict[str, int]:
    counted = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return {**counted, "total_tokens": sum(usage)}


def anthropic_whole(
    text: str, *, calls: Sequence[Call] = (), usage: tuple[int, int] = USAGE
) -> bytes:
    """Returns a message that is not streamed."""
    content: list[dict[str, object]] = [{"type": "text", "text": text}] if text else []
    content += [
        {"type": "tool_use", "id": id, "name": name, "input": json.loads(arguments)}
        for id, name, arguments in calls
    ]
    whole = {
        "id": "msg_mock",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": content,
        "stop_reason": "tool_use" if calls else "end_turn",
        "usage": {"input_tokens": usage[0], "output_tokens": usage[1]},
    }
    return _compact(whole).encode()


def http_head(status: int, content_type: str, *, length: int | None = None) -> bytes:
    """Returns the head of an HTTP/1.1 answer, chunked unless a length is given."""
    size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return f"HTTP/1.1 {status} -\r\ncontent-type: {content_type}\r\n{size}\r\n\r\n".encode()


def http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer to every request."""

    latency_s: float
    tokens: int
    interval_s: float
    tool_every: int = 0  # 0: never
    tool_calls: int = 0  # requests tools until a request has this number of results
    arguments: str = "{}"  # the arguments of a tool call


class Answers:
    """All possible answers as bytes, built once."""

    def __init__(self, plan: Plan) -> None:
        words = [f"word{n} " for n in range(plan.tokens)]
        text = "".join(words)
        usage = (USAGE[0], plan.tokens)
        self.streams: dict[bytes, list[bytes]] = {
            b"openai": _chunked(openai_events(words, usage=usage)),
            b"anthropic": _chunked(anthropic_events(words, usage=usage)),
        }
        self.at_once = {wire: b"".join(pieces) for wire, pieces in self.streams.items()}
        self.wholes = {
            b"openai": _json(openai_whole(text, usage=usage)),
            b"anthropic": _json(anthropic_whole(text, usage=usage)),
        }


def _chunked(events: list[bytes]) -> list[bytes]:
    pieces = [http_chunk(event) for event in events]
    pieces[0] = http_head(200, "text/event-stream") + pieces[0]
    pieces[-1] += LAST_CHUNK
    return pieces


def _json(body: bytes) -> bytes:
    return http_head(200, "application/json", length=len(body)) + body


class Counts:
    """The counts of `GET /stats`."""

    def __init__(self) -> None:
        self.requests = self.open = self.open_max = 0

    def began(self) -> int:
        self.requests += 1
        self.open += 1
        self.open_max = max(self.open_max, self.open)
        return self.requests

    def as_json(self) -> bytes:
        told = {"requests": self.requests, "open": self.open, "open_max": self.open_max}
        return _compact(told).encode()


class ModelProtocol(asyncio.Protocol):
    """A connection with successive requests, answered by the plan."""

    def __init__(self, plan: Plan, answers: Answers, counts: Counts) -> None:
        self._plan, self._answers, self._counts = plan, answers, counts
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._is_answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop has a class of its own with the same methods

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._is_answering:
            self._counts.open -= 1

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        while self._buffer and not self._is_answering:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._buffer[:end]
            total = end + 4 + _content_length(head)
            if len(self._buffer) < total:
                return
            body = self._buffer[end + 4 : total]
            self._buffer = self._buffer[total:]
            self._request(head, body)

    def _request(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET /stats"):
            self._write(_json(self._counts.as_json()))
            return
        number = self._counts.began()
        self._is_answering = True
        wire = b"anthropic" if b"/messages" in head.split(b" ", 2)[1] else b"openai"
        answer = self._chosen(wire, body, number)
        if self._plan.latency_s:
            self._loop.call_later(self._plan.latency_s, self._answer, answer)
        else:
            self._answer(answer)

    def _chosen(self, wire: bytes, body: bytes, number: int) -> bytes | list[bytes]:
        streamed = b'"stream":true' in body or b'"stream": true' in body
        if _is_tool_due(self._plan, body, number):
            call = _tool_call(body, number, self._plan.arguments)
            if call:
                return _asks_tool(wire, call, streamed=streamed)
        if not streamed:
            return self._answers.wholes[wire]
        return self._answers.streams[wire] if self._plan.interval_s else self._answers.at_once[wire]

    def _answer(self, answer: bytes | list[bytes]) -> None:
        if isinstance(answer, bytes):
            self._write(answer)
            self._ended()
        else:
            self._trickle(iter(answer))

    def _trickle(self, pieces: Iterator[bytes]) -> None:
        piece = next(pieces, None)
        if self._transport is None:
            return
        if piece is None:
            self._ended()
            return
        self._write(piece)
        self._loop.call_later(self._plan.interval_s, self._trickle, pieces)

    def _ended(self) -> None:
        if self._transport is None:
            return  # counted in connection_lost
        self._is_answering = False
        self._counts.open -= 1
        if self._buffer:
            self.data_received(b"")

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _content_length(head: bytes) -> int:
    at = head.lower().find(b"\r\ncontent-length:")
    if at < 0:
        return 0
    return int(head[at + 17 :].split(b"\r\n", 1)[0])


def _is_tool_due(plan: Plan, body: bytes, number: int) -> bool:
    if plan.tool_calls:
        results = body.count(b'"role":"tool"') + body.count(b'"type":"tool_result"')
        return results < plan.tool_calls
    return plan.tool_every > 0 and number % plan.tool_every == 0 and not _after_tool(body)


def _after_tool(body: bytes) -> bool:
    """True if the last message is a tool result, after which the model answers."""
    result = max(body.rfind(b'"role":"tool"'), body.rfind(b'"type":"tool_result"'))
    return result > max(body.rfind(b'"role":"user","content":"'), body.rfind(b'"type":"text"'))


def _tool_call(body: bytes, number: int, arguments: str) -> Call | None:
    tools = json.loads(body).get("tools")
    if not tools:
        return None
    name = tools[0].get("name") or tools[0]["function"]["name"]
    return f"call_{number}", name, arguments


def _asks_tool(wire: bytes, call: Call, *, streamed: bool) -> bytes:
    if streamed:
        events = openai_events if wire == b"openai" else anthropic_events
        return b"".join(_chunked(events((), calls=(call,))))
    whole = openai_whole if wire == b"openai" else anthropic_whole
    return _json(whole("", calls=(call,)))


async def serve(plan: Plan, host: str, port: int) -> None:
    """Serves until the process gets a signal."""
    answers, counts = Answers(plan), Counts()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: ModelProtocol(plan, answers, counts), host, port, backlog=4096
    )
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, default=0.0, help="before the first byte")
    parser.add_argument("--tokens", type=int, default=20, help="words in a reply")
    parser.add_argument("--chunk-interval-ms", type=float, default=0.0, help="between two words")
    parser.add_argument("--tool-every", type=int, default=0, help="every N-th reply calls a tool")
    parser.add_argument("--tool-calls", type=int, default=0, help="tool calls before each answer")
    parser.add_argument("--arguments", default="{}", help="of a tool call")
    args = parser.parse_args()
    plan = Plan(
        latency_s=args.latency_ms / 1000,
        tokens=args.tokens,
        interval_s=args.chunk_interval_ms / 1000,
        tool_every=args.tool_every,
        tool_calls=args.tool_calls,
        arguments=args.arguments,
    )
    uvloop.run(serve(plan, args.host, args.port))


if __name__ == "__main__":
    main()
