"""Certificates and device agents for tests."""

import contextlib
import datetime
import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fpgapipe.host.transports.agent import AgentTransport
from fpgapipe.host.transports.agent_protocol import Place
from fpgapipe.host.transports.agent_server import DeviceAgent, Served
from fpgapipe.host.transports.modelled import ModelledCluster, ModelledTransport

TOKEN = "a token of the tests"


@dataclass(frozen=True)
class Keys:
    """Files of a certificate, which signed itself, and of its key."""

    certificate: Path
    key: Path

    def pair(self):
        return self.certificate.read_bytes(), self.key.read_bytes()


def made_keys(folder, name="agent", *, hosts=("localhost",), last_days=1):
    """Make a certificate for some hosts that is good for some days, or was until some days ago."""
    folder.mkdir(exist_ok=True)
    names = [_name(host) for host in hosts]
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fpgapipe")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=30))
        .not_valid_after(now + datetime.timedelta(days=last_days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), False)
        .sign(key, hashes.SHA256())
    )
    files = Keys(folder / f"{name}.pem", folder / f"{name}.key")
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files.key.touch(0o600)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def _name(host):
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def free_place():
    """A port of this host that nothing listens at."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return Place("localhost", free.getsockname()[1])


@contextlib.contextmanager
def agent_of(keys, *devices, token=TOKEN, place=None):
    """Run an agent in this process; gives its place."""
    place = place or free_place()
    with DeviceAgent(devices, Place("127.0.0.1", place.port), *keys.pair(), token):
        yield place


def model_of(core, size_bytes, base=0x10000):
    """A device that is a model, with memory from an address on."""
    return ModelledTransport(ModelledCluster([core], [size_bytes + base], []), 0, base)


def served(name, inner, **options):
    """A device of an agent that is another transport; it stays open."""
    options = {"close": lambda way: None, **options}
    return Served(name, "u280", inner.name, lambda: inner, **options)


def client_of(place, name, keys, token=TOKEN, **options):
    """A client of an agent."""
    return AgentTransport(str(place), name, keys.certificate, token, **options)
