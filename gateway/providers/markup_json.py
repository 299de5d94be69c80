"""JSON inside a text: where it ends, and the first character that no JSON goes on with."""

import re

from gateway.providers.markup_tape import Tape, Waits

_SCALAR = re.compile(r"[-+.0-9A-Za-z]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_CLOSING = {"{": "}", "[": "]"}
_DEEPEST = 256  # deeper than any reader of JSON goes
# What may come, and what is wanted then. `v`: a number or a bare word.
_VALUE = {"{": "first }", "[": "first ]", '"': "more", "v": "more"}
_STEPS: dict[str, dict[str, str]] = {
    "value": _VALUE,
    "first ]": {**_VALUE, "]": "more"},
    "first }": {'"': "colon", "}": "more"},
    "key": {'"': "colon"},
    "colon": {":": "value"},
    "more": {",": "value", "}": "more", "]": "more"},
}


def read_json(tape: Tape, opened: str = "") -> Waits[tuple[str, bool]]:
    """The text of an object or array, of which `opened` is taken already, and whether it is whole:
    it ends before the first character that cannot belong to it."""
    said = [opened]
    stack = [_CLOSING[opened]] if opened else []
    want = f"first {stack[0]}" if opened else "value"
    while stack or want == "value":
        said.append((yield from tape.space()))
        char = tape.peek() if (yield from tape.has_more()) else ""
        kind = char if char in '{}[]:,"' else "v"
        want = _step(want, kind, stack)
        if not want or not (yield from _token(tape, kind, said)):
            return "".join(said), False
    return "".join(said), True


def _step(want: str, kind: str, stack: list[str]) -> str:
    """What is wanted behind this; "" where it cannot stand."""
    step = _STEPS[want].get(kind, "")
    if not step:
        return ""
    if kind in _CLOSING and len(stack) >= _DEEPEST:
        return ""
    if kind in _CLOSING:
        stack.append(_CLOSING[kind])
    elif kind in {"}", "]"} and stack.pop() != kind:
        return ""
    elif kind == "," and stack[-1] == "}":
        return "key"
    return step


def _token(tape: Tape, kind: str, said: list[str]) -> Waits[bool]:
    """Takes it; whether it is whole."""
    if kind == "v":
        said.append((yield from tape.run(_SCALAR)))
        return bool(said[-1])
    said.append(tape.take(1))
    while kind == '"':
        said.append((yield from tape.run(_PLAIN)))
        char = tape.peek() if (yield from tape.has_more()) else ""
        if char not in {'"', "\\"}:
            return False
        said.append(tape.take(1))
        if char == '"':
            break
        if not (yield from tape.has_more()):
            return False
        said.append(tape.take(1))
    return True
