"""The keys as JSON Schema, for editors that complete and check TOML."""

from typing import Any

from gateway.config.schema import ConfigFile

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Draft 2020-12, generated from the models."""
    generated = ConfigFile.model_json_schema()
    schema = _without_null(generated)
    schema["title"] = "config.toml of exogate"
    return {"$schema": DIALECT, **schema}


def _without_null(node: Any) -> Any:
    """TOML has no null: a key that is not set is absent."""
    if isinstance(node, list):
        return [_without_null(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {
        key: _without_null(value) for key, value in node.items() if not _is_no_default(key, value)
    }
    options = [option for option in kept.pop("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        return {**options[0], **kept}
    return {"anyOf": options, **kept} if options else kept


def _is_no_default(key: str, value: object) -> bool:
    return key == "default" and value is None
