"""Values that fit a JSON Schema, of the kinds that our documents use; the same ones for a seed."""

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

LETTERS = "ab Zz09._-:%/\\\"'{}$\n\t\0\x7fäß中🦀\u2028"
TIMES = ("2026-01-02T03:04:05Z", "1999-12-31T23:59:59.999999+14:00", "9999-12-31T00:00:00Z")
SAMPLES = (
    "chat",
    "7d",
    "45s",
    "0" * 64,
    "x",
    " y\n",
    "\0",
    "\u2028z",
    "main:websocket:local:%3A",
)  # for patterns
MOST_LETTERS, MOST_ITEMS = 12, 3
FAR = 2**53


class Fitting:
    """`known` are values by the name of a property, of which every other one is taken."""

    def __init__(
        self, schemas: Mapping[str, Any], known: Mapping[str, Sequence[str]], seed: int
    ) -> None:
        self._schemas, self._known, self._random = schemas, known, Random(seed)

    def value(self, schema: Mapping[str, Any], name: str = "") -> Any:
        random = self._random
        if "$ref" in schema:
            return self.value(self._schemas[schema["$ref"].rpartition("/")[2]], name)
        if choices := schema.get("anyOf"):
            return self.value(random.choice(choices), name)
        if "enum" in schema:
            return random.choice(schema["enum"])
        if name in self._known and random.random() < 0.5:
            return random.choice(self._known[name])
        kind = schema.get("type")
        if kind is None:
            return random.choice([None, True, -1, 0.5, "x", [], {"a": [1]}])
        return getattr(self, f"_{kind}")(schema)

    def _null(self, _schema: Mapping[str, Any]) -> None:
        return None

    def _boolean(self, _schema: Mapping[str, Any]) -> bool:
        return self._random.random() < 0.5

    def _integer(self, schema: Mapping[str, Any]) -> float:
        """To JSON 5.0 is the same as 5."""
        bounds = int(schema.get("minimum", -FAR)), int(schema.get("maximum", FAR))
        whole = self._random.choice([*bounds, self._random.randint(*bounds)])
        return self._random.choice([whole, float(whole)])

    def _number(self, schema: Mapping[str, Any]) -> float:
        return self._integer(schema) / self._random.choice([1, 3])

    def _array(self, schema: Mapping[str, Any]) -> list[Any]:
        least = schema.get("minItems", 0)
        count = self._random.randint(least, min(schema.get("maxItems", FAR), least + MOST_ITEMS))
        return [self.value(schema["items"]) for _ in range(count)]

    def _object(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        required = schema.get("required", ())
        told = schema.get("properties", {})
        made = {
            name: self.value(one, name)
            for name, one in told.items()
            if name in required or self._random.random() < 0.4
        }
        more = schema.get("additionalProperties", False)
        if isinstance(more, dict):
            made |= {
                self._letters(1, 5): self.value(more) for _ in range(self._random.randint(0, 2))
            }
        return made

    def _string(self, schema: Mapping[str, Any]) -> str:
        if schema.get("format") == "date-time":
            return self._random.choice(TIMES)
        if "pattern" in schema:
            fit = [one for one in SAMPLES if re.search(schema["pattern"], one)]
            return self._random.choice(fit)
        least = schema.get("minLength", 0)
        return self._letters(least, min(schema.get("maxLength", FAR), least + MOST_LETTERS))

    def _letters(self, least: int, most: int) -> str:
        return "".join(self._random.choices(LETTERS, k=self._random.randint(least, most)))
