"""The cluster's own authority, and a certificate for everyone who has to show who they are.

Kept when the cluster is started again: whoever holds a kubeconfig keeps being let in. Keys are elliptic
(P-256), made in a millisecond; they protect nothing beyond this machine's loopback.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .network import API_SERVICE_ADDRESS, NODE_ADDRESS

_LIFETIME = timedelta(days=365)


@dataclass(frozen=True)
class Identity:
    """Who a certificate is for: common name and organisation are Kubernetes' user and group."""

    file: str
    user: str
    group: str = ""
    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


def identities(node: str) -> tuple[Identity, ...]:
    """Everyone of a cluster with this one node."""
    api_names = ("localhost", *(f"kubernetes{each}" for each in ("", ".default", ".default.svc")))
    return (
        Identity(
            "apiserver",
            "kube-apiserver",
            names=(*api_names, "kubernetes.default.svc.cluster.local"),
            addresses=("127.0.0.1", NODE_ADDRESS, API_SERVICE_ADDRESS),
        ),
        Identity("kubelet", f"system:node:{node}", "system:nodes", names=(node,), addresses=(NODE_ADDRESS,)),
        Identity("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
        Identity("admin", "admin", "system:masters"),
        Identity("controller-manager", "system:kube-controller-manager"),
        Identity("scheduler", "system:kube-scheduler"),
        Identity("proxy", "system:kube-proxy"),
        Identity("dns", "moe:dns"),
        Identity("provisioner", "moe:provisioner"),
    )


def ensure(folder: Path, wanted: Sequence[Identity]) -> None:
    """Writes ca, service-account and each identity's .crt and .key, where they are missing."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (folder / "ca.crt").exists():
        key = _new_key(folder / "ca.key")
        _write(folder / "ca.crt", _certificate(_name("moe-test-cluster"), _name("moe-test-cluster"), key, key, ca=True))
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signing = _load_key(folder / "ca.key")
    if not (folder / "service-account.key").exists():
        _new_key(folder / "service-account.key")
    for each in wanted:
        if not (folder / f"{each.file}.crt").exists():
            key = _new_key(folder / f"{each.file}.key")
            name = _name(each.user, each.group)
            _write(folder / f"{each.file}.crt", _certificate(name, authority.subject, key, signing, identity=each))


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signing: ec.EllipticCurvePrivateKey,
    *,
    ca: bool = False,
    identity: Identity | None = None,
) -> bytes:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    if identity:
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if identity and (identity.names or identity.addresses):
        others: list[x509.GeneralName] = [x509.DNSName(each) for each in identity.names]
        others += [x509.IPAddress(ipaddress.ip_address(each)) for each in identity.addresses]
        builder = builder.add_extension(x509.SubjectAlternativeName(others), critical=False)
    return builder.sign(signing, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(user: str, group: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Written as "EC PRIVATE KEY", the only form of which the API server also reads the public half."""
    key = ec.generate_private_key(ec.SECP256R1())
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    _write(path, text)
    return key


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{path}: not an elliptic key")
    return key


def _write(path: Path, content: bytes) -> None:
    """In one step, readable by root alone: a killed `up` leaves no half a key."""
    new = path.with_suffix(path.suffix + ".new")
    new.touch(mode=0o600)
    new.write_bytes(content)
    new.replace(path)
