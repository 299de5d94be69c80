"""`exogate replay` says whether a run would go the same way again."""

import anyio

from tests.cli.conftest import Shell, end
from tests.fakes.gateway import Command, spawn


def test_a_run_is_replayed_and_compared(shell: Shell) -> None:
    run_id = shell("--json", "chat", "-m", "hello", "--peer", "replay").json["run_id"]

    same = shell("replay", run_id)
    other = shell("--json", "replay", run_id, "--model", "demo/other").json

    assert same.code == 0
    assert "identical    yes" in same.out
    assert "calls        1" in same.out
    assert (other["identical"], other["calls"]) == (True, 1)
    assert other["response"].startswith("Hello!")


def started(shell: Shell) -> Command:
    gateway = spawn(shell.config)
    assert anyio.run(gateway.ready)
    return gateway


def test_the_first_divergence_is_named(alone: Shell) -> None:
    first = started(alone)
    run_id = alone("--json", "chat", "-m", "hello").json["run_id"]
    end(first)
    text = alone.config.read_text(encoding="utf-8")
    changed = text.replace('id = "demo"', 'id = "demo"\nsystem_prompt = "Be kind."')
    alone.config.write_text(changed, encoding="utf-8")
    second = started(alone)

    told = alone("replay", run_id)
    plain = alone("--json", "replay", run_id)
    unknown = alone("replay", "r_nobody")
    end(second)

    assert (told.code, plain.code, unknown.code) == (1, 1, 1)
    assert "call 1: the system text (soul " in told.out
    assert "divergence now        Be kind." in told.out
    assert plain.json["divergence"]["now"].startswith("Be kind.")
    assert "r_nobody" in unknown.err
