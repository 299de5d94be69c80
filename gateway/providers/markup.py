"""Tool calls that a model wrote as text, found while the text arrives and kept out of it."""

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
    """What is read cannot be a tool call."""


class Lookahead:
    """Keeps what is not read yet, and what was taken since the last mark."""

    def __init__(self) -> None:
        self.is_over = False
        self.steps = 0  # how often something was taken
        self._text = ""
        self._at = 0
        self._taken: list[str] = []

    def feed(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def mark(self) -> None:
        self._taken.clear()

    def taken(self) -> str:
        return "".join(self._taken)

    def peek(self) -> Waits[str]:
        """The next character; "" at the end."""
        while self._at == len(self._text):
            if self.is_over:
                return ""
            yield
        return self._text[self._at]

    def begins(self, beginning: re.Pattern[str]) -> bool:
        return beginning.match(self._text, self._at) is not None

    def take(self, count: int) -> str:
        self.steps += 1
        piece = self._text[self._at : self._at + count]
        self._at += len(piece)
        self._taken.append(piece)
        return piece

    def take_to(self, stop: re.Pattern[str]) -> str:
        """At least one character, and no further than the next that `stop` finds."""
        found = stop.search(self._text, self._at + 1)
        return self.take((found.start() if found else len(self._text)) - self._at)

    def run(self, characters: re.Pattern[str]) -> Waits[str]:
        """All that comes of these characters, which may be none."""
        pieces: list[str] = []
        while True:
            found = characters.match(self._text, self._at)
            pieces.append(self.take(found.end() - self._at if found else 0))
            if self._at < len(self._text) or self.is_over:
                return "".join(pieces)
            yield

    def is_next(self, literals: Collection[str]) -> Waits[str]:
        """Which of these comes next; "" as soon as none can. None may begin another."""
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

    def next_of(self, literals: Collection[str]) -> Waits[str]:
        """The same, and takes it."""
        found = yield from self.is_next(literals)
        if found:
            self.take(len(found))
        return found

    def space(self) -> Waits[str]:
        return self.run(_SPACE)

    def after_space(self, literals: Collection[str]) -> Waits[str]:
        """The same, behind white space that is taken in any case."""
        yield from self.space()
        return (yield from self.next_of(literals))

    def until(self, literal: str) -> Waits[str | None]:
        """All before this, which is taken too. None if it never comes: then all is taken."""
        pieces: list[str] = []
        while (end := self._text.find(literal, self._at)) < 0:
            keep = 0 if self.is_over else len(literal) - 1
            pieces.append(self.take(max(0, len(self._text) - self._at - keep)))
            if self.is_over:
                return None
            yield
        pieces.append(self.take(end - self._at))
        self.take(len(literal))
        return "".join(pieces)

    def short(self, literal: str, most: int = 256) -> Waits[str]:
        """The same for what is never long. Raises NotMarkup, with nothing taken."""
        while (end := self._text.find(literal, self._at, self._at + most + len(literal))) < 0:
            if self.is_over or len(self._text) - self._at >= most + len(literal):
                raise NotMarkup
            yield
        said = self.take(end - self._at)
        self.take(len(literal))
        return said


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


def read_json(ahead: Lookahead, opened: str = "") -> Waits[tuple[str, bool]]:
    """The text of an object or array, of which `opened` is taken already, and whether it is whole:
    it ends before the first character that cannot belong to it."""
    said = [opened]
    stack = [_CLOSING[opened]] if opened else []
    want = f"first {stack[0]}" if opened else "value"
    while stack or want == "value":
        said.append((yield from ahead.space()))
        char = yield from ahead.peek()
        kind = char if char and char in '{}[]:,"' else "v"
        want = _next_want(want, kind, stack)
        if not want or not (yield from _token(ahead, kind, said)):
            return "".join(said), False
    return "".join(said), True


def _next_want(want: str, kind: str, stack: list[str]) -> str:
    """What is wanted behind this; "" where it cannot stand."""
    step = _STEPS[want].get(kind, "")
    if not step or (kind in _CLOSING and len(stack) >= _DEEPEST):
        return ""
    if kind in _CLOSING:
        stack.append(_CLOSING[kind])
    elif kind in {"}", "]"} and stack.pop() != kind:
        return ""
    return "key" if kind == "," and stack[-1] == "}" else step


def _token(ahead: Lookahead, kind: str, said: list[str]) -> Waits[bool]:
    """Takes it; whether it is whole."""
    said.append((yield from ahead.run(_SCALAR)) if kind == "v" else ahead.take(1))
    while kind == '"':
        said.append((yield from ahead.run(_PLAIN)))
        char = yield from ahead.peek()
        if char not in {'"', "\\"}:
            return False
        said.append(ahead.take(1))
        if char == '"':
            break
        if not (yield from ahead.peek()):
            return False
        said.append(ahead.take(1))
    return bool(said[-1])


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


def arguments_of(tool: ToolSpec | None, pairs: Iterable[tuple[str, str, bool]]) -> str:
    """The JSON text of arguments: key, value, and whether it is JSON where the schema is silent."""
    parameters = tool.parameters if tool else "{}"
    typed = {
        key: _typed(value, _types_of(key, parameters), is_json=is_json)
        for key, value, is_json in pairs
    }
    return to_json(typed).decode()


_schema: Callable[[str], Mapping[str, Any]] = lru_cache(maxsize=64)(from_json)


@lru_cache(maxsize=1024)
def _types_of(key: str, parameters: str) -> Set[str]:
    """Of an argument; kept, for a model may write a call very often."""
    schema = _schema(parameters)
    return _types((schema.get("properties") or {}).get(key), schema, set())


def unescaped(value: str) -> str:
    """Entities of a value that is well-formed XML; one with a bare `<` or `&` was written as is."""
    if "<" in value or value.count("&") != sum(map(value.count, _ENTITIES)):
        return value
    return unescape(value)


def _typed(value: str, types: Set[str], *, is_json: bool) -> object:
    if "string" in types:
        return None if "null" in types and value.strip() == "null" else value
    if not types and not is_json:
        return value
    stripped = value.strip()
    try:
        parsed = from_json(_PYTHON.get(stripped, stripped), allow_inf_nan=False)
    except ValueError:
        return value  # the check of the arguments tells the model what is wrong
    return parsed if not types or _type_of(parsed) & types else value


def _types(schema: object, root: Mapping[str, Any], seen: set[int]) -> set[str]:
    """The JSON types that a schema allows; none where it does not say."""
    if not isinstance(schema, dict) or id(schema) in seen:
        return set()
    seen.add(id(schema))
    type_ = schema.get("type")
    if type_:
        return {type_} if isinstance(type_, str) else set(type_)
    inner = [one for key in ("anyOf", "oneOf", "allOf") for one in schema.get(key, ())]
    inner.append(_target(schema.get("$ref", "#"), root))
    types = [_types(one, root, seen) for one in inner]
    fixed = schema.get("enum", ()) if "const" not in schema else (schema["const"],)
    return set().union(*types, *map(_type_of, fixed))


def _target(reference: str, root: Mapping[str, Any]) -> object:
    """What a reference within the schema leads to; None where it leads nowhere."""
    target: Any = None if reference == "#" else root
    for name in reference.removeprefix("#/").split("/"):
        target = target.get(name) if isinstance(target, dict) else None
    return target


def _type_of(value: object) -> set[str]:
    if isinstance(value, float) and value.is_integer():
        return {"number", "integer"}
    return _TYPES[type(value)]


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


class CallParser(Lookahead):
    """Reads calls off the text. What is no call stays among what was taken since the last one."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        super().__init__()
        self._tools = {tool.name: tool for tool in tools}
        self.found: list[MarkupCall] = []

    def add(self, name: str, arguments: str | None) -> None:
        """Arguments None: the call is broken, and all that was read of it is what it came with."""
        name = _NUMBERED.sub("", name.strip().removeprefix("functions."))
        name = _NOT_IN_NAMES.sub("_", name)[:_LONGEST_NAME]
        if not name:
            raise NotMarkup
        text = _BROKEN + self.taken()[:_BROKEN_KEPT] if arguments is None else arguments
        self.found.append(MarkupCall(name, text, arguments is not None))
        self.mark()

    def add_pairs(
        self, name: str, pairs: Pairs | None, typed: Callable[[str, str], tuple[str, str, bool]]
    ) -> None:
        """`typed` makes of a key and a value what `arguments_of` takes."""
        triples = [typed(key, value) for key, value in pairs or ()]
        text = None if pairs is None else arguments_of(self._tools.get(name), triples)
        self.add(name, text)

    def word(self) -> Waits[str]:
        word = yield from self.run(_WORD)
        if not word:
            raise NotMarkup
        return word

    def json(self, end: str = "", begins: re.Pattern[str] = _OBJECT) -> Waits[str | None]:
        """JSON and the mark behind it, as it was written; None if it does not end. What is no JSON
        is a call all the same once it has begun like one."""
        yield from self.space()
        if not (yield from self.is_next("{[")):
            raise NotMarkup
        said, is_whole = yield from read_json(self)
        if not begins.match(said) and not (is_whole and parsed(said)):
            raise NotMarkup
        if is_whole and (not end or (yield from self.after_space((end,)))):
            return said
        rest = yield from self.until(end or "\n")
        return None if rest is None else said + rest

    def named_json(self, end: str = "") -> Waits[None]:
        """`{"name": …, "arguments": …}`, or a list of such."""
        said = yield from self.json(end, _NAMED)
        value = parsed(said or "")
        raw = self.taken()
        if value is None and (named := _NAMED.match(raw[raw.find("{") :])):
            self.add(named[1], None)
        for one in value if isinstance(value, list) else [value] if value else []:
            if not isinstance(one, dict) or not isinstance(one.get("name"), str):
                raise NotMarkup
            self.add(one["name"], _given(one))

    def pairs(self, marks: Marks) -> Waits[Pairs | None]:
        """Keys and values up to the end of the call; None if there is something else."""
        found = Pairs()
        yield from self.space()
        if not (yield from self.is_next((marks.key, marks.end))):
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
        """Up to the end mark that the grammar goes on behind: any other belongs to the value."""
        parts: list[str] = []
        while True:
            said = yield from self.until(marks.value_end)
            if said is None:
                raise NotMarkup
            parts.append(said)
            space = yield from self.space()
            if (yield from self.is_next((marks.key, marks.end))):
                return "".join(parts)
            parts += (marks.value_end, space)

    def section(
        self,
        opener: str,
        marks: tuple[Sequence[str], Sequence[str]],
        one: Callable[["CallParser", str], Waits[None]],
    ) -> Waits[None]:
        """Calls one behind the other, by the marks that begin each and that end all; they may
        stand without what should be around them."""
        begins, ends = marks
        mark = opener if opener in begins else (yield from self.after_space(begins))
        if not mark:
            raise NotMarkup
        while mark in begins:
            yield from one(self, mark)
            mark = yield from self.after_space((*begins, *ends))
        if mark:
            self.mark()


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


_BLANK = re.compile(r"[ \t]*")
_ATTRIBUTE = re.compile(r"""(?<![a-z])([a-z]++)\s*+=\s*(?:"([^"]*)"|'([^']*)')""")
_SPACES = ("", "antml" + ":", "minimax:", "｜DSML｜", "｜｜DSML｜｜")  # what tags begin with
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
    """The calls that begin here; `lines`: how one begins that is a line of its own, if it may."""
    calls.found = []
    try:
        if line := (yield from calls.next_of(lines)):
            yield from _named_line(calls, line[:-1])
        elif opener := (yield from calls.next_of(DIALECTS)):
            yield from DIALECTS[opener](calls, opener)
    except NotMarkup:
        pass
    return calls.found


