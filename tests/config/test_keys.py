"""Which keys there are: a list and a JSON Schema that agree."""

import jsonschema_rs

from gateway.config.schema import json_schema, patterns
from gateway.config.sections import sections_with


def test_every_key_says_what_it_is_for() -> None:
    assert not [path for path, key in patterns().items() if not key.setting.help]


def test_a_key_knows_its_sections() -> None:
    assert sections_with("port") == ("[gateway]",)
    assert sections_with("soul_path") == ("[agent]", "[[agents]]")
    assert sections_with("wire") == ()


def test_the_schema_for_editors_is_one_and_takes_and_refuses_what_we_do() -> None:
    schema = jsonschema_rs.validator_for(json_schema())

    assert schema.is_valid({"gateway": {"port": 7200}, "agent": {"model": "m"}})
    assert not schema.is_valid({"gateway": {"prot": 7200}})
    assert not schema.is_valid({"limits": {"max_iterations": 99}})
