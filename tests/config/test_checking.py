"""A document against the schema: everything that is wrong at once, and the rest still checked."""

from typing import Any

import pytest

from gateway.config.checking import MOST, check
from gateway.config.problems import Code


@pytest.mark.parametrize(
    ("content", "code", "path"),
    [
        ({"gateway": {"prot": 1}}, Code.UNKNOWN_KEY, ("gateway", "prot")),
        ({"gateway": {"port": "x"}}, Code.WRONG_TYPE, ("gateway", "port")),
        ({"gateway": {"port": 70_000}}, Code.OUT_OF_RANGE, ("gateway", "port")),
        ({"store": {"url": "embeded"}}, Code.NOT_A_CHOICE, ("store", "url")),
        ({"tokens": [{"token": "t"}]}, Code.MISSING, ("tokens", 0, "name")),
    ],
)
def test_each_mistake_has_its_code_and_path(
    content: dict[str, Any], code: Code, path: tuple[str | int, ...]
) -> None:
    _, findings, left_out = check(content)

    assert [(one.code, one.path) for one in findings] == [(code, path)]
    assert left_out == 0


def test_what_is_right_is_kept_beside_what_is_wrong() -> None:
    sections, findings, _ = check({"gateway": {"port": "x", "bind": "127.0.0.2"}, "nonsense": 1})

    assert len(findings) == 2
    assert sections is not None
    assert sections.gateway.bind == "127.0.0.2"


def test_a_flood_of_mistakes_is_counted_and_not_listed() -> None:
    _, findings, left_out = check({f"key{n}": 1 for n in range(MOST + 5)})

    assert (len(findings), left_out) == (MOST, 5)
