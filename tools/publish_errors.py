"""Writes docs/reference/errors.md, every error code with its remedy, from gateway/api/errors.toml."""

import re
from collections.abc import Iterator
from pathlib import Path

from gateway.api.errors import FILE as TEXTS
from gateway.api.errors import Explanation, explanations

FILE = Path(__file__).parent.parent / "docs" / "reference" / "errors.md"
HEAD = """# Errors

Every error code of the gateway and the command line, with its meaning and its remedy. The terminal shows the same text:

```sh
exogate explain CFG002
exogate explain budget_exceeded
exogate explain -32003
```

A code is `error.code` of an HTTP response, `error.data.code` of a JSON-RPC response, the code in brackets of a configuration
problem, the close code of a WebSocket, or the exit code of a command. `python tools/publish_errors.py` generates this page from
`gateway/api/errors.toml`; [methods and errors](methods.md) has the HTTP status of each type.
"""
_GROUP = re.compile(r"^# ---- (.+)$|^\[\"?([^\]\"]+)\"?\]$", re.MULTILINE)


def page() -> str:
    texts, parts = explanations(), [HEAD]
    for found in _GROUP.finditer(TEXTS.read_text(encoding="utf-8")):
        group, code = found.groups()
        if group:
            parts.append(f"## {group[0].upper()}{group[1:]}\n")
        elif code in texts:
            parts.append("\n".join(_entry(texts[code])))
    return "\n".join(parts)


def _entry(one: Explanation) -> Iterator[str]:
    yield f"### {one.code}\n"
    yield f"{one.title} {one.about}\n"
    if one.example:
        yield f"```toml\n{one.example}\n```\n"
    yield f"*What to do:* {one.fix}\n"
    if one.see:
        yield f"See also: {', '.join(f'[{code}](#{_anchor(code)})' for code in one.see)}\n"


def _anchor(code: str) -> str:
    return code.lower().replace(".", "")


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
