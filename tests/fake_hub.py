"""A model hub on the loopback interface: commits, digests, redirects and ranges like the real one's, and faults."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"
LARGE = (".safetensors", ".bin")
LFS_REDIRECT, SMALL_REDIRECT, OK, PARTIAL, NOT_FOUND = 302, 307, 200, 206, 404


class FakeHub:
    """What the hub has, what it was asked, and what it does wrong."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.commit = COMMIT
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.cut_after: list[int] = []
        """Bytes after which the next answers are cut off, one number per answer."""
        self.sent_instead: dict[str, bytes] = {}
        """What is sent where another file was promised."""
        self.ranges = True
        self.anonymous = False
        """Whether answers name neither commit nor digest."""

    def digest(self, name: str) -> str:
        data = self.files[name]
        if name.endswith(LARGE):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(f"blob {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


@contextmanager
def serving_hub() -> Iterator[FakeHub]:
    """Serve until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.hub = FakeHub(f"http://127.0.0.1:{server.server_port}")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def log_message(self, *_args):
        pass

    def _answer(self, *, body: bool):
        hub = self.server.hub
        hub.requests.append(f"{self.command} {self.path} {self.headers.get('Range', '')}".strip())
        resolve = re.fullmatch(r"/[^/]+/[^/]+/resolve/([^/]+)/([^/]+)", self.path)
        stored = re.fullmatch(r"/(storage|cache)/([^/]+)", self.path)
        name = (resolve or stored)[2] if resolve or stored else ""
        if name not in hub.files or (resolve and resolve[1] not in ("main", hub.commit)):
            self._head(NOT_FOUND, {"Content-Length": "0"})
        elif resolve:
            self._redirect(hub, name)
        else:
            self._send(hub, name, body=body)

    def _redirect(self, hub: FakeHub, name: str):
        """Send to the storage: large files with their digest at once, small ones to where it is told."""
        large = name.endswith(LARGE)
        headers = {"Location": f"/storage/{name}" if large else f"/cache/{name}", "Content-Length": "0"}
        if large and not hub.anonymous:
            headers |= {"X-Linked-Etag": f'"{hub.digest(name)}"', "X-Linked-Size": str(len(hub.files[name]))}
            headers |= {"X-Repo-Commit": hub.commit}
            # The real hub's storage is another host, which names no commit.
            headers["Location"] = hub.endpoint.replace("127.0.0.1", "localhost") + headers["Location"]
        self._head(LFS_REDIRECT if large else SMALL_REDIRECT, headers)

    def _send(self, hub: FakeHub, name: str, *, body: bool):
        data = hub.sent_instead.get(name, hub.files[name])
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")) if hub.ranges else None
        begin = int(found[1]) if found else 0
        headers = {"Content-Length": str(len(data) - begin)}
        if not name.endswith(LARGE) and not hub.anonymous:
            headers |= {"ETag": f'W/"{hub.digest(name)}"', "X-Repo-Commit": hub.commit}
        if found:
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        self._head(PARTIAL if found else OK, headers)
        if body:
            end = begin + hub.cut_after.pop(0) if hub.cut_after else len(data)
            self.wfile.write(data[begin:end])
            self.close_connection = True

    def _head(self, status: int, headers: dict[str, str]):
        self.send_response(status)
        for header in headers.items():
            self.send_header(*header)
        self.end_headers()
