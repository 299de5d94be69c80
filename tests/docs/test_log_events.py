"""Every event that is logged is a constant in snake_case, and stands on its page."""

import re

from tools.publish_log_events import PAGE, page


def test_every_logged_event_is_a_snake_case_constant() -> None:
    """An event of another form stands on the page as its expression."""
    found = re.findall(r"^\| `(.+?)` \|", PAGE.read_text("utf-8"), re.M)

    assert len(found) > 90
    assert [one for one in found if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", one)] == []


def test_every_logged_event_stands_on_the_page() -> None:
    assert PAGE.read_text("utf-8") == page(), "run python -m tools.publish_log_events"
