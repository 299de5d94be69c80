"""Which keys there are: a list and a JSON Schema that agree."""

import jsonschema_rs

from gateway.config.keys import described, json_schema, keys_at, pattern_of, patterns, sections_with


def test_every_key_says_what_it_is_for() -> None:
    missing = [path for path, field in patterns().items() if not field.description]

    assert not [path for path in missing if path[-1] not in {"limits", "context", "fallback"}]


def test_names_and_positions_are_no_part_of_a_pattern() -> None:
    assert pattern_of(("providers", "mine", "wire")) == ("providers", "*", "wire")
    secret = ("plugins", "*", "secrets", "*", "value")
    assert pattern_of(("plugins", 1, "secrets", "mine", "value")) == secret
    assert pattern_of(("providers", "secrets", "wire")) == ("providers", "*", "wire")
    assert pattern_of(("agents", 3, "fallback", "fallback", "model"))[:3] == (
        "agents",
        "*",
        "fallback",
    )


def test_a_section_knows_its_keys_and_a_key_its_sections() -> None:
    assert {"bind", "port", "data_dir"} <= set(keys_at(("gateway",)))
    assert "[gateway]" in sections_with("port")
    assert keys_at(("plugins", 0, "secrets", "mine")) == ("value", "hosts")
    assert described(("gateway", "nonsense")) == described(("gateway",))


def test_the_schema_for_editors_is_one_and_takes_and_refuses_what_we_do() -> None:
    schema = jsonschema_rs.validator_for(json_schema())

    assert schema.is_valid({"gateway": {"port": 7200}, "agent": {"model": "m"}})
    assert not schema.is_valid({"gateway": {"prot": 7200}})
    assert not schema.is_valid({"limits": {"max_iterations": 99}})