def _named_line(calls: CallParser, name: str) -> Waits[None]:
    """`name{…}` and nothing behind it, for a tool that was offered: unless it is whole it is text."""
    said, is_whole = yield from read_json(calls, "{")
    yield from calls.run(_BLANK)
    is_alone = (yield from calls.peek()) in {"", "\r", "\n"}
    if is_whole and is_alone and parsed(said) is not None:
        calls.add(name, said)


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
        plain = value if "DSML" in space else unescaped(value)
        return attributes.get("name", key), plain, attributes.get("string") == "false"

    calls.add_pairs(name, [] if head.endswith("/") else (yield from calls.pairs(marks)), typed)


def _attributes(head: str) -> dict[str, str]:
    return {key: double or single for key, double, single in _ATTRIBUTE.findall(head)}


def _tool_call(calls: CallParser, _: str) -> Waits[None]:
    """One mark for three: JSON, Qwen's functions, and GLM's name with keys and values."""
    if (yield from calls.after_space(("<function=",))):
        yield from _function(calls, "")
    elif (yield from calls.is_next("{[")):
        yield from calls.named_json(_GLM.end)
    else:
        name = yield from calls.word()
        pairs = yield from calls.pairs(_GLM)
        calls.add_pairs(name, pairs, lambda key, value: (key.strip(), value, False))


