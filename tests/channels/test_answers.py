"""What platforms answer, read by the recipes that adapters give."""

import pytest

from gateway.channels.adapters import Outbound
from gateway.channels.recipes import Answer, Arrived, Declined, Moved, TryAgain, read_answer
from gateway.domain.ports import Fetched

TELEGRAM = Outbound(
    message_id="result.message_id",
    error="description",
    done_errors=("Bad Request: message is not modified",),
    retry_after=("parameters.retry_after", "header:Retry-After"),
    moved_to="parameters.migrate_to_chat_id",
)
SLACK = Outbound(message_id="ts", ok="ok", error="error", retry_errors=("ratelimited",))


def answer(status: int, body: str, *headers: tuple[str, str]) -> Fetched:
    return Fetched(status, headers, body.encode())


def again(said: str, after_s: float | None) -> TryAgain:
    return TryAgain(f"the platform answered {said}", after_s)


def declined(said: str) -> Declined:
    return Declined(f"the platform answered {said}")


SAME = '{"description":"Bad Request: message is not modified: the same"}'
MOVED = '{"description":"moved","parameters":{"migrate_to_chat_id":-100}}'
OFTEN = '{"description":"Too Many","parameters":{"retry_after":7}}'
NEGATIVE, HUGE = '{"parameters":{"retry_after":-1}}', '{"parameters":{"retry_after":1e300}}'
ENDLESS = f'{{"parameters":{{"retry_after":1{"0" * 400}}}}}'
DATE = ("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")
UNKNOWN = '{"ok":false,"error":"channel_not_found"}'
LIMITED = '{"ok":false,"error":"ratelimited"}'


@pytest.mark.parametrize(
    ("outbound", "fetched", "expected"),
    [
        (TELEGRAM, answer(200, '{"ok":true,"result":{"message_id":42}}'), Arrived("42")),
        (TELEGRAM, answer(200, '{"ok":false}'), Arrived(None)),
        (TELEGRAM, answer(204, ""), Arrived(None)),
        (TELEGRAM, answer(400, SAME), Arrived(None)),
        (TELEGRAM, answer(200, "no JSON"), Arrived(None)),
        (TELEGRAM, answer(429, OFTEN), again("429: Too Many", 7.0)),
        (TELEGRAM, answer(503, "", ("retry-after", "1.5")), again("503", 1.5)),
        (TELEGRAM, answer(503, "", DATE), again("503", None)),
        (TELEGRAM, answer(429, HUGE), again("429", 86_400.0)),
        (TELEGRAM, answer(429, ENDLESS), again("429", None)),
        (TELEGRAM, answer(429, NEGATIVE), again("429", None)),
        (TELEGRAM, answer(400, MOVED), Moved("-100", "the platform answered 400: moved")),
        (TELEGRAM, answer(400, '{"description":"Bad Request"}'), declined("400: Bad Request")),
        (TELEGRAM, answer(302, ""), declined("302")),
        (SLACK, answer(200, f'{{"ts":"{"1" * 1_000_000}"}}'), Arrived("1" * 300)),
        (SLACK, answer(200, f'{{"ts":"1","more":[{"[]," * 350_000}1]}}'), Arrived(None)),
        (SLACK, answer(200, '{"ok":true,"ts":"1.2"}'), Arrived("1.2")),
        (SLACK, answer(200, UNKNOWN), declined("200: channel_not_found")),
        (SLACK, answer(200, LIMITED, ("retry-after", "30")), again("200: ratelimited", 30.0)),
        (SLACK, answer(400, '{"error":"\\u001b[2J\\u202egone"}'), declined("400: ?[2J?gone")),
    ],
)
def test_an_answer_is_read_as_the_description_has_it(
    outbound: Outbound, fetched: Fetched, expected: Answer
) -> None:
    assert read_answer(outbound, fetched) == expected


def test_an_error_of_any_length_is_told_in_short() -> None:
    told = read_answer(SLACK, answer(400, '{"error":"' + "x" * 10_000 + '"}'))

    assert isinstance(told, Declined)
    assert len(told.why) < 400
