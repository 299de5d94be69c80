"""What the dialects of tool markup have in common: names, JSON, keys with values, sections.

Until a call has a name and begins like one, it is only text. From then on it is a call: one that
cannot be read, or is not closed, gets arguments that are no JSON, and so the model is told of it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from gateway.domain.model import ToolSpec
from gateway.providers.markup_json import read_json
from gateway.providers.markup_tape import NotMarkup, Tape, Waits
from gateway.providers.markup_values import arguments_of

_BROKEN = "[not closed, or not readable] "
_BROKEN_KEPT = 2000  # characters of it that the model is shown again
_LONGEST_NAME = 64
_WORD = re.compile(r"[A-Za-z0-9_.:-]*")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_NUMBERED = re.compile(r":\d+$")
_OBJECT = re.compile(r"\{")
_NAMED = re.compile(r'(?:\[\s*)?\{\s*"name"\s*:\s*"([A-Za-z0-9_.:-]+)"')


class MarkupCall(NamedTuple):
    """A call as it was found. One that is not whole has no arguments that anything could run on."""

    name: str
    arguments: str
    is_whole: bool = True


class Marks(NamedTuple):
    """How a dialect writes keys and values. `value`: what stands between the two."""

    key: str
    key_end: str
    value_end: str
    end: str
    value: str = ""


Pairs = list[tuple[str, str]]


class Calls:
    """Reads calls off a tape. What is no call stays among what was taken since the last one."""

    def __init__(self, tape: Tape, tools: Mapping[str, ToolSpec]) -> None:
        self.tape, self._tools = tape, tools
        self.found: list[MarkupCall] = []

    def add(self, name: str, arguments: str | None) -> None:
        """Arguments None: the call is broken, and all that was read of it is what it came with."""
        name = _NUMBERED.sub("", name.strip().removeprefix("functions."))
        name = _NOT_IN_NAMES.sub("_", name)[:_LONGEST_NAME]
        if not name:
            raise NotMarkup
        told = _BROKEN + self.tape.taken()[:_BROKEN_KEPT] if arguments is None else arguments
        self.found.append(MarkupCall(name, told, arguments is not None))
        self.tape.mark()

    def add_pairs(
        self, name: str, pairs: Pairs | None, typed: Callable[[str, str], tuple[str, str, bool]]
    ) -> None:
        """`typed` makes of a key and a value what `arguments_of` takes."""
        triples = [typed(key, value) for key, value in pairs or ()]
        told = None if pairs is None else arguments_of(self._tools.get(name), triples)
        self.add(name, told)

    def word(self) -> Waits[str]:
        word = yield from self.tape.run(_WORD)
        if not word:
            raise NotMarkup
        return word

    def json(self, end: str = "", begins: re.Pattern[str] = _OBJECT) -> Waits[str | None]:
        """JSON and the mark behind it, as it was written; None if it does not end. What is no JSON
        is a call all the same once it has begun like one."""
        yield from self.tape.space()
        if not (yield from self.tape.is_next("{[")):
            raise NotMarkup
        said, is_whole = yield from read_json(self.tape)
        if not begins.match(said) and not (is_whole and parsed(said)):
            raise NotMarkup
        if is_whole and (not end or (yield from self.tape.after_space((end,)))):
            return said
        rest = yield from self.tape.until(end or "\n")
        return None if rest is None else said + rest

    def named_json(self, end: str = "") -> Waits[None]:
        """`{"name": …, "arguments": …}`, or a list of such."""
        said = yield from self.json(end, _NAMED)
        told = parsed(said or "")
        raw = self.tape.taken()
        if told is None and (named := _NAMED.match(raw[raw.find("{") :])):
            self.add(named[1], None)
        for one in told if isinstance(told, list) else [told] if told else []:
            if not isinstance(one, dict) or not isinstance(one.get("name"), str):
                raise NotMarkup
            self.add(one["name"], _given(one))

    def pairs(self, marks: Marks) -> Waits[Pairs | None]:
        """Keys and values up to the end of the call; None if there is something else."""
        tape, found = self.tape, Pairs()
        yield from tape.space()
        if not (yield from tape.is_next((marks.key, marks.end))):
            raise NotMarkup
        try:
            while (mark := (yield from tape.after_space((marks.key, marks.end)))) == marks.key:
                key = yield from tape.short(marks.key_end)
                if marks.value and not (yield from tape.after_space((marks.value,))):
                    break
                found.append((key, (yield from self._value(marks))))
        except NotMarkup:
            mark = ""
        if mark == marks.end:
            return found
        yield from tape.until(marks.end)
        return None

    def _value(self, marks: Marks) -> Waits[str]:
        """Up to the end mark that the grammar goes on behind: any other belongs to the value."""
        parts: list[str] = []
        while True:
            said = yield from self.tape.until(marks.value_end)
            if said is None:
                raise NotMarkup
            parts.append(said)
            space = yield from self.tape.space()
            if (yield from self.tape.is_next((marks.key, marks.end))):
                return "".join(parts)
            parts += (marks.value_end, space)

    def section(
        self,
        opener: str,
        marks: tuple[Sequence[str], Sequence[str]],
        one: Callable[["Calls", str], Waits[None]],
    ) -> Waits[None]:
        """Calls one behind the other, by the marks that begin each and that end all; they may
        stand without what should be around them."""
        begins, ends = marks
        mark = opener if opener in begins else (yield from self.tape.after_space(begins))
        if not mark:
            raise NotMarkup
        while mark in begins:
            yield from one(self, mark)
            mark = yield from self.tape.after_space((*begins, *ends))
        if mark:
            self.tape.mark()


def parsed(said: str) -> Any:
    """None for what is no JSON."""
    try:
        return from_json(said, allow_inf_nan=False)
    except ValueError:
        return None


def _given(call: Mapping[str, Any]) -> str:
    """The arguments of a JSON call; some models write them as a string that holds JSON again."""
    given = call.get("arguments", call.get("parameters"))
    if given is None:
        return "{}"
    return given if isinstance(given, str) else to_json(given).decode()
