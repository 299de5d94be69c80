"""Every value that is in force, and where it comes from; secrets stay hidden."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from gateway.config.masking import MASK
from gateway.config.positions import locate
from gateway.config.problems import KeyPath, dotted
from gateway.config.reading import Loaded
from gateway.config.spans import Positions
from gateway.domain.agents import AgentDef
from gateway.domain.bindings import Binding
from gateway.domain.secrets import Secret

DEFAULT = "default"
_MODEL_KEYS = (
    "provider",
    "model",
    "max_tokens",
    "temperature",
    "context_window",
    "thinking",
    "stream",
)
_AGENT_KEYS = ("id", *_MODEL_KEYS, "system_prompt", "soul_path", "tools")


@dataclass(frozen=True, slots=True)
class Row:
    """One value in force. `value` is plain (for JSON); None: not set."""

    key: str
    value: object
    origin: str


def effective(loaded: Loaded) -> tuple[Row, ...]:
    """In the order of the documentation."""
    return tuple(_Explanation(loaded, locate(loaded.document.source)).rows())


@dataclass(frozen=True, slots=True)
class _Explanation:
    loaded: Loaded
    positions: Positions

    def rows(self) -> Iterator[Row]:
        config, sections = self.loaded.config, self.loaded.sections
        yield self._row(("config_version",), sections.config_version)
        yield from self._section(("gateway",), config.gateway)
        for index, grant in enumerate(config.tokens):
            yield from self._section(("tokens", index), grant)
        yield from self._section(("store",), config.store)
        yield from self._providers()
        yield from self._agents()
        yield from self._model_section(("limits",), sections.limits)
        yield from self._model_section(("context",), sections.context)
        for index, binding in enumerate(config.bindings):
            yield from self._binding(("bindings", index), binding)
        yield from self._section(("queue",), config.queue)
        yield from self._section(("observability",), config.observability)

    def _row(self, path: KeyPath, value: object, *inherited: KeyPath, usual: str = DEFAULT) -> Row:
        origins = [self._origin(place) for place in (path, *inherited)]
        return Row(dotted(path), _plain(value), next((o for o in origins if o), usual))

    def _origin(self, path: KeyPath) -> str | None:
        overrides = self.loaded.overrides
        said = {"gateway.port": overrides.port, "gateway.data_dir": overrides.data_dir}
        if said.get(dotted(path)) is not None:
            return "command line"
        if path in self.loaded.variables:
            return f"environment {self.loaded.variables[path]}"
        place = self.positions.places.get(path)
        if place is None:
            return None
        return f"{self.loaded.document.name}:{self.positions.line(place.best('key').start)}"

    def _section(self, path: KeyPath, section: object) -> Iterator[Row]:
        for item in fields(section):  # type: ignore[arg-type]  # every section is a dataclass
            yield self._row((*path, item.name), getattr(section, item.name))

    def _model_section(self, path: KeyPath, section: object) -> Iterator[Row]:
        for name, value in dict(section).items():  # type: ignore[call-overload]  # pydantic's
            yield self._row((*path, name), value)

    def _providers(self) -> Iterator[Row]:
        config = self.loaded.config
        for name, provider in config.providers.items():
            path = ("providers", name)
            preset = f"preset {name}"
            yield self._row((*path, "wire"), provider.wire, usual=preset)
            yield self._row((*path, "base_url"), provider.base_url, usual=preset)
            yield self._key_row(name, provider.api_key)
            for header in provider.headers:
                yield self._row((*path, "headers", header), MASK)
            for key in ("connect_timeout_s", "idle_timeout_s", "max_retries"):
                yield self._row((*path, key), getattr(provider, key))

    def _key_row(self, name: str, key: Secret | None) -> Row:
        path = ("providers", name, "api_key")
        origin = self.loaded.config.key_origins.get(name)
        if origin is None or origin == "config":
            return self._row(path, key)
        words = origin if origin.startswith("secret file") else f"environment {origin}"
        return Row(dotted(path), _plain(key), words)

    def _agents(self) -> Iterator[Row]:
        config = self.loaded.config
        for number, agent in enumerate(config.agents):
            index = number - (config.default_agent is not None)
            path: KeyPath = ("agent",) if index < 0 else ("agents", index)
            for name in _AGENT_KEYS:
                yield self._row((*path, name), getattr(agent, name), usual=self._usual(agent, name))
            yield from self._fallbacks(path, agent)
            for part, values in (("limits", agent.limits), ("context", agent.context)):
                for item in fields(values):
                    where = (*path, part, item.name)
                    yield self._row(where, getattr(values, item.name), (part, item.name))

    def _usual(self, agent: AgentDef, name: str) -> str:
        """An agent that names no provider has the one whose key is at hand."""
        variable = self.loaded.config.key_origins.get(agent.provider, "")
        by_key = name == "provider" and variable.isupper()
        return f"environment {variable}" if by_key else DEFAULT

    def _fallbacks(self, above: KeyPath, agent: AgentDef) -> Iterator[Row]:
        fallback, path = agent.fallback, (*above, "fallback")
        while fallback is not None:
            for name in _MODEL_KEYS:
                yield self._row((*path, name), getattr(fallback, name))
            fallback, path = fallback.fallback, (*path, "fallback")

    def _binding(self, path: KeyPath, binding: Binding) -> Iterator[Row]:
        for item in fields(binding):
            value = getattr(binding, item.name)
            if value is not None:
                yield self._row((*path, item.name), value)


def _plain(value: object) -> object:
    match value:
        case Secret():
            return MASK
        case Path():
            return str(value)
        case tuple() | list():
            return [_plain(item) for item in value]
    return value
