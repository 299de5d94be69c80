"""Log records are lines in order that steer no terminal."""

import json
import logging
from io import StringIO

from gateway.host.logs import Console, JsonLines, logging_to

log = logging.getLogger("gateway.some.room")


def record(*, failed: bool = False) -> logging.LogRecord:
    trouble = None
    if failed:
        try:
            raise ValueError("boom")
        except ValueError as error:
            trouble = (type(error), error, error.__traceback__)
    made = log.makeRecord(log.name, logging.INFO, "f", 1, "it happened", (), trouble)
    made.session = "a:b:c:d\nx"
    return made


def test_a_json_line_is_one_line_with_what_is_bound() -> None:
    line = JsonLines().format(record(failed=True))
    shown = json.loads(line)

    assert "\n" not in line
    assert (shown["logger"], shown["event"]) == ("exogate.some.room", "it happened")
    assert shown["session"] == "a:b:c:d\nx"
    assert "boom" in shown["exception"]


def test_a_console_line_escapes_what_is_bound() -> None:
    line = Console().format(record())

    assert "it happened session='a:b:c:d\\nx'" in line
    assert "\n" not in line


def test_records_are_written_in_order() -> None:
    target = StringIO()
    with logging_to(target, "info", "json"):
        for number in range(100):
            log.info("event", extra={"number": number})
        log.debug("not wanted")

    lines = target.getvalue().splitlines()
    assert [json.loads(line)["number"] for line in lines] == list(range(100))


def test_no_line_steers_the_terminal_that_shows_it() -> None:
    made = log.makeRecord(log.name, logging.WARNING, "f", 1, "a\x1b[2J\x9b\n\u202eb", (), None)
    made.session = "x\x7f\u2066"

    on_console, in_json = Console().format(made), JsonLines().format(made)

    assert all(one.isprintable() for one in (on_console, in_json))
    assert r"a\x1b[2J\u009b\n\u202eb" in on_console
    assert json.loads(in_json)["event"] == "a\x1b[2J\x9b\n\u202eb"
    assert json.loads(in_json)["session"] == "x\x7f\u2066"
