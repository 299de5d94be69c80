"""`exogate token`, `exogate budget raise` and `exogate usage`, as an operator types them."""

import csv
import io
import re

import pytest

from tests.cli.conftest import Shell


def test_a_token_is_printed_alone_and_listed_without_it(shell: Shell) -> None:
    made = shell(
        "token", "create", "printed", "--scopes", "chat,read", "--budget", "10k/day,2M/month"
    )
    listed = shell("--json", "token", "list").json["tokens"]

    assert re.fullmatch(r"exo_[0-9A-Za-z]{38}\n", made.out)
    assert "10,000 daily, 2,000,000 monthly" in made.err
    assert made.out.strip() not in made.err
    (row,) = [one for one in listed if one["name"] == "printed"]
    assert (row["scopes"], row["state"]) == (["chat", "read"], "active")
    assert row["budget"] == {"daily": 10_000, "monthly": 2_000_000}
    assert made.out.strip() not in shell("token", "list").out


def test_a_token_is_revoked_once_and_its_name_is_inherited_or_refused(shell: Shell) -> None:
    assert shell("token", "create", "gone").code == 0
    codes = [
        shell("token", "create", "gone").code,
        shell("token", "revoke", "gone").code,
        shell("token", "revoke", "gone").code,
        shell("token", "create", "gone").code,
        shell("token", "create", "gone", "--inherit").code,
    ]

    assert codes == [1, 0, 1, 1, 0]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("token", "create", "x", "--expires", "soon"), 2, "30d"),
        (("token", "create", "x", "--budget", "much/day"), 2, "500k"),
        (("token", "create", "x", "--budget", "5k/week"), 2, "N/day"),
        (("token", "create", "x", "--scopes", "root"), 1, "admin"),
        (("token", "create", "x", "--agent", "ghost"), 1, "ghost"),
        (("token", "create", "local"), 1, "local operator"),
        (("token", "create", "b/d"), 1, "letters"),
        (("budget", "raise", "daily", "+5k"), 2, "--today"),
        (("budget", "raise", "daily", "+0", "--today"), 2, "1 token"),
        (("budget", "raise", "daily", "more", "--today"), 2, "500k"),
        (("budget", "raise", "token:ghost", "+5k", "--today"), 1, "not found"),
        (("budget", "raise", "monthly", "+5k", "--today"), 1, "no limit"),
        (("usage", "--by", "moon"), 2, "person"),
        (("usage", "--since", "nonsense"), 2, "30d"),
    ],
)
def test_what_is_wrong_is_said_with_what_is_right(
    shell: Shell, words: tuple[str, ...], code: int, told: str
) -> None:
    ended = shell(*words)

    assert (ended.code, ended.out) == (code, "")
    assert told in ended.err
    assert "Traceback" not in ended.err


def test_a_raise_is_shown_and_adds_up(shell: Shell) -> None:
    shell("token", "create", "raised", "--budget", "1k/day")
    shell("budget", "raise", "token:raised", "+5k", "--today")
    told = shell("--json", "budget", "raise", "token:raised", "2000", "--today").json
    (row,) = [
        one
        for one in shell("--json", "budget", "status").json["budgets"]
        if one["scope"] == "token:raised"
    ]

    assert (told["raised_by"], row["raised_by"], row["limit"]) == (7_000, 7_000, 8_000)
    assert row["until"] == told["until"] == row["resets_at"]


@pytest.mark.parametrize("by", ["agent", "model", "provider", "person", "channel", "day"])
def test_usage_is_a_table_json_or_csv_with_the_same_figures(shell: Shell, by: str) -> None:
    shell("chat", "-m", "hello")
    told = shell("--json", "usage", "--by", by, "--since", "7d").json
    rows = list(csv.DictReader(io.StringIO(shell("usage", "--by", by, "--csv").out)))

    assert [*rows[0]] == [by, "calls", "input_tokens", "output_tokens", "cached_tokens", "cost_usd"]
    assert [(one[by], int(one["calls"])) for one in rows] == [
        (one[by], one["calls"]) for one in told["rows"]
    ]
    assert sum(one["input_tokens"] for one in told["rows"]) == told["total"]["input_tokens"]
    assert "total" in shell("usage", "--by", by).out
