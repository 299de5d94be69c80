"""Which keys there are: a list and a JSON Schema that agree."""

import jsonschema_rs

from gateway.config.schema import json_schema, patterns
from gateway.config.sections import described, keys_at, sections_with


def test_every_key_says_what_it_is_for() -> None:
    assert not [path for path, key in patterns().items() if not key.setting.help]


def test_a_section_knows_its_keys_and_a_key_its_sections() -> None:
    assert {"bind", "port", "data_dir"} <= set(keys_at(("gateway",)))
    assert "[gateway]" in sections_with("port")
    assert keys_at(("plugins", 0, "secrets", "mine")) == ("value", "hosts")
    assert keys_at(("providers", "secrets"))[0] == "wire"
    assert described(("gateway", "nonsense")) == described(("gateway",))


def test_the_schema_for_editors_is_one_and_takes_and_refuses_what_we_do() -> None:
    schema = jsonschema_rs.validator_for(json_schema())

    assert schema.is_valid({"gateway": {"port": 7200}, "agent": {"model": "m"}})
    assert not schema.is_valid({"gateway": {"prot": 7200}})
    assert not schema.is_valid({"limits": {"max_iterations": 99}})
