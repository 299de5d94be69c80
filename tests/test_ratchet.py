"""What may not grow has a bound, and a bound that is passed fails."""

import re

from bench.walk import exceeded
from tools import ratchet

MAY_BE_BLIND = re.compile(r"except.*Exception|except\s*:|except.*\(\s*$", re.M)


def test_a_room_that_grows_is_told_and_one_that_shrinks_is_not() -> None:
    allowed = {"rooms": {"web": {"code": 10, "tokens": 90}}, "all": {"files": 3}}
    now = {"rooms": {"web": {"code": 9, "tokens": 91}, "new": {"code": 1}}, "all": {"files": 3}}

    found = {name: value - bound for name, value, bound in ratchet.differences(now, allowed)}

    assert found == {"rooms web code": -1, "rooms web tokens": 1, "rooms new code": 1}


def test_a_message_that_passes_more_files_is_told() -> None:
    assert exceeded({"calls": 10, "files": 4}, {"calls": 10, "files": 3}) == ["files: 4, allowed 3"]


def test_comments_and_docstrings_cost_nothing_and_code_does() -> None:
    file = ratchet.File(ratchet.PACKAGE / "domain" / "version.py")

    assert (file.room, *file.size) == ("domain", 1, 3)


def test_every_blind_except_is_in_the_table_of_the_design() -> None:
    catching = (
        path for path in ratchet.PACKAGE.rglob("*.py") if MAY_BE_BLIND.search(path.read_text())
    )
    files = [ratchet.File(path) for path in sorted(catching)]
    page = (ratchet.ROOT / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
    table = page.partition("## Failures that end nothing else")[2].partition("\n## ")[0]

    told = {
        name
        for row in re.findall(r"^\| (`.*?) \|", table, re.M)
        for name in re.findall(r"`([\w/]+\.py)`", row)
    }

    assert {f"gateway/{one}" for one in told} == ratchet.blind_excepts(files).keys()
