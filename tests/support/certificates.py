"""Certificates of OpenSSL's, for servers of others on this machine."""

from pathlib import Path

from enkaku_lab.peers import need
from enkaku_lab.process import run


def certificate(folder: Path, name: str, ca: tuple[Path, Path] | None = None) -> tuple[Path, Path]:
    """A certificate that may vouch for others, or one for 127.0.0.1 that `ca` vouches for; and its key.

    It has no common name, which etcd would take for a user's.
    """
    files = folder / f"{name}.crt", folder / f"{name}.key"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-days", "2", "-subj", f"/O={name}", "-out", files[0], "-keyout", files[1]]
    if ca:
        words += ["-CA", ca[0], "-CAkey", ca[1], "-addext", "subjectAltName=IP:127.0.0.1"]
        words += ["-addext", "basicConstraints=CA:FALSE"]
    run([need("openssl"), *words])
    return files
