"""Finds tool calls that a model wrote as text, while the text arrives, and removes them from it."""

import re
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence, Set
from functools import lru_cache, partial
from html import unescape
from typing import Any, NamedTuple, TypeVar

from pydantic_core import from_json, to_json

from gateway.domain.model import ToolSpec

T = TypeVar("T")
Waits = Generator[None, None, T]

_SPACE = re.compile(r"[ \t\r\n]*")


class NotMarkup(Exception):
    """The text is not a tool call."""


class Lookahead:
    """A buffer of text that arrives in pieces. It keeps the text that was consumed since the last mark.

    Methods that return Waits are generators, which yield when they need more text.
    """

    def __init__(self) -> None:
        self.is_over = False  # no more text arrives
        self.steps = 0  # number of `consume` calls
        self._text = ""
        self._at = 0
        self._consumed: list[str] = []

    def feed(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def mark(self) -> None:
        self._consumed.clear()

    def consumed(self) -> str:
        return "".join(self._consumed)

    def peek(self) -> Waits[str]:
        """Returns the next character; "" at the end."""
        while self._at == len(self._text):
            if self.is_over:
                return ""
            yield
        return self._text[self._at]

    def starts_with(self, beginning: re.Pattern[str]) -> bool:
        return beginning.match(self._text, self._at) is not None

    def consume(self, count: int) -> str:
        self.steps += 1
        piece = self._text[self._at : self._at + count]
        self._at += len(piece)
        self._consumed.append(piece)
        return piece

    def consume_to(self, stop: re.Pattern[str]) -> str:
        """Consumes at least one character, and stops before the next match of `stop`."""
        found = stop.search(self._text, self._at + 1)
        return self.consume((found.start() if found else len(self._text)) - self._at)

    def run(self, characters: re.Pattern[str]) -> Waits[str]:
        """Consumes all successive characters that match; may return ""."""
        pieces: list[str] = []
        while True:
            found = characters.match(self._text, self._at)
            pieces.append(self.consume(found.end() - self._at if found else 0))
            if self._at < len(self._text) or self.is_over:
                return "".join(pieces)
            yield

    def peek_any(self, literals: Collection[str]) -> Waits[str]:
        """Returns the literal that comes next; "" as soon as none can. No literal may be the beginning of
        another."""
        longest = max(map(len, literals), default=0)
        while True:
            rest = self._text[self._at : self._at + longest]
            could = [literal for literal in literals if literal.startswith(rest[: len(literal)])]
            if not could:
                return ""
            if len(could[0]) <= len(rest):
                return could[0]
            if self.is_over:
                return ""
            yield

    def read_any(self, literals: Collection[str]) -> Waits[str]:
        """Like `peek_any`, and consumes the literal."""
        found = yield from self.peek_any(literals)
        if found:
            self.consume(len(found))
        return found

    def space(self) -> Waits[str]:
        return self.run(_SPACE)

    def after_space(self, literals: Collection[str]) -> Waits[str]:
        """Like `read_any`, after white space, which is always consumed."""
        yield from self.space()
        return (yield from self.read_any(literals))

    def until(self, literal: str) -> Waits[str | None]:
        """Consumes the text up to the literal, and the literal. Returns the text; None if the literal never
        comes and all text was consumed."""
        pieces: list[str] = []
        while (end := self._text.find(literal, self._at)) < 0:
            keep = 0 if self.is_over else len(literal) - 1
            pieces.append(self.consume(max(0, len(self._text) - self._at - keep)))
            if self.is_over:
                return None
            yield
        pieces.append(self.consume(end - self._at))
        self.consume(len(literal))
        return "".join(pieces)

    def short(self, literal: str, most: int = 256) -> Waits[str]:
        """Like `until` for at most `most` characters. Raises NotMarkup and consumes nothing if there are
        more."""
        while (end := self._text.find(literal, self._at, self._at + most + len(literal))) < 0:
            if self.is_over or len(self._text) - self._at >= most + len(literal):
                raise NotMarkup
            yield
        text = self.consume(end - self._at)
        self.consume(len(literal))
        return text


_SCALAR = re.compile(r"[-+.0-9A-Za-z]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_CLOSING = {"{": "}", "[": "]"}
_MAX_DEPTH = 256  # levels; more than JSON parsers accept
# State -> the tokens that can come and the state after each. `v`: a number or a bare word.
_VALUE = {"{": "first }", "[": "first ]", '"': "more", "v": "more"}
_STEPS: dict[str, dict[str, str]] = {
    "value": _VALUE,
    "first ]": {**_VALUE, "]": "more"},
    "first }": {'"': "colon", "}": "more"},
    "key": {'"': "colon"},
    "colon": {":": "value"},
    "more": {",": "value", "}": "more", "]": "more"},
}


def read_json(ahead: Lookahead, opened: str = "") -> Waits[tuple[str, bool]]:
    """Reads an object or array, of which `opened` is consumed already. Returns its text, up to the first
    character that cannot belong to it, and whether it is complete."""
    pieces = [opened]
    stack = [_CLOSING[opened]] if opened else []
    want = f"first {stack[0]}" if opened else "value"
    while stack or want == "value":
        pieces.append((yield from ahead.space()))
        char = yield from ahead.peek()
        kind = char if char and char in '{}[]:,"' else "v"
        want = _next_want(want, kind, stack)
        if not want or not (yield from _read_token(ahead, kind, pieces)):
            return "".join(pieces), False
    return "".join(pieces), True


def _next_want(want: str, kind: str, stack: list[str]) -> str:
    """Returns the state after a token; "" if the token is not allowed."""
    step = _STEPS[want].get(kind, "")
    if not step or (kind in _CLOSING and len(stack) >= _MAX_DEPTH):
        return ""
    if kind in _CLOSING:
        stack.append(_CLOSING[kind])
    elif kind in {"}", "]"} and stack.pop() != kind:
        return ""
    return "key" if kind == "," and stack[-1] == "}" else step


def _read_token(ahead: Lookahead, kind: str, pieces: list[str]) -> Waits[bool]:
    """Consumes a token. Returns whether it is complete."""
    pieces.append((yield from ahead.run(_SCALAR)) if kind == "v" else ahead.consume(1))
    while kind == '"':
        pieces.append((yield from ahead.run(_PLAIN)))
        char = yield from ahead.peek()
        if char not in {'"', "\\"}:
            return False
        pieces.append(ahead.consume(1))
        if char == '"':
            break
        if not (yield from ahead.peek()):
            return False
        pieces.append(ahead.consume(1))
    return bool(pieces[-1])


_ENTITIES = ("&lt;", "&gt;", "&amp;", "&quot;", "&apos;")
_TYPES: dict[type, set[str]] = {
    bool: {"boolean"},
    int: {"integer", "number"},
    float: {"number"},
    str: {"string"},
    type(None): {"null"},
    list: {"array"},
    dict: {"object"},
}
_PYTHON = {"True": "true", "False": "false", "None": "null"}


def encode_arguments(tool: ToolSpec | None, pairs: Iterable[tuple[str, str, bool]]) -> str:
    """Returns the JSON text of arguments. Each pair has a key, a value, and whether the value is JSON if
    the schema does not give its type."""
    parameters = tool.parameters if tool else "{}"
    coerced = {
        key: _coerce(value, _types_of(key, parameters), is_json=is_json)
        for key, value, is_json in pairs
    }
    return to_json(coerced).decode()


_schema: Callable[[str], Mapping[str, Any]] = lru_cache(maxsize=64)(from_json)


@lru_cache(maxsize=1024)
def _types_of(key: str, parameters: str) -> Set[str]:
    """Returns the JSON types of an argument. It is cached, because a reply can have many calls."""
    schema = _schema(parameters)
    return _types((schema.get("properties") or {}).get(key), schema, set())


def unescape_entities(value: str) -> str:
    """Replaces the entities of a value. A value with a bare `<` or `&` is not XML and stays as it is."""
    if "<" in value or value.count("&") != sum(map(value.count, _ENTITIES)):
        return value
    return unescape(value)


def _coerce(value: str, types: Set[str], *, is_json: bool) -> object:
    if "string" in types:
        return None if "null" in types and value.strip() == "null" else value
    if not types and not is_json:
        return value
    stripped = value.strip()
    try:
        parsed = from_json(_PYTHON.get(stripped, stripped), allow_inf_nan=False)
    except ValueError:
        return value  # the check of the arguments reports it to the model
    return parsed if not types or _type_of(parsed) & types else value


def _types(schema: object, root: Mapping[str, Any], seen: set[int]) -> set[str]:
    """Returns the JSON types that a schema allows; empty if it gives none."""
    if not isinstance(schema, dict) or id(schema) in seen:
        return set()
    seen.add(id(schema))
    type_ = schema.get("type")
    if type_:
        return {type_} if isinstance(type_, str) else set(type_)
    inner = [one for key in ("anyOf", "oneOf", "allOf") for one in schema.get(key, ())]
    inner.append(_resolve(schema.get("$ref", "#"), root))
    types = [_types(one, root, seen) for one in inner]
    fixed = schema.get("enum", ()) if "const" not in schema else (schema["const"],)
    return set().union(*types, *map(_type_of, fixed))


def _resolve(reference: str, root: Mapping[str, Any]) -> object:
    """Returns the target of a reference within the schema; None if there is none."""
    target: Any = None if reference == "#" else root
    for name in reference.removeprefix("#/").split("/"):
        target = target.get(name) if isinstance(target, dict) else None
    return target


def _type_of(value: object) -> set[str]:
    if isinstance(value, float) and value.is_integer():
        return {"number", "integer"}
    return _TYPES[type(value)]


_BROKEN = "[not closed, or not readable] "
_BROKEN_KEPT = 2000  # characters of a broken call that the model sees again
_MAX_NAME = 64
_WORD = re.compile(r"[A-Za-z0-9_.:-]*")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_NUMBERED = re.compile(r":\d+$")
_OBJECT = re.compile(r"\{")
_NAMED = re.compile(r'(?:\[\s*)?\{\s*"name"\s*:\s*"([A-Za-z0-9_.:-]+)"')


class MarkupCall(NamedTuple):
    """A call in the text. The arguments of a call that is not whole are its raw text."""

    name: str
    arguments: str
    is_whole: bool = True


class Marks(NamedTuple):
    """The marks of a dialect around keys and values; `value` stands between a key and its value."""

    key: str
    key_end: str
    value_end: str
    end: str
    value: str = ""


Pairs = list[tuple[str, str]]


class CallParser(Lookahead):
    """Parses calls. The text after the last call is what was consumed since the last mark."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        super().__init__()
        self._tools = {tool.name: tool for tool in tools}
        self.found: list[MarkupCall] = []

    def add(self, name: str, arguments: str | None) -> None:
        """Adds a call. Arguments None: the call is broken, and its arguments are its raw text."""
        name = _NUMBERED.sub("", name.strip().removeprefix("functions."))
        name = _NOT_IN_NAMES.sub("_", name)[:_MAX_NAME]
        if not name:
            raise NotMarkup
        text = _BROKEN + self.consumed()[:_BROKEN_KEPT] if arguments is None else arguments
        self.found.append(MarkupCall(name, text, arguments is not None))
        self.mark()

    def add_pairs(
        self, name: str, pairs: Pairs | None, typed: Callable[[str, str], tuple[str, str, bool]]
    ) -> None:
        """Adds a call; `typed` converts a key and a value to a pair of `encode_arguments`."""
        triples = [typed(key, value) for key, value in pairs or ()]
        text = None if pairs is None else encode_arguments(self._tools.get(name), triples)
        self.add(name, text)

    def word(self) -> Waits[str]:
        word = yield from self.run(_WORD)
        if not word:
            raise NotMarkup
        return word

    def json(self, end: str = "", begins: re.Pattern[str] = _OBJECT) -> Waits[str | None]:
        """Reads JSON and the mark `end` after it. Returns the JSON text; None if it does not end. Invalid
        JSON is accepted if it matches `begins`."""
        yield from self.space()
        if not (yield from self.peek_any("{[")):
            raise NotMarkup
        text, is_whole = yield from read_json(self)
        if not begins.match(text) and not (is_whole and parse_json(text)):
            raise NotMarkup
        if is_whole and (not end or (yield from self.after_space((end,)))):
            return text
        rest = yield from self.until(end or "\n")
        return None if rest is None else text + rest

    def named_json(self, end: str = "") -> Waits[None]:
        """Reads `{"name": …, "arguments": …}`, or a list of these objects."""
        text = yield from self.json(end, _NAMED)
        value = parse_json(text or "")
        raw = self.consumed()
        if value is None and (named := _NAMED.match(raw[raw.find("{") :])):
            self.add(named[1], None)
        for one in value if isinstance(value, list) else [value] if value else []:
            if not isinstance(one, dict) or not isinstance(one.get("name"), str):
                raise NotMarkup
            self.add(one["name"], _json_arguments(one))

    def pairs(self, marks: Marks) -> Waits[Pairs | None]:
        """Reads keys and values up to the end of the call; None if anything else comes."""
        found = Pairs()
        yield from self.space()
        if not (yield from self.peek_any((marks.key, marks.end))):
            raise NotMarkup
        try:
            while (mark := (yield from self.after_space((marks.key, marks.end)))) == marks.key:
                key = yield from self.short(marks.key_end)
                if marks.value and not (yield from self.after_space((marks.value,))):
                    break
                found.append((key, (yield from self._value(marks))))
        except NotMarkup:
            mark = ""
        if mark == marks.end:
            return found
        yield from self.until(marks.end)
        return None

    def _value(self, marks: Marks) -> Waits[str]:
        """Reads a value. An end mark that is not followed by a key or the end is a part of the value."""
        parts: list[str] = []
        while True:
            part = yield from self.until(marks.value_end)
            if part is None:
                raise NotMarkup
            parts.append(part)
            space = yield from self.space()
            if (yield from self.peek_any((marks.key, marks.end))):
                return "".join(parts)
            parts += (marks.value_end, space)

    def section(
        self,
        opener: str,
        marks: tuple[Sequence[str], Sequence[str]],
        one: Callable[["CallParser", str], Waits[None]],
    ) -> Waits[None]:
        """Reads successive calls. `marks`: those that begin a call and those that end the section. The mark
        that opens the section may be missing."""
        begins, ends = marks
        mark = opener if opener in begins else (yield from self.after_space(begins))
        if not mark:
            raise NotMarkup
        while mark in begins:
            yield from one(self, mark)
            mark = yield from self.after_space((*begins, *ends))
        if mark:
            self.mark()


def parse_json(text: str) -> Any:
    """Returns None for invalid JSON."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return None


def _json_arguments(call: Mapping[str, Any]) -> str:
    """Returns the arguments of a JSON call; some models write them as a string of JSON."""
    given = call.get("arguments", call.get("parameters"))
    if given is None:
        return "{}"
    return given if isinstance(given, str) else to_json(given).decode()


_BLANK = re.compile(r"[ \t]*")
_ATTRIBUTE = re.compile(r"""(?<![a-z])([a-z]++)\s*+=\s*(?:"([^"]*)"|'([^']*)')""")
_SPACES = ("", "antml" + ":", "minimax:", "｜DSML｜", "｜｜DSML｜｜")  # prefixes of tags
_INVOKES = {f"<{space}invoke ": space for space in _SPACES}
_WRAPPERS = [f"{space}{word}>" for space in _SPACES for word in ("function_calls", "tool_calls")]
_WRAPPERS.append("minimax:tool_call>")
_INVOKE_MARKS = (tuple(_INVOKES), tuple(f"</{wrapper}" for wrapper in _WRAPPERS))
_FUNCTION = Marks("<parameter=", ">", "</" + "parameter>", "</function>")
_GLM = Marks("<arg_key>", "</arg_key>", "</arg_value>", "</tool_call>", "<arg_value>")
_DEEPSEEK_MARKS = (("<｜tool▁call▁begin｜>",), ("<｜tool▁calls▁end｜>",))
_DEEPSEEK_END = "<｜tool▁call▁end｜>"
_KIMI_MARKS = (("<|tool_call_begin|>",), ("<|tool_calls_section_end|>",))


def read_calls(calls: CallParser, lines: Sequence[str]) -> Waits[list[MarkupCall]]:
    """Reads the calls at this place; `lines`: the beginnings of calls that fill a line, if allowed."""
    calls.found = []
    try:
        if line := (yield from calls.read_any(lines)):
            yield from _named_line(calls, line[:-1])
        elif opener := (yield from calls.read_any(DIALECTS)):
            yield from DIALECTS[opener](calls, opener)
    except NotMarkup:
        pass
    return calls.found


def _named_line(calls: CallParser, name: str) -> Waits[None]:
    """Reads `name{…}` of an offered tool, alone on its line. An incomplete one is text."""
    text, is_whole = yield from read_json(calls, "{")
    yield from calls.run(_BLANK)
    is_alone = (yield from calls.peek()) in {"", "\r", "\n"}
    if is_whole and is_alone and parse_json(text) is not None:
        calls.add(name, text)


def _invoke(calls: CallParser, opener: str) -> Waits[None]:
    space = _INVOKES[opener]
    head = yield from calls.short(">")
    name = _attributes(head).get("name", "")
    if not name:
        raise NotMarkup
    value_end, end = f"</{space}parameter>", f"</{space}invoke>"
    marks = Marks(f"<{space}parameter ", ">", value_end, end)

    def typed(key: str, value: str) -> tuple[str, str, bool]:
        attributes = _attributes(key)
        plain = value if "DSML" in space else unescape_entities(value)
        return attributes.get("name", key), plain, attributes.get("string") == "false"

    calls.add_pairs(name, [] if head.endswith("/") else (yield from calls.pairs(marks)), typed)


def _attributes(head: str) -> dict[str, str]:
    return {key: double or single for key, double, single in _ATTRIBUTE.findall(head)}


def _tool_call(calls: CallParser, _: str) -> Waits[None]:
    """Three dialects with one mark: JSON, Qwen's functions, and GLM's name with keys and values."""
    if (yield from calls.after_space(("<function=",))):
        yield from _function(calls, "")
    elif (yield from calls.peek_any("{[")):
        yield from calls.named_json(_GLM.end)
    else:
        name = yield from calls.word()
        pairs = yield from calls.pairs(_GLM)
        calls.add_pairs(name, pairs, lambda key, value: (key.strip(), value, False))


def _function(calls: CallParser, _: str) -> Waits[None]:
    """Llama's call with JSON, or Qwen's with keys and values on separate lines."""
    name = yield from calls.word()
    if not (yield from calls.read_any(">")):
        raise NotMarkup
    yield from calls.space()
    if (yield from calls.peek_any("{")):
        calls.add(name, (yield from calls.json(_FUNCTION.end)))
    else:
        calls.add_pairs(name, (yield from calls.pairs(_FUNCTION)), _strip_line_ends)
    if (yield from calls.after_space((_GLM.end,))):
        calls.mark()


def _strip_line_ends(key: str, value: str) -> tuple[str, str, bool]:
    return key.strip(), value.removeprefix("\n").removesuffix("\n"), False


def _llama(calls: CallParser, _: str) -> Waits[None]:
    mark = ";"
    while mark == ";":
        yield from calls.named_json()
        mark = yield from calls.after_space((";", "<|eom_id|>", "<|eot_id|>"))
    if mark:
        calls.mark()


def _mistral(calls: CallParser, _: str) -> Waits[None]:
    """The older JSON list, or a name and its arguments."""
    yield from calls.space()
    if (yield from calls.peek_any("[")):
        return (yield from calls.named_json())
    name = yield from calls.word()
    if (yield from calls.read_any(("[CALL_ID]",))):
        yield from calls.word()
    yield from calls.read_any(("[ARGS]",))
    calls.add(name, (yield from calls.json()))


def _deepseek_call(calls: CallParser, _: str) -> Waits[None]:
    """A name and its JSON; or the word `function`, the name on the same line, and fenced JSON."""
    name = (yield from calls.short("<｜tool▁sep｜>")).strip()
    is_fenced = name == "function"
    if is_fenced:
        name = (yield from calls.short("\n")).strip()
        yield from calls.after_space(("```json",))
    text = yield from calls.json("```" if is_fenced else _DEEPSEEK_END)
    if is_fenced and text is not None and not (yield from calls.after_space((_DEEPSEEK_END,))):
        text = None
    calls.add(name, text)


def _kimi_call(calls: CallParser, _: str) -> Waits[None]:
    name = yield from calls.short("<|tool_call_argument_begin|>")
    calls.add(name, (yield from calls.json("<|tool_call_end|>")))


_invokes = partial(CallParser.section, marks=_INVOKE_MARKS, one=_invoke)
_deepseek = partial(CallParser.section, marks=_DEEPSEEK_MARKS, one=_deepseek_call)
_kimi = partial(CallParser.section, marks=_KIMI_MARKS, one=_kimi_call)
# Opening mark -> parser; no mark is the beginning of another.
DIALECTS: dict[str, Callable[[CallParser, str], Waits[None]]] = {
    **dict.fromkeys((*_INVOKES, *(f"<{wrapper}" for wrapper in _WRAPPERS)), _invokes),
    **dict.fromkeys(("<｜tool▁calls▁begin｜>", *_DEEPSEEK_MARKS[0]), _deepseek),
    **dict.fromkeys(("<|tool_calls_section_begin|>", *_KIMI_MARKS[0]), _kimi),
    "<tool_call>": _tool_call,
    "<function=": _function,
    "<|python_tag|>": _llama,
    "[TOOL_CALLS]": _mistral,
}

MAX_CALLS = 32  # in a reply; a turn refuses more
_LINE_KEPT = 200
_TOKENS = re.compile(r"`+|~+|\n|[^`~\n]+")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_LISTED = r"[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*"
_BEGINS_LINE = re.compile(_LISTED)
_QUOTED_LINE = re.compile(_LISTED + ">")
_INDENTED = re.compile(r" {0,3}\t[ \t]*| {4}[ \t]*")
_QUOTES = tuple("\"'“‘„«‹\\")  # characters before a mark that make it a quotation


class Recovery:
    """Removes calls from one stream of a reply. `feed` returns the text to show; `calls` are the calls
    found so far. A call in thinking counts only if no more thinking follows."""

    def __init__(self, tools: Sequence[ToolSpec], *, is_thought: bool = False) -> None:
        self.calls: list[MarkupCall] = []
        self._is_thought = is_thought
        self._parser = CallParser(tools)
        self._lines = [tool.name + "{" for tool in tools]
        self._begins, self._begins_line, self._may_begin = _beginnings(tuple(self._lines))
        self._prose = _Prose()
        self._shown: list[str] = []
        self._space: list[str] | None = []  # held at the start and after a call; None: not held
        self._reading = self._read()
        next(self._reading)

    @property
    def steps(self) -> int:
        """Returns the work done so far, without the scans of whole pieces."""
        return self._parser.steps + self._prose.steps

    def feed(self, text: str) -> str:
        self._parser.feed(text)
        next(self._reading)
        return self._pop_shown()

    def finish(self) -> str:
        """Ends the stream. Returns the text that was held back and is not a call."""
        self._parser.is_over = True
        for _ in self._reading:  # ends without another wait
            pass
        return self._pop_shown()

    def _pop_shown(self) -> str:
        shown = "".join(self._shown)
        self._shown.clear()
        return shown

    def _read(self) -> Waits[None]:
        while (yield from self._parser.peek()):
            self._parser.mark()
            calls: list[MarkupCall] = []
            begins = self._begins_line if self._prose.is_line_start() else self._begins
            if self._parser.starts_with(begins) and self._prose.may_call():
                lines = self._lines if begins is self._begins_line else ()
                calls = yield from read_calls(self._parser, lines)
            if calls:
                self.calls += calls[: MAX_CALLS - len(self.calls)]
                self._prose.add("\N{OBJECT REPLACEMENT CHARACTER}")
                self._space = self._space or []
                self._show(self._parser.consumed())
            else:
                self._show(self._parser.consumed() or self._parser.consume_to(self._may_begin))

    def _show(self, text: str) -> None:
        self._prose.add(text)
        if self._space is not None:
            stripped = text.lstrip()
            self._space.append(text[: len(text) - len(stripped)])
            if not stripped:
                return
            if self._is_thought:
                self.calls.clear()
            self._shown += self._space
            self._space, text = None, stripped
        self._shown.append(text)


@lru_cache(maxsize=64)
def _beginnings(lines: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Returns three patterns, which also match a beginning that the end of the text cuts off: a mark of a
    dialect; a mark or one of these lines; and the search for both, lines only at a line start."""
    marks, both = _any_of(DIALECTS), _any_of((*DIALECTS, *lines))
    found = f"{marks}|(?<=\n)(?:{_any_of(lines)})" if lines else marks
    return re.compile(marks), re.compile(both), re.compile(found)


def _any_of(literals: Collection[str]) -> str:
    """Returns a regular expression for these literals, cut off by the end of the text or not. It is a
    prefix tree, so the time of a match does not depend on their number."""
    rests: dict[str, list[str]] = {}
    for literal in literals:
        rests.setdefault(literal[:1], []).append(literal[1:])
    found = [
        re.escape(first) + (f"(?:{_any_of(rest)}|\\Z)" if any(rest) else "")
        for first, rest in rests.items()
    ]
    return "|".join(found)


def choose_calls(text: Recovery, thought: Recovery, answer: str) -> list[MarkupCall]:
    """Returns the calls of a reply: those in its text, else those in its thinking. A broken call in
    thinking does not count if there is an answer."""
    return text.calls or [one for one in thought.calls if one.is_whole or not answer.strip()]


class _Prose:
    """The Markdown state at the end of the text. In doubt the text is code, in which no call counts."""

    def __init__(self) -> None:
        self.steps = 0  # backticks and tildes seen
        self._line = ""  # the beginning of the current line
        self._last = ""
        self._run = ("", 0)  # character and length of an unfinished run of backticks or tildes
        self._span = (
            0  # backticks that opened a code span, or a fence whose first line has not ended
        )
        self._fence = ("", 0)
        self._may_close = False  # the line can still be the end of a fence
        self._judged = ("", False)  # the beginning of a line, and whether it is a quote

    def add(self, text: str) -> None:
        if "`" not in text and "~" not in text:
            if text:
                self._add_plain(text)
            return
        for token in _TOKENS.findall(text):
            char = token[0]
            if self._run[1] and char != self._run[0]:
                self._end_run()
            if char in "`~":
                self.steps += 1
                self._run = (char, self._run[1] + len(token))
            elif char == "\n":
                self._end_line()
            else:
                self._may_close = self._may_close and token.isspace()
                self._keep(token)
            self._last = token[-1]

    def _add_plain(self, text: str) -> None:
        """Adds text without backticks and tildes. Of the lines that it ends, only blank ones matter."""
        if self._run[1]:
            self._end_run()
        first, is_ended, rest = text.partition("\n")
        self._may_close = self._may_close and (not first or first.isspace())
        self._keep(first)
        self._last = text[-1]
        if is_ended:
            self._end_line()
            begun = rest.rfind("\n") + 1
            if self._span and _BLANK_LINE.search("\n" + rest[:begun]):
                self._span = 0
            self._keep(rest[begun : begun + _LINE_KEPT])

    def is_line_start(self) -> bool:
        return not self._line and not self._run[1]

    def may_call(self) -> bool:
        if self._run[1]:
            self._end_run()
        if self._span or self._fence[1] or self._last in _QUOTES:
            return False
        return not (self._is_quoted() or _INDENTED.fullmatch(self._line))

    def _is_quoted(self) -> bool:
        """True if the line is a quotation; cached until the line grows."""
        if self._line != self._judged[0]:
            self._judged = (self._line, _QUOTED_LINE.match(self._line) is not None)
        return self._judged[1]

    def _keep(self, text: str) -> None:
        if len(self._line) < _LINE_KEPT:
            self._line += text[: _LINE_KEPT - len(self._line)]

    def _end_run(self) -> None:
        """Ends a run of backticks or tildes, which may open or close a code span or a fence."""
        (char, length), self._run = self._run, ("", 0)
        before, is_quoted = self._line, self._is_quoted()
        self._keep(char * min(length, 3))
        if is_quoted:
            return
        if self._fence[1]:
            is_end = char == self._fence[0] and length >= self._fence[1]
            self._may_close = is_end and not before.strip()
        elif length >= 3 and _BEGINS_LINE.fullmatch(before):
            self._open_fence(char, length)
        elif char == "`":
            self._span = 0 if self._span == length else self._span or length

    def _open_fence(self, char: str, length: int) -> None:
        """Opens a fence. With backticks it may be a code span, until its line ends."""
        if char == "`":
            self._span = length
        else:
            self._fence, self._span = (char, length), 0

    def _end_line(self) -> None:
        if self._may_close:
            self._fence = ("", 0)
        elif self._span >= 3:
            self._fence, self._span = ("`", self._span), 0
        elif not self._line.strip():
            self._span = 0  # a code span ends with its paragraph
        self._may_close = False
        self._line = ""
