"""rule.list: the rules in the order in which they fire, their errors, and invalid files."""

from gateway.api.declarations import plain
from gateway.control.rules import load_rules
from gateway.domain.events import RefusedRules
from gateway.web.status import describe_rules
from tests.fakes.rules import definitions, rule


def test_rules_are_told_in_the_order_of_firing_with_the_files_that_are_refused() -> None:
    given = definitions(rule("priority = 1", "late") + rule("priority = 2", "early"))

    told = plain(
        describe_rules(load_rules(given, refused=(RefusedRules("bad.toml", "line 1: no rule"),)))
    )

    assert [one["id"] for one in told["rules"]] == ["early", "late"]
    assert {one["core"] for one in told["rules"]} == {False}
    assert told["rules"][0]["errors"] == 0
    assert told["refused"] == [{"file": "bad.toml", "why": "line 1: no rule"}]