def _function(calls: CallParser, _: str) -> Waits[None]:
    """Llama's with JSON inside, or Qwen's with keys and values on lines of their own."""
    name = yield from calls.word()
    if not (yield from calls.next_of(">")):
        raise NotMarkup
    yield from calls.space()
    if (yield from calls.is_next("{")):
        calls.add(name, (yield from calls.json(_FUNCTION.end)))
    else:
        calls.add_pairs(name, (yield from calls.pairs(_FUNCTION)), _without_line_ends)
    if (yield from calls.after_space((_GLM.end,))):
        calls.mark()


def _without_line_ends(key: str, value: str) -> tuple[str, str, bool]:
    return key.strip(), value.removeprefix("\n").removesuffix("\n"), False


def _llama(calls: CallParser, _: str) -> Waits[None]:
    mark = ";"
    while mark == ";":
        yield from calls.named_json()
        mark = yield from calls.after_space((";", "<|eom_id|>", "<|eot_id|>"))
    if mark:
        calls.mark()


def _mistral(calls: CallParser, _: str) -> Waits[None]:
    """The older list, or pairs of a name and its arguments."""
    yield from calls.space()
    if (yield from calls.is_next("[")):
        return (yield from calls.named_json())
    name = yield from calls.word()
    if (yield from calls.next_of(("[CALL_ID]",))):
        yield from calls.word()
    yield from calls.next_of(("[ARGS]",))
    calls.add(name, (yield from calls.json()))


