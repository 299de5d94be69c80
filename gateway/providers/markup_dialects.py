"""The dialects in which models write tool calls as text: one function each, by its opening mark."""

import re
from collections.abc import Callable, Sequence

from gateway.providers.markup_calls import Calls, Marks, MarkupCall, parsed
from gateway.providers.markup_json import read_json
from gateway.providers.markup_tape import NotMarkup, Waits
from gateway.providers.markup_values import unescaped

_BLANK = re.compile(r"[ \t]*")
_ATTRIBUTE = re.compile(r"""([a-z]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_SPACES = ("", "antml" + ":", "minimax:", "｜DSML｜", "｜｜DSML｜｜")  # what tags begin with
_INVOKES = {f"<{space}invoke ": space for space in _SPACES}
_WRAPPERS = [f"{space}{word}>" for space in _SPACES for word in ("function_calls", "tool_calls")]
_WRAPPERS.append("minimax:tool_call>")
_INVOKE_MARKS = (tuple(_INVOKES), tuple(f"</{wrapper}" for wrapper in _WRAPPERS))
_FUNCTION = Marks("<parameter=", ">", "</" + "parameter>", "</function>")
_GLM = Marks("<arg_key>", "</arg_key>", "</arg_value>", "</tool_call>", "<arg_value>")
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_END = "<｜tool▁call▁end｜>"
_KIMI = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_calls_section_end|>")


def read_calls(calls: Calls, lines: Sequence[str]) -> Waits[list[MarkupCall]]:
    """The calls that begin here; `lines`: how one begins that is a line of its own, if it may."""
    calls.found = []
    try:
        if line := (yield from calls.tape.next_of(lines)):
            yield from _named_line(calls, line[:-1])
        elif opener := (yield from calls.tape.next_of(DIALECTS)):
            yield from DIALECTS[opener](calls, opener)
    except NotMarkup:
        pass
    return calls.found


def _named_line(calls: Calls, name: str) -> Waits[None]:
    """`name{…}` and nothing behind it, for a tool that was offered: unless it is whole it is text."""
    said, is_whole = yield from read_json(calls.tape, "{")
    yield from calls.tape.run(_BLANK)
    is_alone = not (yield from calls.tape.has_more()) or calls.tape.peek() in "\r\n"
    if is_whole and is_alone and parsed(said) is not None:
        calls.add(name, said)


def _invokes(calls: Calls, opener: str) -> Waits[None]:
    yield from calls.section(opener, _INVOKE_MARKS, _invoke)


def _invoke(calls: Calls, opener: str) -> Waits[None]:
    space = _INVOKES[opener]
    head = yield from calls.tape.short(">")
    name = _attributes(head).get("name", "")
    if not name:
        raise NotMarkup
    value_end, end = f"</{space}parameter>", f"</{space}invoke>"
    marks = Marks(f"<{space}parameter ", ">", value_end, end)

    def typed(key: str, value: str) -> tuple[str, str, bool]:
        told = _attributes(key)
        plain = value if "DSML" in space else unescaped(value)
        return told.get("name", key), plain, told.get("string") == "false"

    calls.add_pairs(name, [] if head.endswith("/") else (yield from calls.pairs(marks)), typed)


def _attributes(head: str) -> dict[str, str]:
    return {key: double or single for key, double, single in _ATTRIBUTE.findall(head)}


def _tool_call(calls: Calls, _: str) -> Waits[None]:
    """One mark for three: JSON, Qwen's functions, and GLM's name with keys and values."""
    if (yield from calls.tape.after_space(("<function=",))):
        yield from _function(calls, "")
    elif (yield from calls.tape.is_next("{[")):
        yield from calls.named_json(_GLM.end)
    else:
        name = yield from calls.word()
        pairs = yield from calls.pairs(_GLM)
        calls.add_pairs(name, pairs, lambda key, value: (key.strip(), value, False))


def _function(calls: Calls, _: str) -> Waits[None]:
    """Llama's with JSON inside, or Qwen's with keys and values on lines of their own."""
    name = yield from calls.word()
    if not (yield from calls.tape.next_of(">")):
        raise NotMarkup
    yield from calls.tape.space()
    if (yield from calls.tape.is_next("{")):
        calls.add(name, (yield from calls.json(_FUNCTION.end)))
    else:
        calls.add_pairs(name, (yield from calls.pairs(_FUNCTION)), _without_line_ends)
    if (yield from calls.tape.after_space((_GLM.end,))):
        calls.tape.mark()


def _without_line_ends(key: str, value: str) -> tuple[str, str, bool]:
    return key.strip(), value.removeprefix("\n").removesuffix("\n"), False


def _llama(calls: Calls, _: str) -> Waits[None]:
    mark = ";"
    while mark == ";":
        yield from calls.named_json()
        mark = yield from calls.tape.after_space((";", "<|eom_id|>", "<|eot_id|>"))
    if mark:
        calls.tape.mark()


def _mistral(calls: Calls, _: str) -> Waits[None]:
    """The older list, or pairs of a name and its arguments."""
    yield from calls.tape.space()
    if (yield from calls.tape.is_next("[")):
        return (yield from calls.named_json())
    name = yield from calls.word()
    if (yield from calls.tape.next_of(("[CALL_ID]",))):
        yield from calls.word()
    yield from calls.tape.next_of(("[ARGS]",))
    calls.add(name, (yield from calls.json()))


def _deepseek(calls: Calls, opener: str) -> Waits[None]:
    yield from calls.section(opener, (_DEEPSEEK[1:2], _DEEPSEEK[2:]), _deepseek_call)


def _deepseek_call(calls: Calls, _: str) -> Waits[None]:
    """The name and its JSON; or a type, the name on the same line, and the JSON in a fence."""
    name = (yield from calls.tape.short("<｜tool▁sep｜>")).strip()
    is_fenced = name == "function"
    if is_fenced:
        name = (yield from calls.tape.short("\n")).strip()
        yield from calls.tape.after_space(("```json",))
    said = yield from calls.json("```" if is_fenced else _DEEPSEEK_END)
    if is_fenced and said is not None and not (yield from calls.tape.after_space((_DEEPSEEK_END,))):
        said = None
    calls.add(name, said)


def _kimi(calls: Calls, opener: str) -> Waits[None]:
    yield from calls.section(opener, (_KIMI[1:2], _KIMI[2:]), _kimi_call)


def _kimi_call(calls: Calls, _: str) -> Waits[None]:
    name = yield from calls.tape.short("<|tool_call_argument_begin|>")
    calls.add(name, (yield from calls.json("<|tool_call_end|>")))


# By the mark that opens it; none of them begins another.
DIALECTS: dict[str, Callable[[Calls, str], Waits[None]]] = {
    **dict.fromkeys((*_INVOKES, *(f"<{wrapper}" for wrapper in _WRAPPERS)), _invokes),
    **dict.fromkeys(_DEEPSEEK[:2], _deepseek),
    **dict.fromkeys(_KIMI[:2], _kimi),
    "<tool_call>": _tool_call,
    "<function=": _function,
    "<|python_tag|>": _llama,
    "[TOOL_CALLS]": _mistral,
}
