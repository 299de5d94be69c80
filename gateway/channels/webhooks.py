"""Calls of platforms: whoever cannot prove who he is gets no further than this door."""

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from gateway.channels.adapters import HttpReply, Webhook
from gateway.channels.progress import Health
from gateway.channels.translating import Said, WayIn
from gateway.channels.verification import Challenger, NotGenuine, Verifier, secret_of, verifier
from gateway.domain.channels import WebhookAnswer, WebhookCall
from gateway.domain.errors import AdapterFailed, Busy, StoreUnavailable
from gateway.domain.events import Deed, Recurrences
from gateway.domain.ports import Audit, Clock

LARGEST_BODY = 4 * 1024 * 1024
MOST_PARAMETERS = 32
_CONTENT_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+/;= -]{1,100}")
_BODILESS = frozenset({204, 205, 304})  # what stood behind them would be read as the next answer
NOT_HERE = WebhookAnswer(404)
NOT_YET = WebhookAnswer(503, (("retry-after", "5"),))


@dataclass(frozen=True, slots=True)
class WebhookAddress:
    """Where the platform of one channel calls."""

    recipe: Webhook
    verifier: Verifier
    challenger: Challenger | None
    way_in: WayIn
    health: Health

    @property
    def largest_body(self) -> int:
        return min(self.recipe.max_body_bytes, LARGEST_BODY)

    def knows(self, call: WebhookCall) -> bool:
        methods = {
            *self.recipe.methods,
            *([self.challenger.challenge.method] if self.challenger else ()),
        }
        return call.method in methods and any(_fits(one, call.path) for one in self.recipe.paths)

    async def receive(self, call: WebhookCall) -> WebhookAnswer:
        """Raises NotGenuine, and as WayIn.take."""
        challenger = self.challenger
        if challenger is not None and call.method == challenger.challenge.method:
            return _text(challenger.answer(_parameters(call.query)))
        self.verifier.check(call)
        said = Said(
            "webhook",
            call.body,
            self.verifier.unproving(call.headers),
            call.method,
            call.path,
            call.query,
            key=self.verifier.key(call.body),
        )
        reply = await self.way_in.take(said)
        self.health.worked("in")
        return _answer(reply)


def address(way_in: WayIn, recipe: Webhook, health: Health, clock: Clock) -> WebhookAddress:
    """Raises ChannelRefused: a channel without what verifies its calls has no address."""
    channel, description = way_in.channel, way_in.adapter.description
    asked = recipe.challenge
    challenger = Challenger(asked, secret_of(channel, asked.secret)) if asked else None
    return WebhookAddress(recipe, verifier(description, channel, clock), challenger, way_in, health)


@dataclass(slots=True)
class WebhookDoor:
    """Implements the Webhooks port."""

    audit: Audit
    clock: Clock
    addresses: dict[str, WebhookAddress] = field(default_factory=dict)
    coming: set[str] = field(default_factory=set)  # channels that are not open yet
    _recurrences: Recurrences = field(default_factory=Recurrences)

    def largest_body(self, channel: str) -> int | None:
        found = self.addresses.get(channel)
        if found is None:
            return LARGEST_BODY if channel in self.coming else None
        return found.largest_body

    async def receive(self, call: WebhookCall) -> WebhookAnswer:
        found = self.addresses.get(call.channel)
        if call.channel in self.coming:
            return NOT_YET
        if found is None or not found.knows(call):
            return NOT_HERE
        if len(call.body) > found.largest_body:
            return WebhookAnswer(413)
        try:
            return await found.receive(call)
        except NotGenuine as error:
            found.health.turned_away(error.why)
            self._note(call.channel, error.why)
            return WebhookAnswer(error.status)
        except AdapterFailed:
            found.health.turned_away("unreadable")
            return WebhookAnswer(500)
        except (Busy, StoreUnavailable) as error:
            found.health.turned_away("unavailable")
            wait = str(max(1, round(error.retry_after_s)))
            return WebhookAnswer(503, (("retry-after", wait),))

    def _note(self, channel: str, why: str) -> None:
        at = self.clock.now()
        times = self._recurrences.worth(f"{channel} {why}", at)
        if times:
            told = {"why": why, "times": times}
            self.audit.append_soon(Deed(at, "webhook.refused", channel, told))


def _fits(pattern: str, path: str) -> bool:
    """`*` is any one segment."""
    wanted, given = pattern.strip("/").split("/"), path.removeprefix("/").split("/")
    return len(wanted) == len(given) and all(
        want == one or (want == "*" and one != "") for want, one in zip(wanted, given, strict=True)
    )


def _parameters(query: str) -> list[tuple[str, str]]:
    """Raises NotGenuine."""
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_PARAMETERS)
    except ValueError as error:
        raise NotGenuine(403, "wrong") from error


def _text(text: str) -> WebhookAnswer:
    return WebhookAnswer(200, (("content-type", "text/plain; charset=utf-8"),), text.encode())


def _answer(reply: HttpReply | None) -> WebhookAnswer:
    """Of the headers that an adapter wants, one is its own: what its body is."""
    if reply is None:
        return WebhookAnswer()
    kinds = [value for name, value in reply.headers.items() if name.lower() == "content-type"]
    headers = tuple(("content-type", one) for one in kinds[:1] if _CONTENT_TYPE.fullmatch(one))
    status = reply.status if 200 <= reply.status <= 599 else 500
    return WebhookAnswer(status, headers, b"" if status in _BODILESS else reply.body.encode())
