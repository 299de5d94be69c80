"""The eleven events that the first design names are there, and each goes by all its names."""

import pytest

from gateway.domain.events import KINDS, SEVERITIES, kind_named

INFO = ("query.start", "session.resumed", "session.end", "tool.call.success")
WARNING = (
    "budget.iteration.warning",
    "budget.token.warning",
    "context.approaching_limit",
    "agent.loop.detected",
)
ERROR = ("budget.iteration.exceeded", "budget.token.exceeded", "tool.call.failure")


@pytest.mark.requirement("S-002-ANS-01")
def test_the_eleven_events_have_their_severities_under_both_names() -> None:
    expected = {
        **dict.fromkeys(INFO, "info"),
        **dict.fromkeys(WARNING, "warning"),
        **dict.fromkeys(ERROR, "error"),
    }

    by_type = {name: kind_named(name) for name in expected}
    by_constant = {name: kind_named(name.replace(".", "_").upper()) for name in expected}

    assert {name: kind.severity for name, kind in by_type.items() if kind} == expected
    assert by_constant == by_type


def test_no_name_means_two_kinds() -> None:
    names = [name for kind in KINDS for name in (kind.type, kind.constant, kind.hook) if name]

    assert len(set(names)) == len(names)
    assert all(kind.severity in SEVERITIES for kind in KINDS)
    assert kind_named("query.begin") is None
