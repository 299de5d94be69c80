"""Log records are lines in order, in files too, that steer no terminal and hold no secret."""

import json
import logging
import os
import stat
from collections.abc import Mapping
from datetime import date, timedelta
from io import StringIO
from pathlib import Path

import pytest

from gateway.domain.figures import BOUND
from gateway.host.logs import (
    MOST_WAITING,
    Log,
    LogFiles,
    console_line,
    facts_of,
    json_line,
    list_files,
    logging_to,
)

log = logging.getLogger("gateway.some.room")
DAY = "2026-11-19"


def record(*, failed: bool = False) -> logging.LogRecord:
    trouble = None
    if failed:
        try:
            raise ValueError("boom")
        except ValueError as error:
            trouble = (type(error), error, error.__traceback__)
    made = log.makeRecord(log.name, logging.INFO, "f", 1, "it_happened", (), trouble)
    made.session = "a:b:c:d\nx"
    return made


def told(target: StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in target.getvalue().splitlines()]


def kept(folder: Path) -> list[dict[str, object]]:
    """The lines of all files, the oldest first."""
    texts = (path.read_text("utf-8") for _, _, path in list_files(folder))
    return [json.loads(line) for text in texts for line in text.splitlines()]


def test_a_json_line_is_one_line_with_what_is_bound() -> None:
    line = json_line(facts_of(record(failed=True), {"run": "r_1"}))
    shown = json.loads(line)

    assert "\n" not in line
    assert list(shown)[:5] == ["at", "level", "event", "logger", "run"]
    assert (shown["logger"], shown["event"]) == ("exogate.some.room", "it_happened")
    assert (shown["run"], shown["session"]) == ("r_1", "a:b:c:d\nx")
    assert shown["at"].endswith("Z")
    assert len(shown["at"]) == len("2026-11-19T10:00:00.000Z")
    assert "boom" in shown["exception"]


def test_a_console_line_escapes_what_is_bound() -> None:
    line = console_line(facts_of(record(), {}))

    assert "it_happened session='a:b:c:d\\nx'" in line
    assert "\n" not in line


def test_the_text_of_a_library_is_no_event() -> None:
    made = logging.getLogger("asyncio").makeRecord(
        "asyncio", 30, "f", 1, "it took %s", ("1 s",), None
    )

    shown = facts_of(made, {})

    assert (shown["event"], shown["text"]) == ("library_message", "it took 1 s")


def test_records_are_written_in_order() -> None:
    target = StringIO()
    with logging_to(target, "info", "json"):
        for number in range(100):
            log.info("event", extra={"number": number})
        log.debug("not_wanted")

    assert [one["number"] for one in told(target)] == list(range(100))


def test_a_line_says_for_which_run_it_was_logged() -> None:
    target = StringIO()
    with logging_to(target, "info", "json"):
        run = Ended()
        token = BOUND.set(lambda: run)
        log.info("event")
        run.ended = True
        log.info("event")
        BOUND.reset(token)

    assert [one.get("run") for one in told(target)] == ["r_1", None]


class Ended:
    """A run that may have ended."""

    ended = False

    def bound(self) -> Mapping[str, object]:
        return {"run": "r_1"}


def test_no_line_steers_the_terminal_that_shows_it() -> None:
    made = log.makeRecord(log.name, logging.WARNING, "f", 1, "a\x1b[2J\x9b\n\u202eb", (), None)
    made.session = "x\x7f\u2066"
    shown = facts_of(made, {})

    on_console, in_json = console_line(shown), json_line(shown)

    assert all(one.isprintable() for one in (on_console, in_json))
    assert r"a\x1b[2J\u009b\n\u202eb" in on_console
    assert json.loads(in_json)["event"] == "a\x1b[2J\x9b\n\u202eb"
    assert json.loads(in_json)["session"] == "x\x7f\u2066"


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_secret_stands_in_a_line(form: str, tmp_path: Path) -> None:
    target, token = StringIO(), "exo_" + "a1" * 19
    secrets = ('pass"word\\of', "sk-0123456789")
    with logging_to(target, "info", form) as written:  # type: ignore[arg-type]  # of a parameter
        written.keep_in(tmp_path, days=1, most_mb=1)
        written.hide([*secrets, "short"])
        log.info("event", extra={"why": f"{secrets} {secrets[0]} short {token}"})
        try:
            raise ValueError(secrets[1])
        except ValueError:
            log.exception("failed")

    for text in (target.getvalue(), json.dumps(kept(tmp_path / "logs"))):
        assert "short" in text
        assert not [one for one in ("sk-0123", "word", token) if one in text]


