"""What a gateway's settings refuse before anything is started."""

import pytest

from gateway.settings import GatewaySettings
from serving.settings import EXIT_MISCONFIGURED, load


def test_the_embedded_store_is_not_for_several_workers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two processes cannot open it: the parent of the workers says so in one line and starts none."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # what `load` sets as well does not outlive the test
    monkeypatch.setenv("TWOSTAGE_GATEWAY_WORKERS", "2")
    with pytest.raises(SystemExit) as caught:
        load(GatewaySettings)
    assert caught.value.code == EXIT_MISCONFIGURED
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "workers=2 with store=edge: the embedded store belongs to one process" in said


@pytest.mark.parametrize(("workers", "store"), [(1, "edge"), (1, "qdrant"), (2, "qdrant")])
def test_every_other_store_and_number_of_workers_is_taken(workers: int, store: str) -> None:
    """One worker may have either store, and several may share a Qdrant server."""
    assert GatewaySettings(workers=workers, store=store).workers == workers
