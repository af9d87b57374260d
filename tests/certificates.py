"""Certificates for tests, made with the openssl program as docs/security.md shows it."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key."""

    cert: Path
    key: Path

    def put(self, other: "Pair") -> None:
        """Write another pair over this one, as an operator does: one file after the other."""
        shutil.copy(other.cert, self.cert)
        shutil.copy(other.key, self.key)


@dataclass(frozen=True)
class Authority:
    """Somebody who signs certificates, in a directory of its own."""

    directory: Path

    @classmethod
    def make(cls, directory: Path, name: str) -> "Authority":
        """Make one; skips the test where the program is missing."""
        if shutil.which("openssl") is None:
            pytest.skip("the program openssl is not installed")
        made = cls(directory / name)
        made.directory.mkdir()
        made._openssl("req", "-x509", *NEW_KEY, "-days", "30", "-subj", f"/CN={name}", *out("ca"))
        return made

    @property
    def cert(self) -> Path:
        return self.directory / "ca.crt"

    def sign(self, name: str, san: str = "DNS:localhost,IP:127.0.0.1") -> Pair:
        """Make a pair for a name and, unless empty, subject alternative names."""
        extension = ["-addext", f"subjectAltName={san}"] if san else []
        request = ("-keyout", f"{name}.key", "-out", f"{name}.csr")
        self._openssl("req", *NEW_KEY, "-subj", f"/CN={name}", *extension, *request)
        signing = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-copy_extensions", "copy")
        self._openssl("x509", "-req", "-days", "30", "-in", f"{name}.csr", *signing, "-out", f"{name}.crt")
        return Pair(self.directory / f"{name}.crt", self.directory / f"{name}.key")

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(("openssl", *arguments), cwd=self.directory, check=True, capture_output=True)  # noqa: S607


def out(name: str) -> tuple[str, ...]:
    return ("-keyout", f"{name}.key", "-out", f"{name}.crt")
