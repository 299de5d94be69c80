"""Where traces go is checked when the configuration is read."""

from pathlib import Path

import pytest

from gateway.cli.configuration import known_names
from gateway.config.load import load
from gateway.config.problems import ConfigInvalid
from gateway.config.values import GatewayConfig


def read(folder: Path, text: str) -> GatewayConfig:
    path = folder / "config.toml"
    path.write_text(f"[observability]\n{text}\n", encoding="utf-8")
    variables = {"KEY": "k-0123456789"}
    return load(path, environment=variables, home=folder, cwd=folder, known=known_names())


@pytest.mark.parametrize("url", ["http://otel:4318", "https://a.example/otlp", "http://[::1]:4318"])
def test_a_collector_is_a_base_url(tmp_path: Path, url: str) -> None:
    text = f'otlp_endpoint = "{url}/"\notlp_headers = {{ "x-key" = "${{env:KEY}}" }}'

    found = read(tmp_path, text).observability

    assert found.otlp_endpoint == url
    assert found.otlp_headers["x-key"].reveal() == "k-0123456789"
    assert "0123456789" not in repr(found)


@pytest.mark.parametrize(
    "url", ["otel:4318", "grpc://otel:4317", "ftp://x", "http://", "http://u:p@x"]
)
def test_what_is_not_http_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        read(tmp_path, f'otlp_endpoint = "{url}"')

    [problem] = caught.value.problems
    assert problem.key == "observability.otlp_endpoint"
