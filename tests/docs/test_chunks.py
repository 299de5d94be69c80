"""The pages of chunks and events are made of the code; `python tools/publish_chunks.py` writes them."""

import pytest

from tools.publish_chunks import FOLDER, files


@pytest.mark.parametrize("name", files())
def test_a_page_is_published_as_the_code_has_it(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == files()[name]
