"""TLS of the gateway's own client: the name is checked, whatever address it leads to."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.domain.ports import HttpCall, HttpFailed
from gateway.outbound.connection import open_outbound
from tests.fakes.lookup import ScriptedLookup
from tests.outbound.raw import Said, raw_server, read_all

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
LOOPS = [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    backend: tuple[str, dict[str, bool]] = request.param
    return backend


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of localhost, signed by itself, with its key in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    today = datetime(2026, 1, 1, tzinfo=UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today)
        .not_valid_after(today + timedelta(days=36_500))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = tmp_path_factory.mktemp("tls") / "localhost.pem"
    path.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


async def asked(url: str) -> bytes:
    with anyio.fail_after(60):
        async with open_outbound(ScriptedLookup(["127.0.0.1"])) as http:
            call = HttpCall("GET", url, {}, connect_timeout_s=1)
            return await read_all(http, call) + await read_all(http, call)


async def test_a_server_with_the_right_name_is_asked_over_one_connection(
    tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with raw_server(Said([WHOLE, WHOLE], stays=True), tls=tls) as server:
        assert await asked(server.url) == b"hellohello"

    assert server.connections == 1


async def test_a_server_with_another_name_is_not_asked(
    tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with raw_server(WHOLE, tls=tls) as server:
        with pytest.raises(
            HttpFailed, match="certificate that this machine does not trust"
        ) as failed:
            await asked(server.url.replace("localhost", "api.example.com"))

    assert not failed.value.sent
    assert server.heads == []


async def test_a_server_that_nobody_vouches_for_is_not_asked(tls: ssl.SSLContext) -> None:
    async with raw_server(WHOLE, tls=tls) as server:
        with pytest.raises(HttpFailed, match="certificate that this machine does not trust"):
            await asked(server.url)


async def test_a_server_without_tls_is_not_asked_for_what_needs_it() -> None:
    async with raw_server(WHOLE) as server:
        with pytest.raises(HttpFailed, match="failed the TLS handshake") as failed:
            await asked(server.url.replace("http:", "https:"))

    assert not failed.value.sent


async def test_a_certificate_that_is_never_shown_is_a_timeout() -> None:
    async with raw_server(Said([b""], stays=True)) as server:
        with pytest.raises(HttpFailed, match="did not accept a connection") as failed:
            await asked(server.url.replace("http:", "https:"))

    assert (failed.value.kind, failed.value.sent) == ("timeout", False)
