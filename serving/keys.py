"""API keys: how one is made, what is kept of it, and the file that lists who may call.

The file is TOML::

    [keys]
    acme-web = { id = "3f9c2d81a6b4", sha256 = "9d5f...", scope = "acme", requests_per_s = 50, max_calls = 16 }

    [certificates]
    "spiffe://corp.example/acme-indexer" = { scope = "acme" }

    [scopes.acme]
    ...

What a scope says is for the server that enforces it; here it is only a table.

A key is 256 random bits, of which the file holds the SHA-256. A slow hash such as scrypt or Argon2 defends words that
people choose and that can be guessed from a list; nobody tries 2^255 keys however fast the hash is, and a slow one
would cost every call its milliseconds, and a stranger's call, too, which is a way to keep a server busy.
"""

import hashlib
import hmac
import re
import secrets
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serving.errors import Misconfigured, Unauthenticated
from serving.rates import NO_LIMITS, CallLimits

PREFIX = "twostage"
"""What every key begins with, so that scanners for leaked secrets know one."""
NAME = r"[A-Za-z0-9_-]{1,64}"
ID = r"[0-9a-f]{12}"
SHAPE = re.compile(rf"{PREFIX}_({ID})_[A-Za-z0-9_-]{{43}}")
SECRET_BYTES = 32
NO_DIGEST = "0" * 64
"""Compared with where there is no such id, so that an unknown id takes as long as a wrong secret."""

ReadScopes = Callable[[Mapping[str, Mapping[str, Any]]], Mapping[str, Any]]
"""Makes scopes of their tables, by name, or raises Misconfigured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that was just made."""

    key: str
    """The key itself, which is kept nowhere."""
    id: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who may call, and how much."""

    name: str
    """Name of the key in the file, or the name in the certificate."""
    scope: Any = None
    """What it may see and do, as the server that enforces it reads it; None where servers have no scopes."""
    limits: CallLimits = NO_LIMITS


class _Entry(BaseModel):
    """What keys and certificates have in common."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    scope: str = ""
    requests_per_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    burst: int | None = Field(None, ge=1)
    max_calls: int | None = Field(None, ge=1)

    def limits(self) -> CallLimits:
        return CallLimits(requests_per_s=self.requests_per_s, burst=self.burst, max_calls=self.max_calls)


class _Key(_Entry):
    id: str = Field(pattern=f"^{ID}$")
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    keys: dict[str, _Key] = {}
    certificates: dict[str, _Entry] = {}
    scopes: dict[str, dict[str, Any]] = {}


def create_key() -> NewKey:
    """Make a key of 256 random bits."""
    identifier = secrets.token_hex(6)
    key = f"{PREFIX}_{identifier}_{secrets.token_urlsafe(SECRET_BYTES)}"
    return NewKey(key=key, id=identifier, sha256=digest(key))


def digest(key: str) -> str:
    """Return what the file keeps of a key: the SHA-256 of all of it, in hexadecimal."""
    return hashlib.sha256(key.encode()).hexdigest()


class Keyring:
    """Who may call, as a file says.

    Args:
        by_id: Id of a key -> its digest, and whose it is.
        by_certificate: Name in a client certificate -> whose it is.
    """

    def __init__(self, by_id: Mapping[str, tuple[str, Caller]], by_certificate: Mapping[str, Caller]) -> None:
        self._by_id, self._by_certificate = by_id, by_certificate

    @classmethod
    def parse(cls, content: bytes, read_scopes: ReadScopes | None = None) -> Self:
        """Read a file.

        Args:
            content: Of the file.
            read_scopes: Reads scopes; without it they are ignored, and every key may do everything.

        Raises:
            Misconfigured: `API_KEYS`; the message names the place and no secret.
        """
        file = _parsed(content)
        scopes = read_scopes(file.scopes) if read_scopes else None
        by_id: dict[str, tuple[str, Caller]] = {}
        for name, key in file.keys.items():
            if not re.fullmatch(NAME, name):
                raise _wrong(f"keys.{name[:80]}: a name of letters, digits, '_' and '-' is wanted")
            if key.id in by_id:
                raise _wrong(f"keys.{name}: another key has its id")
            by_id[key.id] = (key.sha256, _caller(name, key, scopes, f"keys.{name}"))
        certificates = {
            name: _caller(name, entry, scopes, f"certificates.{name}") for name, entry in file.certificates.items()
        }
        return cls(by_id, certificates)

    @property
    def names(self) -> Sequence[str]:
        """Names of everybody in the file."""
        return [*(caller.name for _, caller in self._by_id.values()), *self._by_certificate]

    def by_key(self, key: str) -> Caller:
        """Return whose key it is, after exactly one comparison, in constant time, whatever the key.

        Raises:
            Unauthenticated: `API_KEY_INVALID`.
        """
        shape = SHAPE.fullmatch(key)
        kept, caller = self._by_id.get(shape[1] if shape else "", (NO_DIGEST, None))
        if not hmac.compare_digest(kept, digest(key)) or caller is None:
            raise Unauthenticated("API_KEY_INVALID", "the API key is not known here")
        return caller

    def by_certificate(self, names: Sequence[str]) -> Caller | None:
        """Return whose certificate it is: the first of its names that the file has, or None."""
        return next((self._by_certificate[name] for name in names if name in self._by_certificate), None)


def _parsed(content: bytes) -> _File:
    try:
        return _File.model_validate(tomllib.loads(content.decode()))
    except ValidationError as error:
        # Not the value: it may be a key that was written where its digest belongs.
        first = error.errors(include_input=False, include_url=False)[0]
        raise _wrong(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        place = f": {error}" if isinstance(error, tomllib.TOMLDecodeError) else ""
        raise _wrong(f"it is no TOML{place}") from None


def _caller(name: str, entry: _Entry, scopes: Mapping[str, Any] | None, where: str) -> Caller:
    if scopes is not None and entry.scope not in scopes:
        raise _wrong(f"{where}: there is no [scopes.{entry.scope}]" if entry.scope else f"{where}: it needs a scope")
    return Caller(name=name, scope=scopes[entry.scope] if scopes is not None else None, limits=entry.limits())


def _wrong(message: str) -> Misconfigured:
    return Misconfigured("API_KEYS", f"API keys file: {message}")
