"""The simulated platform answers by its script, and notes what it is asked."""

from http.client import HTTPConnection

from gateway.cli.channel_testing import PlatformAnswer, PlatformRequest, open_platform

ANSWERS = [
    PlatformAnswer(method="POST", url="/send/*", status=429, headers={"retry-after": "1"}),
    PlatformAnswer(method="POST", url="/send/*", body={"id": 1}),
    PlatformAnswer(method="GET", url="/me", body=[]),
]


def asked(url: str, method: str, path: str) -> tuple[int, bytes, str | None]:
    connection = HTTPConnection(url.removeprefix("http://"), timeout=5)
    connection.request(method, path, b"{}")
    response = connection.getresponse()
    told = (response.status, response.read(), response.getheader("retry-after"))
    connection.close()
    return told


def test_answers_to_one_address_are_given_in_order_and_the_last_again() -> None:
    with open_platform(ANSWERS) as it:
        told = [asked(it.url, "POST", f"/send/{number}") for number in range(3)]
        other = asked(it.url, "GET", "/me?x=1")
        unknown = asked(it.url, "DELETE", "/send/1")

    sent = (200, b'{"id": 1}', None)
    assert told == [(429, b"", "1"), sent, sent]
    assert (other, unknown) == ((200, b"[]", None), (404, b"", None))
    assert it.requests[0] == PlatformRequest("POST", "/send/0", {}, 429)
    assert [one.url for one in it.requests[3:]] == ["/me?x=1", "/send/1"]
