"""The log is read back: what fits, in order, quickly, and what comes later once."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path

from gateway.domain.logs import LogFilter
from gateway.host.logs import LogTail, json_line, read_log

NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
RUN = "r_06gvbna80oe6isf62h5fchtavs"


def line(number: int, day: str = "2026-11-19", **facts: object) -> bytes:
    at = f"{day}T10:{number // 60 % 60:02}:{number % 60:02}.000Z"
    return (
        json_line({"at": at, "level": "info", "event": "e", "n": number, **facts}).encode() + b"\n"
    )


def write(folder: Path, name: str, *lines: bytes) -> Path:
    path = folder / f"exogate-{name}.jsonl"
    with path.open("ab") as file:
        file.writelines(lines)
    return path


def numbers(folder: Path, **wanted: object) -> list[int]:
    return [one["n"] for one in read_log(folder, LogFilter(**wanted))]  # type: ignore[arg-type]  # by name


def test_files_are_read_in_their_order(tmp_path: Path) -> None:
    write(tmp_path, "2026-11-19.1", line(3))
    write(tmp_path, "2026-11-19", line(2), b'{"at": "cut o')
    write(tmp_path, "2026-11-18", line(1, "2026-11-18"))
    write(tmp_path, "2026-11-19.10", line(4))

    assert numbers(tmp_path) == [1, 2, 3, 4]
    assert numbers(tmp_path / "none") == []


def test_each_filter_holds_back_what_does_not_fit(tmp_path: Path) -> None:
    write(
        tmp_path,
        "2026-11-19",
        line(1, run="r_1", session="a:b:c:d\u00e9", channel="x"),
        line(2, run="r_12", level="warning", why="r_1"),
        line(3, event="other", level="error"),
    )

    assert numbers(tmp_path, run="r_1") == [1]
    assert numbers(tmp_path, session="a:b:c:d\u00e9") == [1]
    assert numbers(tmp_path, channel="x") == [1]
    assert numbers(tmp_path, event="other") == [3]
    assert numbers(tmp_path, level="warning") == [2, 3]
    assert numbers(tmp_path, since=datetime(2026, 11, 19, 10, 0, 2, tzinfo=UTC)) == [2, 3]


def test_what_comes_later_is_read_once_over_rotations(tmp_path: Path) -> None:
    write(tmp_path, "2026-11-19", line(1))
    tail, wanted = LogTail(tmp_path), LogFilter()

    def news() -> list[int]:
        return [one["n"] for one in tail.lines(wanted)]

    whole = line(3)
    write(tmp_path, "2026-11-19", line(2), whole[:20])
    assert news() == [2]
    write(tmp_path, "2026-11-19", whole[20:])
    write(tmp_path, "2026-11-19.1", line(4))
    write(tmp_path, "2026-11-20", line(5, "2026-11-20"))
    assert news() == [3, 4, 5]
    assert news() == []


def test_one_run_is_found_in_a_hundred_megabytes_within_half_a_second(tmp_path: Path) -> None:
    block = b"".join(line(n, run=f"r_{n:026}", filler="x" * 300) for n in range(2_500))
    for number in range(10):
        path = tmp_path / f"exogate-2026-11-19.{number + 1}.jsonl"
        path.write_bytes(block * (10_000_000 // len(block)) + line(number, run=RUN))

    best = 9.0
    for _ in range(3):
        began = time.process_time()
        assert numbers(tmp_path, run=RUN) == [*range(10)]
        best = min(best, time.process_time() - began)

    assert best < 0.5


def test_a_line_that_nobody_could_parse_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, "2026-11-19", b"[1]\n", b"nonsense\n", line(1), json.dumps("x").encode())

    assert numbers(tmp_path) == [1]
