"""`exogate budget` tells what is left, and writes limits into the configuration."""

from pathlib import Path

import pytest

from tests.cli.conftest import Shell


def test_the_running_gateway_is_asked_what_is_left(shell: Shell) -> None:
    told = shell("--json", "budget", "status").json["budgets"]

    scopes = [row["scope"] for row in told if not row["scope"].startswith("token:")]
    assert scopes == ["daily", "monthly", "agent:demo", "agent:second"]
    assert all(row["limit"] is None for row in told)
    assert "daily" in shell("budget", "status").out


def test_a_day_that_is_that_of_the_clock_needs_no_freeing(shell: Shell) -> None:
    told = shell("--json", "budget", "resync").json

    assert (told["changed"], told["records"]) == (False, 0)
    assert "changed   no" in shell("budget", "resync").out


@pytest.mark.requirement("S-003-Budget-09")
def test_a_limit_is_written_with_its_diff(tmp_path: Path) -> None:
    alone = Shell(tmp_path / "config.toml")
    alone.config.write_text(f"# mine\n[gateway]\ndata_dir = '{tmp_path}/data'\n")

    refused = alone("budget", "set", "daily", "5000")
    ran = alone("budget", "set", "daily", "5000", "--yes")
    again = alone("--json", "budget", "set", "daily", "5000", "--yes")

    assert refused.code != 0
    assert "+daily = 5000" in ran.out
    assert alone.config.read_text().startswith("# mine\n")
    assert alone.config.read_text().endswith("[budgets]\ndaily = 5000\n")
    assert again.json["changed"] is False
    assert alone("--json", "config", "get", "budgets.daily.tokens").json["value"] == 5000
