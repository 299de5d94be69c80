"""What a run was told, mark by mark, in order: enough to tell it again without anybody else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

MarkKind = Literal[
    "begin",  # the driver begins: limits, tree and the like, and what is known of the request
    "earlier",  # what the journal held of an earlier attempt
    "kept",  # what rules had kept of the session
    "waiting",  # notices from other sessions
    "remembered",  # facts and earlier turns that it was shown, and why there are none
    "lacking",  # MCP servers that were not there, each with a sentence; none: no mark
    "told",  # the turn was told these, at once
    "late",  # the time came that it waited for
    "ask",  # a model is asked: digests of the request's parts
    "sent",  # a request of so many bytes went out
    "head",  # its answer began: status, and the headers that decoding needs
    "bytes",  # one read of it
    "end",  # how it ended: complete, cut (by us), or a network's failure with its words
    "text",  # heard of a model that has no bytes
    "thinking",
    "reply",  # the model's reply is there; the reply itself only where there are no bytes
    "failed",  # the same of a failure
    "refused",  # a budget was spent: scope, unit, used and limit
    "metered",  # before a reply: what it cost, and the warnings that came with it
    "result",  # of a tool: the id, name and arguments of the call; content, is_error, duration_ms
    "spent",  # the id of a call at work, and what models used for it
    "slow",  # a tool that was given up: the id of its call, and the result that stands for its own
    "noted",  # the journal has it
    "stop",  # somebody stopped it: the reason, and whether at once
    "said",  # somebody said more: the run that it came with, and the text
    "unsaid",  # and took it back
    "now",  # the clocks, each time they were read; the first in microseconds since 1970
    "tick",
    "over",  # the driver has ended
]

# What each kind holds. Whatever does not fit was not written by us.
_SHAPES: Mapping[str, tuple[type | tuple[type, ...], ...]] = {
    "begin": (dict, dict),
    "earlier": (list,),
    "kept": ((str, type(None)),),
    "waiting": (list,),
    "remembered": (list, str),
    "lacking": (list,),
    "told": (list,),
    "late": (),
    "ask": (dict,),
    "sent": (int,),
    "head": (int, dict),
    "bytes": (str,),
    "end": (str, str),
    "text": (str,),
    "thinking": (str,),
    "reply": ((dict, type(None)),),
    "failed": ((dict, type(None)),),
    "refused": (str, str, str, int, int),
    "metered": ((float, int, type(None)), list),
    "result": (str, str, str, str, bool, (float, int)),
    "spent": (str, list),
    "slow": (str, str),
    "noted": (int, str),
    "stop": (str, bool),
    "said": (str, str),
    "unsaid": (str,),
    "now": (int,),
    "tick": ((float, int),),
    "over": (),
}

# What a mark may hold besides; tapes of before have it not.
_MORE: Mapping[str, tuple[type | tuple[type, ...], ...]] = {"result": (str, (dict, type(None)))}


_NO_TIME = 253_402_300_799_999_999  # microseconds: the calendar has ended


class Mark(NamedTuple):
    """One thing that a run was told, in its place among all others. `values` are plain; bytes of a
    network are text, a character a byte."""

    kind: MarkKind
    values: tuple[Any, ...] = ()


class Record(Protocol):
    """Takes down what happens. It never waits and never fails."""

    def __call__(self, kind: MarkKind, *values: object) -> None: ...

    def hide(self, *secrets: str) -> None:
        """Texts that must not stand on the tape, whoever says them."""
        ...


@dataclass(frozen=True, slots=True)
class Tape:
    """All marks of one attempt; `asked` are the runs whose messages it answers, its own the last.
    One that grew too long is cut, and holds none."""

    marks: tuple[Mark, ...] = ()
    is_cut: bool = False
    asked: tuple[str, ...] = ()


def to_plain(tape: Tape) -> dict[str, object]:
    marks = [[mark.kind, *mark.values] for mark in tape.marks]
    return {"version": 1, "cut": tape.is_cut, "asked": list(tape.asked), "marks": marks}


def from_plain(plain: object) -> Tape:
    """Raises ValueError for what `to_plain` never gives."""
    match plain:
        case {"version": 1, "cut": bool(is_cut), "asked": list(asked), "marks": list(marks)}:
            return Tape(tuple(map(_mark, marks)), is_cut, tuple(map(str, asked)))
        case _:
            raise ValueError("its form is not known")


def _mark(plain: object) -> Mark:
    match plain:
        case ["now", int(micros)] if not 0 <= micros <= _NO_TIME:
            pass
        case [str(kind), *values] if kind in _SHAPES:
            types = _SHAPES[kind]
            types += _MORE.get(kind, ()) if len(values) > len(types) else ()
            if len(values) == len(types) and all(map(isinstance, values, types)):
                return Mark(kind, tuple(values))  # type: ignore[arg-type]  # one of the table's
    raise ValueError("it holds a mark that is none")
