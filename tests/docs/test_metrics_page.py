"""docs/reference/metrics.md has every metric with its kind and its help, and none that is not there."""

import re
from pathlib import Path

from gateway.domain.figures import Figures, Histogram, Series
from tests.fakes.client import http
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Reply, scripted_server

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
_ROWS = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]+?) \|", PAGE.read_text("utf-8"), re.MULTILINE)
_FAMILY = re.compile(r"# HELP (\w+) (.*)\n# TYPE \1 (\w+)\n")


async def test_every_metric_is_on_the_page_and_no_other(tmp_path: Path) -> None:
    async with scripted_server([Reply("hi")]) as model, running(Setup(model.url), tmp_path) as site:
        answer = await http(site.url + "/metrics")

    figures = Figures()
    shared = figures.share(cluster=True)
    told = {
        f"exogate_{one.name}": (one.kind, one.help)
        for one in (*vars(figures).values(), *vars(shared).values())
        if isinstance(one, Series | Histogram)
    }
    told |= {name: (kind, text) for name, text, kind in _FAMILY.findall(answer.body.decode())}
    assert {name: (kind, text) for name, kind, text in _ROWS} == told
