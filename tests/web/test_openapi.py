"""The OpenAPI document describes every operation with all of its answers."""

from typing import Any, Literal

from gateway.api.declarations import Params, Place, Value
from gateway.api.http import RUN, STREAM, Answer, Header, Operation
from gateway.api.openai import OpenAiErrorAnswer
from gateway.web.documents import openapi


class Asked(Params):
    message: str


class Query(Params):
    before: Place | None = None
    form: Literal["json", "csv"] = "json"


class Told(Value):
    name: str


def described(*answers: Answer, path: str = "/one", **more: Any) -> dict[str, Any]:
    made = Operation("POST", path, "Does it.", answers or (Answer(200, "Done.", Told),), **more)
    return openapi([made], "1.2.3")


def only(document: dict[str, Any]) -> dict[str, Any]:
    ((operation,),) = (path.values() for path in document["paths"].values())
    assert isinstance(operation, dict)
    return operation


def test_a_body_and_an_answer_refer_to_their_types() -> None:
    document = described(body=Asked)

    assert document["info"]["version"] == "1.2.3"
    body = only(document)["requestBody"]
    assert body["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Asked"}
    told = only(document)["responses"]["200"]["content"]["application/json"]["schema"]
    assert told == {"$ref": "#/components/schemas/Told"}
    assert document["components"]["schemas"]["Asked"]["required"] == ["message"]


def test_the_parts_of_an_address_and_the_headers_are_parameters() -> None:
    key = Header("Key", "Says which.", "^a$")
    document = described(path="/one/{id:path}/two", query=Query, headers=(key,))

    assert list(document["paths"]) == ["/one/{id}/two"]
    assert only(document)["operationId"] == "post_one_id_two"
    told = {one["name"]: (one["in"], one["required"]) for one in only(document)["parameters"]}
    assert told == {
        "id": ("path", True),
        "before": ("query", False),
        "form": ("query", False),
        "Key": ("header", False),
    }
    _, before, form, header = only(document)["parameters"]
    assert before["schema"] == {"type": "integer", "minimum": 1, "exclusiveMaximum": 2**63}
    assert form["schema"]["enum"] == ["json", "csv"]
    assert header["schema"] == {"type": "string", "pattern": "^a$"}
    assert "Query" not in document["components"]["schemas"]


def test_an_operation_may_be_refused_like_all_and_in_its_own_ways() -> None:
    document = described(refusals=(422,))

    statuses = {400, 401, 403, 408, 413, 414, 422, 429, 431, 500, 503, 505}
    assert set(only(document)["responses"]) == {"200", *map(str, statuses)}
    shared = document["components"]["responses"]
    assert set(shared) == {f"ErrorAnswer{status}" for status in statuses}
    assert "Retry-After" in shared["ErrorAnswer503"]["headers"]
    assert "WWW-Authenticate" in shared["ErrorAnswer401"]["headers"]


def test_what_is_not_guarded_needs_no_token() -> None:
    document = described(is_guarded=False)

    assert document["security"] == [{"bearer": []}]
    assert only(document)["security"] == []
    assert "401" not in only(document)["responses"]


def test_what_the_door_refuses_is_told_in_our_words_to_openais_clients_too() -> None:
    shared = described(error=OpenAiErrorAnswer)["components"]["responses"]

    def schema(status: int) -> Any:
        return shared[f"OpenAiErrorAnswer{status}"]["content"]["application/json"]["schema"]

    theirs, ours = ({"$ref": f"#/components/schemas/{name}ErrorAnswer"} for name in ("OpenAi", ""))
    assert schema(401) == theirs
    assert schema(414) == {"anyOf": [theirs, ours]}


def test_a_status_may_be_told_in_several_media() -> None:
    whole = Answer(200, "Whole.", Told, headers=(RUN,))
    stream = Answer(200, "In pieces.", Told, STREAM, last="[DONE]")
    told = only(described(whole, stream, Answer(0, "Else.", media="*/*")))["responses"]

    assert told["200"]["description"] == "Whole. In pieces."
    assert told["200"]["headers"]["X-Exogate-Run"]["required"] is False
    end, piece = told["200"]["content"]["text/event-stream"]["schema"]["properties"]["data"][
        "anyOf"
    ]
    assert end == {"const": "[DONE]"}
    assert piece["contentSchema"] == {"$ref": "#/components/schemas/Told"}
    assert told["default"] == {"description": "Else.", "content": {"*/*": {}}}
