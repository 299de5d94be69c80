"""The published schemas are those of the code; `python tools/publish_schemas.py` writes them."""

from tools.publish_schemas import FOLDER, files


def test_the_schemas_are_published_as_they_are_and_no_other() -> None:
    published = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}

    assert published == files()


def test_every_schema_is_named_in_the_page_about_channels() -> None:
    page = (FOLDER.parent / "reference" / "channels.md").read_text(encoding="utf-8")

    assert [name for name in files() if f"(../schemas/{name})" not in page] == []
