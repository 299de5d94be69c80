"""Prints the N-th command of the README: the first runs the gateway, the second its tests."""

import re
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    return [block.strip() for block in blocks]


if __name__ == "__main__":
    print(commands()[int(sys.argv[1]) - 1])
