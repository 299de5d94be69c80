"""The code search ranks a folder of any size within its memory, as a plain search in Python does."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from wasmtime.component import Variant

from tests.plugins.running import Guest, Json

TOOL = Path(__file__).parent.parent.parent / "plugins" / "search_code" / "tool.wasm"
File = Mapping[str, str]


class Folder(Guest):
    """A guest whose host function `folder` gives these batches, one after another."""

    batches: Sequence[Sequence[File]] = ()
    asked = 0

    def answer(self, name: str, given: str) -> Variant:
        at = int(json.loads(given)["cursor"] or 0)
        self.asked += 1
        more = str(at + 1) if at + 1 < len(self.batches) else None
        return Variant("ok", json.dumps({"files": self.batches[at], "cursor": more}))


@pytest.fixture
def folder() -> Folder:
    return Folder.load(TOOL)


def found(folder: Folder, **arguments: Json) -> Json:
    did, text = folder.run({"call": {"tool": "search_code", "arguments": arguments}})
    assert did, text
    return json.loads(text)


def test_the_best_of_many_files_are_found_and_the_memory_of_the_others_is_given_back(
    folder: Folder,
) -> None:
    line = "some words that mean nothing at all, with a needle now and then\n"
    filler = {"path": "big.txt", "text": line * 3_000}
    batches = [[{**filler, "path": f"big-{number}.txt"}] for number in range(60)]
    batches[37].append({"path": "gold.txt", "text": "x\n" * 500 + "def needle_in_gold(): golden\n"})
    folder.batches, folder.memory_bytes = batches, 8 << 20

    result = found(folder, query="needle golden", limit=3)

    assert result["results"][0]["path"] == "gold.txt"
    assert result["results"][0]["line"] == 501
    assert [hit["path"] for hit in result["results"][1:]] == ["big-0.txt", "big-1.txt"]
    assert result["results"][1]["matches"] == 3_000
    assert result["results"][1]["lines"] == list(range(1, 11))
    assert result["files_searched"] == 61


def test_every_line_with_the_word_is_counted_whatever_ends_it(folder: Folder) -> None:
    lines = ["alpha", "needle", "", "beta needle needle", "NEEDLE"]
    folder.batches = [
        [{"path": name, "text": end.join(lines)} for name, end in (("unix", "\n"), ("dos", "\r\n"))]
    ]

    hits = found(folder, query="needle")["results"]

    assert [(hit["path"], hit["lines"], hit["line"]) for hit in hits] == [
        ("unix", [2, 4, 5], 2),
        ("dos", [2, 4, 5], 2),
    ]


def test_the_best_hits_stay_in_order_while_more_come(folder: Folder) -> None:
    counts = [3, 17, 1, 9, 12, 5, 16, 2, 8, 14]
    folder.batches = [[{"path": f"f{count}", "text": "needle\n" * count}] for count in counts]

    hits = found(folder, query="needle", limit=4)["results"]

    assert [hit["matches"] for hit in hits] == [17, 16, 14, 12]


def test_a_folder_without_end_is_left_at_some_point_and_that_is_said(folder: Folder) -> None:
    folder.batches = [[{"path": "a", "text": "b"}]] * 2_000

    result = found(folder, query="b")

    assert folder.asked < 1_000
    assert result["complete"] is False


def test_a_snippet_ends_with_a_whole_character(folder: Folder) -> None:
    folder.batches = [[{"path": "ä" * 300, "text": "needle" + "ö" * 700}]]

    hit = found(folder, query="needle")["results"][0]

    assert hit["snippet"] == "needle" + "ö" * 297
    assert hit["path"] == "ä" * 256
