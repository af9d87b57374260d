"""Downloads are resumed, verified, and there under their name only when whole."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import COMMIT, FakeHub, serving_hub

from models import acquire as module
from models.acquire import Acquired, acquire
from models.catalog import CatalogFile, CatalogModel
from serving.errors import Misconfigured, Unavailable

SMALL = "config.json"
LARGE = "model.safetensors"
FILES = {SMALL: b'{"model_type": "bert"}', LARGE: bytes(range(256)) * 4000}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """A hub with one small and one large file."""
    with serving_hub() as hub:
        hub.files.update(FILES)
        yield hub


def model(*, revision: str | None = None, pinned: dict[str, bytes] | None = None) -> CatalogModel:
    """A catalog's entry for the hub's files, pinned to the given contents."""
    files = []
    for name in FILES:
        data = (pinned or {}).get(name)
        pin = {} if data is None else {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        files.append(CatalogFile(name=name, **pin))
    return CatalogModel(id="some/model", revision=revision, licence="MIT", max_tokens=512, files=tuple(files))


def fetch(hub: FakeHub, out: Path, wanted: CatalogModel) -> Acquired:
    """Acquire from the hub, quietly."""
    return acquire(wanted, out, endpoint=hub.endpoint, on_bytes=lambda _name, _done, _total: None)


def visible(out: Path) -> dict[str, bytes]:
    """Return what is there under names that are no temporary ones."""
    return {path.name: path.read_bytes() for path in out.iterdir() if not path.name.startswith(".")}


def test_everything_of_one_commit(hub: FakeHub, tmp_path: Path):
    """Files come whole, with size and SHA-256, and from the commit that the first answer named."""
    progress: list[tuple[str, int, int]] = []
    got = acquire(model(), tmp_path, endpoint=hub.endpoint, on_bytes=lambda *step: progress.append(step))
    assert visible(tmp_path) == FILES
    assert got.revision == COMMIT
    assert got.files[LARGE].sha256 == hashlib.sha256(FILES[LARGE]).hexdigest()
    assert progress[-1] == (LARGE, len(FILES[LARGE]), len(FILES[LARGE]))
    resolved = [line.split("/resolve/")[1].split("/")[0] for line in hub.requests if "/resolve/" in line]
    assert resolved == ["main", COMMIT, COMMIT, COMMIT]
    assert list(tmp_path.glob(".*")) == []


def test_cut_connections_are_resumed(hub: FakeHub, tmp_path: Path):
    """A download that is cut twice carries on after the bytes that it has."""
    hub.files.pop(SMALL)
    hub.cut_after = [100_000, 200_000]
    wanted = model()
    fetch(hub, tmp_path, wanted.model_copy(update={"files": wanted.files[1:]}))
    assert visible(tmp_path) == {LARGE: FILES[LARGE]}
    ranges = [line.split()[2] for line in hub.requests if line.startswith("GET /storage") and "bytes=" in line]
    assert ranges == ["bytes=100000-", "bytes=300000-"]


def test_a_later_run_resumes(hub: FakeHub, tmp_path: Path):
    """What an interrupted run left is carried on with by the next."""
    hub.cut_after = [len(FILES[SMALL]), 50_000, 0]
    with pytest.raises(Unavailable):
        fetch(hub, tmp_path, model())
    assert LARGE not in visible(tmp_path)
    fetch(hub, tmp_path, model())
    assert visible(tmp_path) == FILES
    assert hub.requests[-1] == f"GET /storage/{LARGE} bytes=50000-"


def test_a_server_without_ranges(hub: FakeHub, tmp_path: Path):
    """Where the server sends everything again, the file is written from its beginning."""
    hub.ranges = False
    hub.cut_after = [len(FILES[SMALL]), 50_000]
    fetch(hub, tmp_path, model())
    assert visible(tmp_path) == FILES


@pytest.mark.parametrize("name", [SMALL, LARGE])
@pytest.mark.parametrize("fault", [b"x", b"", b"longer"], ids=["changed", "short", "long"])
def test_wrong_bytes(hub: FakeHub, tmp_path: Path, name: str, fault: bytes):
    """Bytes that are not those the hub named never get the file's name, and are removed."""
    good = FILES[name]
    hub.sent_instead[name] = good + fault if fault == b"longer" else good[:-1] + fault
    with pytest.raises((Misconfigured, Unavailable)) as caught:
        fetch(hub, tmp_path, model())
    assert caught.value.reason in {"DOWNLOAD_DIGEST_MISMATCH", "HUB_ANSWER"}
    assert name not in visible(tmp_path)


def test_wrong_digest_leaves_no_leftovers(hub: FakeHub, tmp_path: Path):
    """After wrong bytes the next run starts from nothing, and succeeds where the hub is right again."""
    hub.sent_instead[LARGE] = b"x" * len(FILES[LARGE])
    with pytest.raises(Misconfigured, match="the download was removed"):
        fetch(hub, tmp_path, model())
    hub.sent_instead.clear()
    fetch(hub, tmp_path, model())
    assert visible(tmp_path) == FILES


def test_the_pin_is_what_counts(hub: FakeHub, tmp_path: Path):
    """A file that the hub itself calls right is refused where the catalog pins another."""
    other = bytes(reversed(FILES[LARGE]))
    with pytest.raises(Misconfigured) as caught:
        fetch(hub, tmp_path, model(revision=COMMIT, pinned={**FILES, LARGE: other}))
    assert caught.value.reason == "DOWNLOAD_DIGEST_MISMATCH"
    assert LARGE not in visible(tmp_path)


def test_pinned_files_that_are_there_need_no_hub(hub: FakeHub, tmp_path: Path):
    """A complete pinned copy is verified and used without a single request; a damaged file is fetched again."""
    pinned = model(revision=COMMIT, pinned=FILES)
    first = fetch(hub, tmp_path, pinned)
    hub.requests.clear()
    assert fetch(hub, tmp_path, pinned) == first
    assert hub.requests == []
    (tmp_path / LARGE).write_bytes(b"x" * len(FILES[LARGE]))
    fetch(hub, tmp_path, pinned)
    assert visible(tmp_path) == FILES


def test_a_pinned_revision_that_is_gone(hub: FakeHub, tmp_path: Path):
    """A revision or file that the hub does not have is the operator's to see, with the status."""
    with pytest.raises(Misconfigured) as caught:
        fetch(hub, tmp_path, model(revision="f" * 40))
    assert (caught.value.reason, caught.value.metadata) == ("HUB_REFUSED", {"status": "404"})


def test_an_answer_that_is_no_hubs(hub: FakeHub, tmp_path: Path):
    """A proxy's page, which names no commit and digest, is not taken for a model."""
    hub.anonymous = True
    with pytest.raises(Misconfigured) as caught:
        fetch(hub, tmp_path, model())
    assert caught.value.reason == "HUB_ANSWER"


def test_no_hub(tmp_path: Path):
    """A hub that cannot be reached is one line that says what to do instead."""
    with serving_hub() as gone:
        pass
    with pytest.raises(Unavailable, match="profile demo") as caught:
        fetch(gone, tmp_path, model())
    assert caught.value.reason == "HUB_UNREACHABLE"
    assert "\n" not in caught.value.message


def test_endless_cuts_end(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A connection that keeps being cut is given up after a number of times."""
    monkeypatch.setattr(module, "MAX_RESUMES", 3)
    hub.cut_after = [len(FILES[SMALL]), *[10] * 9]
    with pytest.raises(Unavailable, match="cut off 3 times"):
        fetch(hub, tmp_path, model())
