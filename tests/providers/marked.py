"""What these tests read markup with: the tools that are offered, and the corpora beside."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.domain.model import ToolSpec
from gateway.providers.markup import MarkupCall, Recovery

CORPORA = Path(__file__).parent / "markup"
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "celsius": {"type": "boolean"},
        "ratio": {"type": "number"},
        "tags": {"type": "array"},
        "place": {"$ref": "#/$defs/place"},
        "level": {"enum": [1, 2]},
        "code": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "$defs": {"place": {"type": "object"}},
}
TOOLS = (
    ToolSpec("weather", "Tells the weather.", json.dumps(WEATHER)),
    ToolSpec("clock", "Tells the time."),
)


@dataclass(frozen=True)
class Case:
    """One text of a corpus: what may be shown of it, and which calls stand in it."""

    name: str
    said: str
    shown: str
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def cases() -> list[Case]:
    found = []
    for path in sorted(CORPORA.glob("*.toml")):
        for case in tomllib.loads(path.read_text(encoding="utf-8"))["case"]:
            calls = [
                (call["name"], call["arguments"] | dict.fromkeys(call.get("nulls", ())))
                for call in case.get("calls", ())
            ]
            name = f"{path.stem}: {case['name']}"
            found.append(Case(name, case["said"], case["shown"], calls, case.get("broken", [])))
    return found


def recovered(
    pieces: Sequence[str], *, is_thought: bool = False, tools: Sequence[ToolSpec] = TOOLS
) -> tuple[str, list[MarkupCall]]:
    """What is shown of a text that arrives in these pieces, and the calls in it."""
    recovery = Recovery(tools, is_thought=is_thought)
    shown = [recovery.feed(piece) for piece in pieces]
    return "".join(shown) + recovery.finish(), recovery.calls


def hermes(name: str = "clock", arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