def _deepseek_call(calls: CallParser, _: str) -> Waits[None]:
    """The name and its JSON; or a type, the name on the same line, and the JSON in a fence."""
    name = (yield from calls.short("<｜tool▁sep｜>")).strip()
    is_fenced = name == "function"
    if is_fenced:
        name = (yield from calls.short("\n")).strip()
        yield from calls.after_space(("```json",))
    said = yield from calls.json("```" if is_fenced else _DEEPSEEK_END)
    if is_fenced and said is not None and not (yield from calls.after_space((_DEEPSEEK_END,))):
        said = None
    calls.add(name, said)


def _kimi_call(calls: CallParser, _: str) -> Waits[None]:
    name = yield from calls.short("<|tool_call_argument_begin|>")
    calls.add(name, (yield from calls.json("<|tool_call_end|>")))


_invokes = partial(CallParser.section, marks=_INVOKE_MARKS, one=_invoke)
_deepseek = partial(CallParser.section, marks=_DEEPSEEK_MARKS, one=_deepseek_call)
_kimi = partial(CallParser.section, marks=_KIMI_MARKS, one=_kimi_call)
# By the mark that opens it; none of them begins another.
DIALECTS: dict[str, Callable[[CallParser, str], Waits[None]]] = {
    **dict.fromkeys((*_INVOKES, *(f"<{wrapper}" for wrapper in _WRAPPERS)), _invokes),
    **dict.fromkeys(("<｜tool▁calls▁begin｜>", *_DEEPSEEK_MARKS[0]), _deepseek),
    **dict.fromkeys(("<|tool_calls_section_begin|>", *_KIMI_MARKS[0]), _kimi),
    "<tool_call>": _tool_call,
    "<function=": _function,
    "<|python_tag|>": _llama,
    "[TOOL_CALLS]": _mistral,
}

