"""A document against the schema: everything that is wrong at once, and the rest still checked."""

from typing import Any

import pytest

from gateway.config.problems import Code
from gateway.config.sections import MOST, SectionReader
from gateway.config.values import GatewayConfig


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
    reader = SectionReader()
    reader.section(GatewayConfig, content, ())

    assert [(one.code, one.path) for one in reader.findings] == [(code, path)]
    assert reader.left_out == 0


def test_what_is_right_is_kept_beside_what_is_wrong() -> None:
    reader = SectionReader()
    content = {"gateway": {"port": "x", "bind": "127.0.0.2"}, "nonsense": 1}

    config = reader.section(GatewayConfig, content, ())

    assert len(reader.findings) == 2
    assert config.gateway.bind == "127.0.0.2"


def test_a_flood_of_mistakes_is_counted_and_not_listed() -> None:
    reader = SectionReader()
    reader.section(GatewayConfig, {f"key{n}": 1 for n in range(MOST + 5)}, ())

    assert (len(reader.findings), reader.left_out) == (MOST, 5)
