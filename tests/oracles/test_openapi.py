"""The OpenAPI document is valid, and whatever schemathesis asks by it is answered as it says."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import schemathesis
from openapi_spec_validator import validate
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema

from tests.fakes.described import Document, closed
from tests.oracles.conftest import Site, opened

# A tool's result without its call, a last message that is not the user's: no schema can say that
# these are no conversation.
CONFIG = """
seed = 20261119
continue-on-failure = true
suppress-health-check = ["all"]
{headers}

[dictionaries.agents]
values = ["main"]

[dictionaries.channels]
values = ["ci"]

[parameters]
"path.channel" = {{ dictionary = "channels", probability = 0.7 }}
"body.model" = {{ dictionary = "agents", probability = 0.7 }}
"body.agent" = {{ dictionary = "agents", probability = 0.7 }}

[generation]
mode = "all"
max-examples = {examples}
deterministic = true
database = "none"
no-shrink = true
with-security-parameters = false

[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 414, 415, 422, 429, 431]

[output.sanitization]
enabled = false

[checks.ignored_auth]
enabled = false

[[operations]]
include-path = "/v1/chat/completions"
checks.positive_data_acceptance.enabled = false
"""
EXAMPLES = 250
REST = """
[mcp.serve]
enabled = true

[[plugins]]
name = "webhook"
path = "bundled:webhook"
capabilities = ["http:http://127.0.0.1:9"]

[channels.ci]
plugin = "webhook"
config = { scheme = "standard", reply_url = "http://127.0.0.1:9/answers" }
secrets = { secret = "whsec_c2VjcmV0LW9mLXRoZS1vcmFjbGVz", reply_token = "of-the-oracles" }
"""


@dataclass
class Told:
    """What came of all that was asked."""

    requests: int = 0
    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)

    def take(self, event: events.EngineEvent) -> None:
        match event:
            case events.NonFatalError():
                self.wrong[event.label] = str(event.value)
            case events.FatalError():
                self.wrong["schemathesis"] = str(event.exception)
            case events.ScenarioFinished():
                self._take(event.recorder)

    def _take(self, recorder) -> None:
        for one in recorder.interactions.values():
            self.requests += 1
            status = one.response.status_code if one.response else 0
            self.statuses.setdefault(recorder.label, Counter())[status] += 1
        for check in (check for checks in recorder.checks.values() for check in checks):
            if info := check.failure_info:
                name = f"{recorder.label}: {info.failure.title}"
                self.wrong.setdefault(name, f"{info.failure.message}\n{info.code_sample}")

    def with_status(self, *statuses: int) -> set[str]:
        """The operations that were answered with one of them."""
        return {name for name, by in self.statuses.items() if not by.keys().isdisjoint(statuses)}

    def __str__(self) -> str:
        return "\n\n".join(f"{name}\n{why}" for name, why in self.wrong.items())


@contextmanager
def served(folder: Path) -> Iterator[Site]:
    with opened(folder, rest=REST) as site:
        yield site


def document(site: Site) -> Document:
    headers = {"Authorization": f"Bearer {site.token}"}
    return httpx2.get(f"{site.url}/openapi.json", headers=headers).raise_for_status().json()


def made_conversation(context: schemathesis.HookContext, body: object) -> object:
    """Ends what would be a conversation with a question: what is wrong with it besides stays wrong."""
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list) or not messages:
        return body
    for said in messages:
        if isinstance(said, dict) and said.get("role") in {"tool", "assistant"}:
            said["role"] = "system"
    return {**body, "messages": [*messages, {"role": "user", "content": "Good morning!"}]}


def asked(site: Site, *, examples: int, token: str = "") -> Told:
    """Nothing is guessed: each guess beyond the tenth is answered a second late."""
    headers = f'headers = {{ Authorization = "Bearer {token}" }}' if token else ""
    written = CONFIG.format(headers=headers, examples=examples)
    config = SchemathesisConfig.from_str(written)
    config.projects.default.update(base_url=site.url)
    schema = schemathesis.openapi.from_dict(closed(document(site)), config=config)
    schema.hook("map_body")(made_conversation)
    told = Told()
    for event in from_schema(schema).execute():
        told.take(event)
    return told


def test_the_document_is_valid(tmp_path: Path) -> None:
    with served(tmp_path) as site:
        validate(document(site))


def test_five_thousand_requests_are_answered_as_the_document_says(tmp_path: Path) -> None:
    with served(tmp_path) as site:
        told = asked(site, examples=EXAMPLES, token=site.token)

    assert not told.wrong, str(told)
    assert told.requests >= 5_000
    assert not told.with_status(0, *range(500, 600))
    platforms = {name for name in told.statuses if "/webhooks/" in name}  # nothing is signed
    assert told.with_status(*range(200, 300)) == told.statuses.keys() - platforms


def test_strangers_are_answered_as_the_document_says_and_get_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as site:
        told = asked(site, examples=10)

    assert not told.wrong, str(told)
    assert told.with_status(*range(400)) == {"GET /healthz", "GET /readyz"}
    assert told.with_status(401)
