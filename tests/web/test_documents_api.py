"""Documents are made once, in a thread, and need a token."""

import threading

from gateway.web.documents import DocumentsApi
from tests.web.running import BEARER, GUARDED, running


async def test_a_document_is_made_once_and_off_the_loop() -> None:
    made: list[bool] = []

    def document() -> dict[str, object]:
        made.append(threading.current_thread() is threading.main_thread())
        return {"made": len(made)}

    api = DocumentsApi({"/asyncapi.json": document})
    async with running(routes=api.routes()) as site:
        answers = [await site.get("/asyncapi.json") for _ in range(2)]

    assert made == [False]
    assert [answer.json for answer in answers] == [{"made": 1}, {"made": 1}]
    assert answers[0].headers["content-type"] == "application/json"


async def test_strangers_see_no_document() -> None:
    api = DocumentsApi({"/asyncapi.json": dict})
    async with running(GUARDED, routes=api.routes()) as site:
        refused, known = await site.get("/asyncapi.json"), await site.get("/asyncapi.json", BEARER)

    assert (refused.status, known.status) == (401, 200)
