"""`exogate channel test`: every adapter's conversation goes as it says, and what differs is told."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree

import pytest

from gateway.app.doctor import BadPlugin
from gateway.cli.channel_testing import PLATFORM, Script, play, read_script
from gateway.cli.plugin_files import find_source
from tests.cli.conftest import Shell
from tests.cli.plugin_bench import Bench
from tests.fakes.compiled import compiled

PLUGINS = Path(__file__).parents[2] / "plugins"
ADAPTERS = sorted(one.parent for one in PLUGINS.glob(f"*/{PLATFORM}"))
WEBHOOK = PLUGINS / "webhook"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("data"), "echo", "webhook")


def nobody(lines: Sequence[str]) -> None:
    """Nobody listens."""


def test_the_conversation_of_every_adapter_goes_as_it_says(alone: Shell) -> None:
    """At the same time: their platforms make them wait."""
    names = [adapter.name for adapter in ADAPTERS]
    compiled(alone.config.parent / "data", "echo", *names)

    with ThreadPoolExecutor(len(names)) as pool:
        ran = list(pool.map(lambda name: alone("channel", "test", name), names))

    assert len(names) >= 6
    for name, done in zip(names, ran, strict=True):
        count = len(read_script(PLUGINS / name / PLATFORM).steps)
        assert (done.code, done.err) == (0, ""), done.out + done.err
        assert f"{count} of {count} steps passed" in done.out


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda one: one.name)
def test_a_conversation_covers_what_every_platform_has(adapter: Path) -> None:
    script = read_script(adapter / PLATFORM)

    names = " | ".join(step.name for step in script.steps)
    assert "pair" in names
    assert "429" in names
    assert "again" in names or "another transaction" in names
    assert any(
        "/help" in json.dumps(step.call.body) or "help" in json.dumps(step.call.body)
        for step in script.steps
    )
    assert "long answer" in names


def changed(script: Script, **change: object) -> Script:
    first = script.steps[0].model_copy(update=change)
    return script.model_copy(update={"steps": [first, *script.steps[1:]]})


def test_what_differs_is_told_and_ends_the_conversation(kept: Path) -> None:
    script = read_script(WEBHOOK / PLATFORM)
    first = script.steps[0]
    wrong = [one.model_copy(update={"body": {"peer": "somebody else"}}) for one in first.out]
    status = first.answered.model_copy(update={"status": 202, "body": {"ok": True}})
    lines: list[str] = []

    (played,) = play(
        find_source(str(WEBHOOK)),
        changed(script, out=wrong[:1], answered=status),
        lines.extend,
        data_dir=kept,
    )

    assert played.problems[:2] == ["answered 200, not 202", 'answered "", without {"ok": true}']
    assert played.problems[2:] == ['did not ask POST /answers {"peer": "somebody else"}']
    assert lines[0].startswith("✗ ")
    assert any("429" in line for line in lines)


def test_what_was_not_asked_is_told(kept: Path) -> None:
    script = read_script(WEBHOOK / PLATFORM)
    first = script.steps[0]

    (played,) = play(
        find_source(str(WEBHOOK)),
        changed(script, out=[*first.out, first.out[0]]),
        nobody,
        data_dir=kept,
    )

    assert played.problems == ['did not ask POST /answers {"peer": "build"}']


def test_what_was_asked_too_often_is_told(kept: Path) -> None:
    script = read_script(WEBHOOK / PLATFORM)

    (played,) = play(
        find_source(str(WEBHOOK)),
        changed(script, out=script.steps[0].out[:1]),
        nobody,
        data_dir=kept,
    )

    (problem,) = played.problems
    assert problem.startswith("asked POST /answers {")


def test_a_channel_that_the_gateway_refuses_is_not_played(kept: Path) -> None:
    script = read_script(WEBHOOK / PLATFORM).model_copy(update={"secrets": {}})

    with pytest.raises(BadPlugin, match="secret 'secret' is missing"):
        play(find_source(str(WEBHOOK)), script, nobody, data_dir=kept)


def test_the_command_line_shows_it_and_ends_with_1_if_it_differs(
    tmp_path: Path, kept: Path
) -> None:
    folder = tmp_path / "webhook"
    copytree(WEBHOOK, folder)
    script = json.loads((folder / PLATFORM).read_text(encoding="utf-8"))
    step = {**script["steps"][-1], "answered": {"status": 200}}
    (folder / PLATFORM).write_text(json.dumps({**script, "steps": [step]}), encoding="utf-8")
    bench = Bench(tmp_path, kept)

    shown = bench.run("test", str(folder), verb="channel")
    told = bench.run("test", str(folder), "--json", verb="channel")

    assert (shown.exit_code, told.exit_code) == (1, 1)
    assert "answered 500, not 200" in shown.output
    assert "0 of 1 steps passed" in shown.output
    assert json.loads(told.stdout)["steps"][0]["answered"]["status"] == 500
