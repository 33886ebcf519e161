"""The hub over TLS, with a certificate made for the test."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hub_parts import TRUSTED, node

from p2psync.errors import HubError
from p2psync.membership.hub import HubConfig
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient


def write_certificate(path: Path) -> None:
    """A key and a certificate of 127.0.0.1 that signs itself, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hub")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(encoded + made.public_bytes(serialization.Encoding.PEM))


async def test_a_hub_serves_tls_to_those_who_trust_its_certificate(tmp_path: Path) -> None:
    write_certificate(tmp_path / "hub.pem")
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(tmp_path / "hub.pem")
    service = HubService(HubConfig(trusted=TRUSTED))
    url = f"https://127.0.0.1:{await service.start('127.0.0.1', 0, tls=serving)}"
    async with HubClient(url, tls=ssl.create_default_context(cafile=tmp_path / "hub.pem")) as client:
        assert (await client.join(node(1))).revision == 1
    async with HubClient(url) as untrusted:
        with pytest.raises(HubError, match="certificate"):
            await untrusted.join(node(2))
    await service.stop()
