"""A certificate for 127.0.0.1, and what lets a server speak TLS with it."""

import subprocess
from pathlib import Path

from tests.acceptance.processes import free_port


def tls_arguments(folder: Path) -> tuple[list[str], int]:
    """Return a server's arguments for a folder's certificate, made if need be, and the port it is for."""
    key = folder / "key.pem"
    certificate = folder / "cert.pem"
    port = free_port()
    if not certificate.exists():
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
             "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
             "-keyout", str(key), "-out", str(certificate)],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
    arguments = ["--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    return [*arguments, "--tls-auth-clients", "no"], port


def tls_options(folder: Path) -> str:
    """Return what a ``rediss://`` URL says to trust that certificate, and no other."""
    return f"?ssl_cert_reqs=required&ssl_ca_certs={folder}/cert.pem"