MOST_CALLS = 32  # of a reply; a turn refuses more anyway
_LINE_KEPT = 200
_TOKENS = re.compile(r"`+|~+|\n|[^`~\n]+")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_LISTED = r"[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*"
_BEGINS_LINE = re.compile(_LISTED)
_QUOTED_LINE = re.compile(_LISTED + ">")
_INDENTED = re.compile(r" {0,3}\t[ \t]*| {4}[ \t]*")
_QUOTES = tuple("\"'“‘„«‹\\")  # and what takes a mark's meaning away


class Recovery:
    """One stream of a reply: `feed` gives back what may be shown, `calls` are those found so far.
    In thought, a call that more thought follows was only considered: it does not count."""

    def __init__(self, tools: Sequence[ToolSpec], *, is_thought: bool = False) -> None:
        self.calls: list[MarkupCall] = []
        self._is_thought = is_thought
        self._parser = CallParser(tools)
        self._lines = [tool.name + "{" for tool in tools]
        self._begins, self._begins_line, self._may_begin = _beginnings(tuple(self._lines))
        self._prose = _Prose()
        self._shown: list[str] = []
        self._space: list[str] | None = []  # held at the start and behind a call; None: not held
        self._reading = self._read()
        next(self._reading)

    @property
    def steps(self) -> int:
        """What was done so far, beside looking at whole pieces."""
        return self._parser.steps + self._prose.steps

    def feed(self, text: str) -> str:
        self._parser.feed(text)
        next(self._reading)
        return self._new()

    def finish(self) -> str:
        """The stream has ended: what was held back and is no call."""
        self._parser.is_over = True
        for _ in self._reading:  # it ends without another wait
            pass
        return self._new()

    def _new(self) -> str:
        shown = "".join(self._shown)
        self._shown.clear()
        return shown

    def _read(self) -> Waits[None]:
        while (yield from self._parser.peek()):
            self._parser.mark()
            calls: list[MarkupCall] = []
            begins = self._begins_line if self._prose.is_line_start() else self._begins
            if self._parser.begins(begins) and self._prose.may_call():
                lines = self._lines if begins is self._begins_line else ()
                calls = yield from read_calls(self._parser, lines)
            if calls:
                self.calls += calls[: MOST_CALLS - len(self.calls)]
                self._prose.say("\N{OBJECT REPLACEMENT CHARACTER}")
                self._space = self._space or []
                self._say(self._parser.taken())
            else:
                self._say(self._parser.taken() or self._parser.take_to(self._may_begin))

    def _say(self, text: str) -> None:
        self._prose.say(text)
        if self._space is not None:
            said = text.lstrip()
            self._space.append(text[: len(text) - len(said)])
            if not said:
                return
            if self._is_thought:
                self.calls.clear()
            self._shown += self._space
            self._space, text = None, said
        self._shown.append(text)


