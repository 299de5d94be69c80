"""All errors come from one table, have one shape and show nothing internal."""

import json

import pytest

from gateway.api.errors import (
    InvalidParams,
    TooManyFailures,
    Unauthorized,
    error_headers,
    error_object,
    failure_of,
)
from gateway.domain.errors import (
    Busy,
    Conflict,
    GatewayError,
    NoRoute,
    NotFound,
    StoreUnavailable,
    UnknownAgent,
)
from gateway.web.responses import error_body, error_response
from tests.web.running import Refused


@pytest.mark.parametrize(
    ("error", "status", "rpc", "kind"),
    [
        (Unauthorized(), 401, -32001, "unauthorized"),
        (NotFound("session"), 404, -32004, "not_found"),
        (NoRoute("a", "b", "c"), 404, -32004, "not_found"),
        (UnknownAgent("x", ("y",)), 404, -32004, "not_found"),
        (Conflict("other content"), 409, -32006, "conflict"),
        (Busy("full"), 503, -32005, "busy"),
        (StoreUnavailable("/data/x.db: disk full"), 503, -32005, "unavailable"),
        (InvalidParams("x"), 422, -32602, "invalid_params"),
        (Refused("inside"), 500, -32603, "internal_error"),
        (RuntimeError("inside"), 500, -32603, "internal_error"),
    ],
)
def test_an_error_has_one_face_on_every_surface(
    error: Exception, status: int, rpc: int, kind: str
) -> None:
    assert (failure_of(error).status, failure_of(error).rpc) == (status, rpc)
    assert error_response(error).status_code == status
    assert error_object(error).type == kind


@pytest.mark.parametrize("error", [Refused("inside"), RuntimeError("inside"), KeyError("inside")])
def test_an_error_that_the_table_does_not_know_shows_nothing(error: Exception) -> None:
    assert b"inside" not in error_body(error)
    assert error_object(error).retryable is False


def test_a_store_s_trouble_is_not_told_by_its_path() -> None:
    assert b"/data" not in error_body(StoreUnavailable("/data/x.db: disk full"))


def test_what_may_be_tried_again_says_when() -> None:
    assert error_headers(Busy("full", 2.2)) == {"retry-after": "3"}
    assert error_headers(TooManyFailures(0.01)) == {"retry-after": "1"}
    assert error_object(Busy("full", 2.2)).retry_after_s == 2.2
    assert error_object(Busy("full")).retryable is True


def test_unauthorized_is_always_the_same_bytes() -> None:
    assert error_body(Unauthorized()) == error_body(Unauthorized())
    assert json.loads(error_body(Unauthorized()))["error"]["code"] == "unauthorized"
    assert error_headers(Unauthorized()) == {"www-authenticate": "Bearer"}


def test_the_code_tells_kinds_of_one_type_apart() -> None:
    codes = {
        error_object(error).code
        for error in (NotFound("x"), NoRoute("a", "b", "c"), UnknownAgent("x", ()))
    }

    assert codes == {"not_found", "no_agent", "unknown_agent"}


def test_every_error_of_the_domain_that_is_not_in_the_table_is_internal() -> None:
    class New(GatewayError):
        pass

    assert failure_of(New("x")).status == 500
