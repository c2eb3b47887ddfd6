"""Certificate authority for clusters whose machines have no certificates yet."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from epbuild.cluster.address import CA, CERTIFICATE, KEY
from epbuild.core.errors import PlanError, Problem, ToolchainError

_ROLES = ("scheduler", "worker", "client")
_DAYS = 825
_CA_KEY = "ca-key.pem"
_INSTALL = "Install it with `pip install 'epbuild[dask]'`."


def make_certificates(folder: Path) -> tuple[Path, ...]:
    """Create a certificate authority in a new folder, and a subfolder with a certificate for each role. Return the subfolders.

    Anyone with one of the certificates can do everything that a client can do. Only `ca-key.pem` can issue more certificates. Raises
    PlanError if the folder is not empty, and ToolchainError if the package cryptography is missing.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ToolchainError(
            Problem("EPB533", "creating certificates requires the package cryptography, which is not installed", hint=_INSTALL)
        ) from error
    if folder.exists() and any(folder.iterdir()):
        message = "the folder for the certificates is not empty"
        raise PlanError(Problem("EPB536", message, folder, "Pass a new folder: certificates in use must not be replaced."))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, folders = ec.generate_private_key(ec.SECP256R1()), []
    signed = _sign_certificate("epbuild cluster", authority.public_key(), authority, is_authority=True)
    _write_private(folder / _CA_KEY, _encode_key(authority))
    _write_private(folder / CA, _encode_certificate(signed))
    for role in _ROLES:
        place, own = folder / role, ec.generate_private_key(ec.SECP256R1())
        place.mkdir(mode=0o700)
        _write_private(place / CA, _encode_certificate(signed))
        _write_private(place / KEY, _encode_key(own))
        _write_private(
            place / CERTIFICATE, _encode_certificate(_sign_certificate(f"epbuild {role}", own.public_key(), authority))
        )
        folders.append(place)
    return tuple(folders)


def _sign_certificate(name: str, public_key: Any, signer: Any, *, is_authority: bool = False) -> Any:
    """Return a certificate for a public key, signed with the private key `signer`. The issuer is `epbuild cluster`."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)
    subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (name, "epbuild cluster"))
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )


def _encode_certificate(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    found: bytes = certificate.public_bytes(Encoding.PEM)
    return found


def _encode_key(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    found: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return found


def _write_private(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)
