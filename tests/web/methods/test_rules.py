"""rule.list: the rules in the order of firing, how they fare, and the files that are not valid."""

from gateway.control.rules import load_rules
from gateway.domain.events import RefusedRules
from gateway.web.methods.rules import RuleMethods
from tests.fakes.rules import definitions, rule
from tests.web.methods.calling import call


async def test_rules_are_told_in_the_order_of_firing_with_the_files_that_are_refused() -> None:
    given = definitions(rule("priority = 1", "late") + rule("priority = 2", "early"))
    found = load_rules(given, refused=(RefusedRules("bad.toml", "line 1: no rule"),))
    (method,) = RuleMethods(lambda: found).all()

    told = await call({method.name: method}, "rule.list")

    assert [one["id"] for one in told["rules"]] == ["early", "late"]
    assert {one["core"] for one in told["rules"]} == {False}
    assert told["rules"][0]["errors"] == 0
    assert told["refused"] == [{"file": "bad.toml", "why": "line 1: no rule"}]