def test_files_hold_the_lines_from_before_they_were_opened_too(tmp_path: Path) -> None:
    target = StringIO()
    with logging_to(target, "info", "console") as written:
        log.info("early")
        written.keep_in(tmp_path, days=7, most_mb=1)
        log.info("late")
        written.event("run_finished", {"run": "r_1"})

    [(_, _, path)] = list_files(tmp_path / "logs")
    lines = kept(tmp_path / "logs")
    assert [one["event"] for one in lines] == ["early", "late", "run_finished"]
    assert list(lines[2]) == ["at", "level", "event", "logger", "run"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_new_file_is_begun_each_day_and_when_one_is_full(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, 7, most_bytes=1_000)
    for day in (DAY, DAY, DAY, "2026-11-20"):
        files.append(day, b"x" * 59 + b"\n", 0.0)
    files.close()

    assert [path.name for _, _, path in list_files(tmp_path)] == [
        f"exogate-{DAY}.jsonl",
        f"exogate-{DAY}.1.jsonl",
        f"exogate-{DAY}.2.jsonl",
        "exogate-2026-11-20.jsonl",
    ]


def test_a_start_goes_on_with_the_file_of_the_day(tmp_path: Path) -> None:
    for _ in range(3):
        files = LogFiles(tmp_path, 7, most_bytes=1_000)
        files.append(DAY, b"x" * 39 + b"\n", 0.0)
        files.close()

    assert [path.stat().st_size for _, _, path in list_files(tmp_path)] == [80, 40]


def test_the_oldest_files_go_when_all_are_too_large(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    files = LogFiles(tmp_path, 7, most_bytes=1_000)
    for _ in range(40):
        files.append(DAY, b"x" * 89 + b"\n", 0.0)
    files.close()

    left = list_files(tmp_path)
    assert sum(path.stat().st_size for _, _, path in left) <= 1_000
    assert [number for _, number, _ in left] == list(range(29, 40))
    assert (tmp_path / "notes.txt").exists()


def test_files_go_when_they_are_older_than_the_days_to_keep(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, 3, most_bytes=1_000)
    for number in range(6):
        on = date.fromisoformat(DAY) + timedelta(days=number)
        files.append(on.isoformat(), b"x\n", 0.0)
    files.close()

    assert [day[-2:] for day, _, _ in list_files(tmp_path)] == ["22", "23", "24"]


def test_a_deleted_file_is_begun_anew(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, 3, most_bytes=1_000)
    files.append(DAY, b"1\n", 0.0)
    (tmp_path / f"exogate-{DAY}.jsonl").unlink()
    files.append(DAY, b"2\n", 2.0)
    files.close()

    assert (tmp_path / f"exogate-{DAY}.jsonl").read_bytes() == b"2\n"


def test_what_the_queue_cannot_take_is_dropped_and_counted(tmp_path: Path) -> None:
    target = StringIO()
    written = Log(target, "json")
    for _ in range(MOST_WAITING + 5):  # nobody writes yet
        written.handle(record())
    with written.running():
        pass

    assert written.dropped == 5
    [line] = [one for one in told(target) if one["event"] == "log_records_dropped"]
    assert line["count"] == 5


def test_a_folder_that_cannot_be_written_stops_the_files_alone(tmp_path: Path) -> None:
    target = StringIO()
    (tmp_path / "logs").write_text("no folder")
    with logging_to(target, "info", "json") as written:
        written.keep_in(tmp_path, days=1, most_mb=1)
        log.info("one")
        log.info("two")

    assert [one["event"] for one in told(target)] == ["one", "log_files_failing", "two"]


def test_when_there_is_room_again_the_files_say_how_much_they_lack(tmp_path: Path) -> None:
    target = StringIO()
    folder = tmp_path / "logs"
    folder.write_text("no folder")
    with logging_to(target, "info", "json") as written:
        written.keep_in(tmp_path, days=1, most_mb=1)
        log.info("one")
        log.info("two")
        while '"two"' not in target.getvalue():
            os.sched_yield()
        folder.unlink()
        log.info("three")

    lines = kept(folder)
    assert [one["event"] for one in lines] == ["log_files_written_again", "three"]
    assert lines[0]["lost"] == 2
