"""What every verb is given: the options of the command line, and a configuration or its problems."""

import json

from tests.cli.conftest import Shell


def test_a_bad_configuration_is_json_where_json_is_asked_for(alone: Shell) -> None:
    alone.config.write_text("[gateway]\nprot = 1\n", encoding="utf-8")

    ran = alone("--json", "provider", "list")
    said = json.loads(ran.out)

    assert (ran.code, said["ok"], said["error"]["type"]) == (78, False, "config_error")
    assert (said["problems"][0]["line"], said["problems"][0]["key"]) == (2, "gateway.prot")


def test_the_command_line_wins_over_the_file(alone: Shell) -> None:
    other = alone.config.parent / "elsewhere"

    ran = alone("--data-dir", str(other), "status")

    assert ran.code == 69
    assert str(other) in ran.err
