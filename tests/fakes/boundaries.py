"""What stands between the boundary's tags of a tool's result, as a model is shown it."""

import re

BOUNDARY = re.compile(r"<tool-result-([0-9a-f]{16})>\n(.*)\n</tool-result-\1>", re.DOTALL)


def inside(text: str) -> str:
    """The text itself, if it has none."""
    found = BOUNDARY.fullmatch(text)
    return found[2] if found else text
