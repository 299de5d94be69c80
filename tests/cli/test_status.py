"""`exogate status` asks the running gateway how it is."""

from tests.cli.conftest import Shell


def test_a_gateway_that_is_ready_says_so(shell: Shell) -> None:
    ran = shell("status")

    assert ran.code == 0
    assert "ready" in ran.out
    assert "demo, second" in ran.out
    assert "plugins" in ran.out
    assert shell("--json", "status").json["ready"] is True