@lru_cache(maxsize=64)
def _beginnings(lines: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Where a call may begin, also where the text ends before it is sure: a dialect's mark; at the
    start of a line also one of these; and both, to be searched for."""
    marks, both = _any_of(DIALECTS), _any_of((*DIALECTS, *lines))
    found = f"{marks}|(?<=\n)(?:{_any_of(lines)})" if lines else marks
    return re.compile(marks), re.compile(both), re.compile(found)


def _any_of(literals: Collection[str]) -> str:
    """An expression for any of these, none of which begins another, or for its beginning where the
    text ends. By their common beginnings, so that a look takes the same however many there are."""
    rests: dict[str, list[str]] = {}
    for literal in literals:
        rests.setdefault(literal[:1], []).append(literal[1:])
    found = [
        re.escape(first) + (f"(?:{_any_of(rest)}|\\Z)" if any(rest) else "")
        for first, rest in rests.items()
    ]
    return "|".join(found)


def counted(text: Recovery, thought: Recovery, answer: str) -> list[MarkupCall]:
    """The calls of a reply: those of its text, else those of its thought. Where something was
    answered, a call that was only begun in thought is none."""
    return text.calls or [one for one in thought.calls if one.is_whole or not answer.strip()]


class _Prose:
    """Where in Markdown the text has come to. In doubt it is code: then nothing is called."""

    def __init__(self) -> None:
        self.steps = 0  # marks that were looked at
        self._line = ""  # its beginning
        self._last = ""
        self._run = ("", 0)  # of backticks or tildes; it may go on
        self._span = 0  # backticks that opened a code span, or a fence whose first line it is
        self._fence = ("", 0)
        self._may_close = False  # the line is a fence's end so far
        self._judged = ("", False)  # a line's beginning, and whether it is a quote

    def say(self, text: str) -> None:
        if "`" not in text and "~" not in text:
            if text:
                self._say_plain(text)
            return
        for token in _TOKENS.findall(text):
            char = token[0]
            if self._run[1] and char != self._run[0]:
                self._settle()
            if char in "`~":
                self.steps += 1
                self._run = (char, self._run[1] + len(token))
            elif char == "\n":
                self._end_line()
            else:
                self._may_close = self._may_close and token.isspace()
                self._keep(token)
            self._last = token[-1]

    def _say_plain(self, text: str) -> None:
        """Whole lines without a mark at once: of those that end, only blank ones matter."""
        if self._run[1]:
            self._settle()
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
            self._settle()
        if self._span or self._fence[1] or self._last in _QUOTES:
            return False
        return not (self._is_quoted() or _INDENTED.fullmatch(self._line))

    def _is_quoted(self) -> bool:
        """Whether the line is a quote; looked at anew only where its beginning has grown."""
        if self._line != self._judged[0]:
            self._judged = (self._line, _QUOTED_LINE.match(self._line) is not None)
        return self._judged[1]

    def _keep(self, said: str) -> None:
        if len(self._line) < _LINE_KEPT:
            self._line += said[: _LINE_KEPT - len(self._line)]

    def _settle(self) -> None:
        """A run of backticks or tildes is over: what did it open or close?"""
        (char, length), self._run = self._run, ("", 0)
        before, is_quoted = self._line, self._is_quoted()
        self._keep(char * min(length, 3))
        if is_quoted:
            return
        if self._fence[1]:
            is_end = char == self._fence[0] and length >= self._fence[1]
            self._may_close = is_end and not before.strip()
        elif length >= 3 and _BEGINS_LINE.fullmatch(before):
            self._open(char, length)
        elif char == "`":
            self._span = 0 if self._span == length else self._span or length

    def _open(self, char: str, length: int) -> None:
        """A fence; of backticks it may still be a code span, until its line ends."""
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
            self._span = 0  # no code span goes beyond its paragraph
        self._may_close = False
        self._line = ""
