"""Counts the words and characters of a text."""

import json

from componentize_py_types import Err
from wit_world import WitWorld as World
from wit_world.imports import log

# What the gateway and the model are told about this plugin.
DESCRIPTION = {
    "name": "wordcount",
    "version": "0.1.0",
    "kind": "tool",
    "description": "Counts the words and characters of a text.",
    "tools": [
        {
            "name": "wordcount",
            "description": "Counts the words and characters of a text.",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string", "description": "the text to count"}},
                "required": ["text"],
                "additionalProperties": False,
            },
            "category": "meta",
            "annotations": {"readOnlyHint": True, "idempotentHint": True},
        }
    ],
}


class WitWorld(World):
    def describe(self) -> str:
        return json.dumps(DESCRIPTION)

    def handle_tool_call(self, input: str) -> str:
        """Gets {"tool", "arguments", "call_id", "session", "config"} as JSON, gives JSON back.

        The text of an Err is shown to the model: say what is wrong and what to do.
        """
        text = json.loads(input)["arguments"].get("text")
        if not isinstance(text, str):
            raise Err("The argument text has to be a text.")
        words = len(text.split())
        log.write(log.Level.INFO, f"counted {words} words")
        return json.dumps({"words": words, "characters": len(text)})
