"""`python -m serving.probe`: the exit status a health check is judged by."""

import asyncio
import sys
from pathlib import Path

import pytest
from certificates import Authority
from pydantic_settings import SettingsConfigDict

from serving import probe
from serving.metrics import ServerMetrics
from serving.server import open_server
from serving.settings import ServerSettings

pytestmark = pytest.mark.timeout(30)
SERVICE = "probed.v1.ProbedService"
NAME = "gateway.example"


class ProbedSettings(ServerSettings):
    """A server on loopback."""

    model_config = SettingsConfigDict(env_prefix="TWOSTAGE_PROBED_")
    host: str = "127.0.0.1"


async def probed(*arguments: str, serving: bool, settings: ProbedSettings | None = None) -> int:
    """Open a server of one service, and ask it from a thread, as another process would."""
    async with open_server(settings or ProbedSettings(), ServerMetrics("probed"), {SERVICE: lambda _: None}) as running:
        await running.set_serving(serving=serving)
        return await asyncio.to_thread(probe.main, [f"127.0.0.1:{running.port}", *arguments])


@pytest.mark.parametrize("service", [(), (SERVICE,)])
async def test_a_serving_server_is_healthy(service: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    """The overall name and a service's own name are answered with what the server says: only SERVING is success."""
    assert await probed(*service, serving=True) == 0
    assert await probed(*service, serving=False) == 1
    assert capsys.readouterr().out == "SERVING\nNOT_SERVING\n"


async def test_a_service_that_does_not_exist_is_named_so(capsys: pytest.CaptureFixture[str]):
    """A misspelt name is not taken for a sick server."""
    assert await probed("probed.v1.Other", serving=True) == 1
    assert capsys.readouterr().out == "NOT_FOUND\n"


async def test_a_server_with_tls_is_asked_over_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """With the authority that it trusts and the name it expects, the probe asks at an address that the name is not."""
    authority = Authority.make(tmp_path, "ours")
    pair = authority.sign("server", f"DNS:{NAME}")
    settings = ProbedSettings(tls_cert_file=pair.cert, tls_key_file=pair.key)
    assert await probed("--ca", str(authority.cert), "--name", NAME, serving=True, settings=settings) == 0
    assert await probed("--ca", str(authority.cert), serving=True, settings=settings) == 1
    assert await probed(serving=True, settings=settings) == 1
    assert capsys.readouterr().out == "SERVING\nUNAVAILABLE\nUNAVAILABLE\n"


@pytest.mark.parametrize("arguments", [[], ["a", "b", "c"], ["a", "--unknown"]])
def test_a_wrong_call_is_neither_healthy_nor_sick(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    """Wrong arguments are usage, status 2."""
    with pytest.raises(SystemExit) as caught:
        probe.main(arguments)
    assert caught.value.code == 2
    assert "usage: python -m serving.probe" in capsys.readouterr().err


async def test_it_runs_as_a_module_and_says_at_once_that_nobody_is_there(tmp_path: Path):
    """A container's health check calls it by name, from any directory."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "serving.probe", "127.0.0.1:1", cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert (process.returncode, out) == (1, b"UNAVAILABLE\n")
