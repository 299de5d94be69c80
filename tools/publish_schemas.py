"""Writes the JSON Schemas of the values between host and channel adapter into docs/schemas."""

import json
from pathlib import Path

from gateway.channels.adapter_json import schemas

FOLDER = Path(__file__).parent.parent / "docs" / "schemas"


def files() -> dict[str, str]:
    """Returns the schemas by file name."""
    return {
        f"{name}.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for name, schema in schemas().items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
