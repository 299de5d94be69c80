"""The program on the page of the Python client runs as it stands there."""

import re
import sys
from pathlib import Path

import anyio

from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, Reply, scripted_server

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "client.md").read_text(encoding="utf-8")


def echo(asked: Asked) -> Reply:
    return Reply(["to ", asked.last_text])


async def test_the_program_of_the_page_talks_with_a_gateway(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    async with scripted_server(echo) as model, running(Setup(model.url), tmp_path) as site:
        code = program.replace("http://127.0.0.1:7200", site.url)
        with anyio.fail_after(60):
            ran = await anyio.run_process([sys.executable, "-c", code], cwd=ROOT)

    first, second, version = ran.stdout.decode().splitlines()
    assert first == "to What is 6 * 7?"
    assert second.startswith("to And what time is it? ")
    assert version
