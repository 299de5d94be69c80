"""Rules are switched on and off while the gateway runs; a run keeps those that it began with."""

from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from gateway.app.background import keep_rules_fresh
from gateway.app.generation import build
from gateway.config.values import GatewayConfig, RuleFolder
from gateway.control.rules import CurrentRules, RunRules
from gateway.host.files import LOOK_EVERY_S
from tests.fakes.clock import FakeClock
from tests.fakes.rules import core_definitions, event, rule

WARNING = event("budget.token.warning", {"message": "m"})


def config(folder: Path) -> GatewayConfig:
    return GatewayConfig(
        rules=core_definitions(),
        rule_folder=RuleFolder(folder, (), ()),
    )


@pytest.mark.requirement("S-002-Rules-08")
async def test_a_rule_is_switched_off_without_a_restart_and_a_core_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = anyio.Path(tmp_path) / "mine.toml", FakeClock()
    await path.write_text(rule("on = ['query.*']", "mine"))
    made = await to_thread.run_sync(build, config(tmp_path))
    current = CurrentRules(made.rules)

    async def looked() -> None:
        clock.move(LOOK_EVERY_S)
        await clock.until_someone_sleeps()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(keep_rules_fresh, made.config, current, clock)
            await clock.until_someone_sleeps()
            before = RunRules(current.now)
            await path.write_text(rule("on = ['query.*']\nenabled = false", "mine"))
            await looked()
            assert before.on(event(), {})
            assert not RunRules(current.now).on(event(), {})

            await path.write_text(rule("enabled = false", "token-budget"))
            await looked()
            (refused,) = current.now.refused
            assert "cannot be disabled" in refused.why
            assert RunRules(current.now).on(WARNING, {})

            await path.unlink()
            await looked()
            assert not current.now.refused
            group.cancel_scope.cancel()

    assert "a file of rules is refused" in [one.getMessage() for one in caplog.records]


async def test_without_a_folder_nobody_looks() -> None:
    made = await to_thread.run_sync(build, GatewayConfig())
    current = CurrentRules(made.rules)

    with anyio.fail_after(5):
        await keep_rules_fresh(made.config, current, FakeClock())

    assert not current.now.rules
