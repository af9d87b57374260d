"""Files of a hub repository to a directory: resumed where cut off, verified, under their name only when whole.

A file that the catalog pins has to have that size and SHA-256. One that it does not pin has to have the digest that the
hub itself names: SHA-256 for large files, the git blob's SHA-1 for small ones.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from models.catalog import CatalogFile, CatalogModel
from serving.bundle import FileEntry, sha256
from serving.errors import Misconfigured, Unavailable

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 30.0
CHUNK_BYTES = 1 << 20
MAX_RESUMES = 20
"""Cut connections one file may have; each has to have brought at least a byte."""
DEFAULT_REVISION = "main"
MAX_REDIRECTS = 5
SHA1_DIGITS = 40
HTTP_PARTIAL = 206
HTTP_RANGE_UNSATISFIABLE = 416
HTTP_ERROR = 400

OnBytes = Callable[[str, int, int], None]
"""Called with a file's name, the bytes there so far, and the bytes it will have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired:
    """A verified copy of a hub repository's files."""

    path: Path
    revision: str
    files: dict[str, FileEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remote:
    """What the hub says of a file."""

    url: str
    revision: str
    size: int
    digest: str
    """SHA-256 in 64 hexadecimal digits, or SHA-1 of the git blob in 40."""


def acquire(model: CatalogModel, out: Path, *, endpoint: str | None = None, on_bytes: OnBytes) -> Acquired:
    """Download what is missing of a model's files, all of one revision.

    Args:
        model: The catalog's entry.
        out: Directory, made where it is missing; verified files already in it are kept.
        endpoint: The hub's address; None is the public one, or what HF_ENDPOINT names.
        on_bytes: Told of progress.

    Raises:
        Unavailable: The hub cannot be reached, or the connection keeps being cut.
        Misconfigured: The hub has no such file, or a file is not what the catalog or the hub says.
    """
    out.mkdir(parents=True, exist_ok=True)
    revision, files = model.revision, {}
    with _client() as client:
        for file in model.files:
            kept = _kept(file, out)
            if kept is None or revision is None:
                remote = _look_up(client, model, file, revision, endpoint)
                revision = remote.revision
                kept = kept or _fetch(client, file, remote, out, on_bytes)
            files[file.name] = kept
    if revision is None:  # pragma: no cover - the loop ran at least once
        raise AssertionError("unreachable")
    return Acquired(path=out, revision=revision, files=files)


@contextmanager
def _client() -> "Iterator[httpx.Client]":
    """Open a client; what keeps it from reaching the hub comes out as Unavailable."""
    import httpx  # noqa: PLC0415 - only who downloads has it

    timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    try:
        with httpx.Client(timeout=timeout) as client:
            yield client
    except httpx.TransportError as error:
        raise Unavailable(
            "HUB_UNREACHABLE",
            f"{error.request.url.host} cannot be reached ({type(error).__name__}); use the profile demo, which needs "
            "no hub, name a mirror in HF_ENDPOINT, or copy the files there by hand",
        ) from error


def _kept(file: CatalogFile, out: Path) -> FileEntry | None:
    """Return the entry of a file that is there already and is the pinned one."""
    path = out / file.name
    if file.pinned is None or not path.is_file() or path.stat().st_size != file.pinned.size:
        return None
    return file.pinned if sha256(path) == file.pinned.sha256 else None


def _look_up(
    client: "httpx.Client", model: CatalogModel, file: CatalogFile, revision: str | None, endpoint: str | None
) -> _Remote:
    from huggingface_hub import hf_hub_url  # noqa: PLC0415 - only who downloads has it

    url = hf_hub_url(model.id, file.name, revision=revision or DEFAULT_REVISION, endpoint=endpoint)
    headers = _checked(_head(client, url), url).headers
    digest = re.sub(r'^(W/)?"|"$', "", headers.get("x-linked-etag") or headers.get("etag") or "")
    size = headers.get("x-linked-size") or headers.get("content-length") or ""
    commit = headers.get("x-repo-commit") or ""
    if not (re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", digest) and size.isdecimal() and commit):
        raise Misconfigured("HUB_ANSWER", f"{url}: the answer names no commit, size and digest; is this a hub?")
    if revision is not None and commit != revision:
        raise Misconfigured("HUB_ANSWER", f"{url}: asked for revision {revision}, got {commit}")
    pinned = file.pinned
    return _Remote(
        url=hf_hub_url(model.id, file.name, revision=commit, endpoint=endpoint),
        revision=commit,
        size=pinned.size if pinned else int(size),
        digest=pinned.sha256 if pinned else digest,
    )


def _head(client: "httpx.Client", url: str) -> "httpx.Response":
    """Ask the hub itself, which names commit and digest, and not the storage that it redirects to."""
    response = client.head(url, headers={"Accept-Encoding": "identity"})
    for _ in range(MAX_REDIRECTS):
        target = response.url.join(response.headers.get("location", ""))
        if not response.is_redirect or target.host != response.url.host:
            break
        response = client.head(target, headers={"Accept-Encoding": "identity"})
    return response


def _fetch(client: "httpx.Client", file: CatalogFile, remote: _Remote, out: Path, on_bytes: OnBytes) -> FileEntry:
    """Download one file to a temporary name that tells its digest, verify it, and give it its name."""
    part = out / f".{file.name}.{remote.digest[:12]}.part"
    _download(client, remote, part, lambda done: on_bytes(file.name, done, remote.size))
    entry = FileEntry(size=part.stat().st_size, sha256=sha256(part))
    actual = entry.sha256 if len(remote.digest) != SHA1_DIGITS else _git_blob_sha1(part)
    if (entry.size, actual) != (remote.size, remote.digest):
        part.unlink()
        raise Misconfigured(
            "DOWNLOAD_DIGEST_MISMATCH",
            f"{remote.url}: got {entry.size} bytes with digest {actual[:12]}..., expected {remote.size} bytes with "
            f"{remote.digest[:12]}...; the download was removed",
        )
    part.replace(out / file.name)
    _sync_directory(out)
    return entry


def _download(client: "httpx.Client", remote: _Remote, part: Path, on_done: Callable[[int], None]) -> None:
    """Bring the temporary file to its size, carrying on after the bytes that are there when the connection is cut."""
    import httpx  # noqa: PLC0415 - as above

    for _ in range(MAX_RESUMES):
        before = part.stat().st_size if part.exists() else 0
        try:
            _append(client, remote, part, on_done)
        except (httpx.ReadError, httpx.ReadTimeout, httpx.RemoteProtocolError):
            if part.exists() and part.stat().st_size > before:
                continue
            raise
        return
    raise Unavailable("HUB_UNREACHABLE", f"{remote.url}: cut off {MAX_RESUMES} times; run it again to carry on")


def _append(client: "httpx.Client", remote: _Remote, part: Path, on_done: Callable[[int], None]) -> None:
    done = part.stat().st_size if part.exists() else 0
    if done == remote.size:
        return
    # A compressed answer would have another length than the file, and could not be resumed.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
    with client.stream("GET", remote.url, headers=headers, follow_redirects=True) as response:
        if response.status_code == HTTP_RANGE_UNSATISFIABLE:
            part.unlink()
            raise Misconfigured("HUB_ANSWER", f"{remote.url} is shorter than what was there; run it again")
        _checked(response, remote.url)
        resumed = response.status_code == HTTP_PARTIAL
        if not resumed:
            done = 0
        with part.open("ab" if resumed else "wb") as file:
            # A chunk size here would hold back, and on a cut lose, what has arrived of a chunk.
            for chunk in response.iter_raw():
                file.write(chunk)
                done += len(chunk)
                on_done(done)
                if done > remote.size:
                    break
            file.flush()
            os.fsync(file.fileno())


def _checked(response: "httpx.Response", url: str) -> "httpx.Response":
    if response.status_code >= HTTP_ERROR:
        raise Misconfigured(
            "HUB_REFUSED", f"{url}: HTTP status {response.status_code}", status=str(response.status_code)
        )
    return response


def _git_blob_sha1(path: Path) -> str:
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _sync_directory(path: Path) -> None:
    """Make renames last through a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
