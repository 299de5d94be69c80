"""The page reader takes whatever a site sends, in time and within its memory."""

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.forms import examples
from tests.plugins.running import Guest, Json

TOOL = Path(__file__).parent.parent.parent / "plugins" / "fetch" / "tool.wasm"
URL = "https://example.com/a/b"
SCRAPS = st.sampled_from(
    [
        "<p>",
        "</p>",
        "<a href='/x'>",
        "<a href=",
        "</a>",
        "<ul><li>",
        "</ul>",
        "<ol>",
        "<pre>",
        "</pre>",
    ]
    + [
        "<code>",
        "</code>",
        "<td>",
        "<tr>",
        "<br/>",
        "<h1>",
        "</h1>",
        "<img alt='&amp;",
        "'>",
        '">',
        ">",
    ]
    + [
        "<title>",
        "</title>",
        "<main>",
        "</main>",
        "<!--",
        "-->",
        "<script>",
        "</script>",
        "<base href=//x>",
    ]
    + [
        "&#",
        "&#x1F600;",
        "&amp",
        ";",
        "&auml;",
        "text",
        " ",
        "\n",
        "ä",
        "<",
        "</",
        "<!",
        "<?x",
        "=",
        "\u00a0",
    ]
)


@pytest.fixture(scope="module")
def fetch() -> Guest:
    return Guest.load(TOOL)


def fetched(fetch: Guest, answer: Json, **arguments: Json) -> tuple[bool, str]:
    response = {"method": "GET", "url": URL, "status": 200, "headers": {}, **answer}
    call = {"tool": "fetch", "arguments": {"url": URL, **arguments}}
    return fetch.run({"call": call, "http": [response]})


def page(body: str) -> Json:
    return {"headers": {"content-type": "text/html"}, "body": body}


@given(scraps=st.lists(SCRAPS, max_size=60))
@settings(max_examples=examples(300), deadline=None)
def test_no_markup_breaks_it(fetch: Guest, scraps: list[str]) -> None:
    did, said = fetched(fetch, page("".join(scraps)))

    assert did, said
    assert json.loads(said)["sources"][0]["url"] == URL


@given(raw=st.binary(max_size=200), charset=st.sampled_from(["utf-8", "windows-1252", ""]))
@settings(max_examples=examples(200), deadline=None)
def test_no_bytes_break_it(fetch: Guest, raw: bytes, charset: str) -> None:
    answer = {
        "headers": {"content-type": f"text/html; charset={charset}"},
        "body_base64": base64.b64encode(raw).decode(),
    }

    did, said = fetched(fetch, answer)

    assert json.loads(said)["url"] == URL if did else "no text to read" in said


@given(text=st.text(alphabet="ab c<>&;\n", max_size=300))
@settings(max_examples=examples(200), deadline=None)
def test_text_that_was_escaped_comes_back_word_for_word(fetch: Guest, text: str) -> None:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    did, said = fetched(fetch, page(f"<div>{escaped}</div>"))

    assert did, said
    assert json.loads(said)["text"] == " ".join(text.split())


def test_a_large_page_is_read_within_the_memory_of_a_plugin(fetch: Guest) -> None:
    row = "<tr><td><a href='/item?id=1&amp;x=2'>An item</a></td><td>costs <b>3</b> &euro;</td></tr>"

    did, said = fetched(fetch, page(f"<table>{row * 40_000}</table>"), max_chars=5_000)

    assert did, said
    assert json.loads(said)["text"].startswith(
        "[An item](https://example.com/item?id=1&x=2) | costs 3 €\n[An item]"
    )
    assert json.loads(said)["truncated"] is True


@pytest.mark.parametrize(
    "scrap", ["<a x='", "<p", "&#", "<", "<!--", "</", "<ul><li>", "<a href=x>"]
)
def test_a_page_made_to_be_slow_is_not(fetch: Guest, scrap: str) -> None:
    body = scrap * (200_000 // len(scrap))

    did, said = fetched(fetch, page(body), max_chars=200_000)

    assert did, said
