"""`exogate run` keeps its log in files, whatever stderr shows."""

import json
import signal
import stat
from dataclasses import replace
from pathlib import Path

import anyio
from anyio import to_thread

from tests.cli.conftest import Shell
from tests.fakes.client import post_chat
from tests.fakes.gateway import Setup, command
from tests.fakes.model_server import Reply, scripted_server

KEY = "sk-canary-0123456789"


async def test_the_log_is_kept_in_files_without_any_key(tmp_path: Path) -> None:
    async with scripted_server([Reply(status=401, body=f"no {KEY}".encode())]) as model:
        path = await Setup(model.url, key=KEY).written(tmp_path)
        async with command(path) as started:
            await post_chat(started.url, "hi")
            started.tell(signal.SIGTERM)
            await started.exit_code()
            said = await started.said()

    await to_thread.run_sync(check, tmp_path / "data" / "logs", said.decode())


async def test_the_form_of_lines_changes_with_a_reload_and_that_of_files_never(
    tmp_path: Path,
) -> None:
    as_lines = '[observability]\nlog_format = "{}"\n'
    setup = Setup("http://127.0.0.1:9/v1", rest=as_lines.format("json"))
    path = await setup.written(tmp_path)
    async with command(path) as started:
        changed = replace(setup, rest=as_lines.format("console"))
        await changed.written(tmp_path)
        told = await to_thread.run_sync(Shell(path), "--json", "reload")
        started.tell(signal.SIGTERM)
        await started.exit_code()
        said = (await started.said()).decode()

    assert told.json["changed"] == ["observability.log_format"]
    assert told.json["restart_needed"] == []
    assert " info    config_reloaded " in said
    [file] = [one async for one in anyio.Path(tmp_path / "data" / "logs").iterdir()]
    lines = [json.loads(line) for line in (await file.read_text("utf-8")).splitlines()]
    assert "draining" in [one["event"] for one in lines]


def check(folder: Path, said: str) -> None:
    [file] = folder.iterdir()
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "model_failed" in [one["event"] for one in lines]
    assert KEY not in file.read_text("utf-8") + said
