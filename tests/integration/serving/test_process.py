"""`python -m encoder_server` as a real process: signals, exit status, and what an operator reads."""

import os
import signal
from pathlib import Path

import grpc
import onnxruntime as ort
import pytest
from clients import client
from factories import make_lfs_pointer, tiny_encoder_bundle
from grpc_health.v1 import health_pb2, health_pb2_grpc
from server_process import NOT_SERVING, PREFIX, message, started, watched

SERVICE = "retrieval.encoder.v1.EncoderService"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A sound bundle."""
    return tiny_encoder_bundle(tmp_path / "bundle").path


# --- signals -------------------------------------------------------------------------------------------------------


async def test_sigterm_lets_a_running_call_end_and_exits_with_zero(bundle: Path):
    """A stream that is open at SIGTERM is answered to its end; then the process exits 0 (field failure 19)."""
    async with started(bundle=bundle) as server:
        async with watched(await server.port()) as (encoder, _, watch):
            stream = encoder.EncodeStream()
            await stream.write(message(1))
            assert (await stream.read()).sequence == 1
            server.process.send_signal(signal.SIGTERM)
            assert (await watch.read()).status == NOT_SERVING
            await stream.write(message(2))
            answer = await stream.read()
            assert (answer.sequence, answer.WhichOneof("outcome")) == (2, "response")
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() is grpc.StatusCode.OK
        status, stderr = await server.end()
    assert status == 0
    assert "Traceback" not in stderr


async def test_a_second_sigterm_ends_the_process_at_once(bundle: Path):
    """Whoever does not want to wait for the drain sends the signal again (field failure 19)."""
    async with started(bundle=bundle, grace_s=3600) as server, watched(await server.port()) as (encoder, _, watch):
        stream = encoder.EncodeStream()
        await stream.write(message(1))
        assert (await stream.read()).sequence == 1
        server.process.send_signal(signal.SIGTERM)
        assert (await watch.read()).status == NOT_SERVING
        server.process.send_signal(signal.SIGTERM)
        status, _ = await server.end()
    assert status == 128 + signal.SIGTERM


async def test_sigterm_ends_a_server_that_is_still_loading(bundle: Path):
    """A load that takes for ever is NOT_SERVING meanwhile and does not outlive SIGTERM (field failures 5 and 19)."""
    (bundle / "tokenizer.json").unlink()
    os.mkfifo(bundle / "tokenizer.json")  # reading it waits for a writer, who never comes
    async with started(bundle=bundle) as server:
        async with client(await server.port()) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            for name in ("", SERVICE):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=name), wait_for_ready=True)
                assert answer.status == NOT_SERVING
        server.process.send_signal(signal.SIGTERM)
        status, stderr = await server.end()
    assert status == 0
    assert "Traceback" not in stderr


# --- what an operator has to mend ----------------------------------------------------------------------------------


@pytest.mark.skipif("CUDAExecutionProvider" in ort.get_available_providers(), reason="this onnxruntime can use CUDA")
async def test_cuda_on_a_cpu_wheel_is_one_line_and_a_failure(bundle: Path):
    """device=cuda that cannot be had ends the process; nobody is served by a CPU instead (field failure 1)."""
    async with started(bundle=bundle, device="cuda", log_level="WARNING") as server:
        status, stderr = await server.end()
    assert status == 2
    (line,) = stderr.splitlines()
    assert line.startswith("DEVICE_UNAVAILABLE: device=cuda was asked for")


async def test_a_damaged_bundle_is_one_line_and_a_failure(bundle: Path):
    """The line has the path and what to do (field failure 46)."""
    make_lfs_pointer(bundle, "model.onnx")
    async with started(bundle=bundle, log_level="WARNING") as server:
        status, stderr = await server.end()
    assert status == 2
    (line,) = stderr.splitlines()
    assert str(bundle / "model.onnx") in line
    assert "git lfs pull" in line


async def test_settings_that_are_wrong_are_all_named_at_once(bundle: Path):
    """Three mistakes are one failed start and not three, and a misspelt name is one of them."""
    async with started(bundle=bundle, port="high", max_batch_rows=0, max_batch_row=3) as server:
        status, stderr = await server.end()
    assert status == 2
    lines = stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        f"{PREFIX}{n}" for n in ("MAX_BATCH_ROW", "PORT", "MAX_BATCH_ROWS")
    ]
    assert "no such setting" in lines[0]


async def test_a_missing_bundle_setting_is_named():
    """What has no default is asked for by its full name."""
    async with started() as server:
        status, stderr = await server.end()
    assert status == 2
    assert stderr.startswith(f"{PREFIX}BUNDLE: ")


async def test_settings_that_contradict_each_other_are_refused(bundle: Path):
    """An answer that no client would accept is refused before the first call (field failure 14)."""
    async with started(bundle=bundle, max_texts=100_000) as server:
        status, stderr = await server.end()
    assert (status, "max_texts=100000" in stderr) == (2, True)


async def test_a_second_process_on_the_same_port_fails_and_the_first_keeps_serving(bundle: Path):
    """Traffic is never split between two servers by accident (field failure 36)."""
    async with started(bundle=bundle) as first:
        port = await first.port()
        async with watched(port) as (encoder, _, _):
            async with started(bundle=bundle, port=port) as second:
                status, stderr = await second.end()
            assert status == 2
            assert f"ADDRESS_UNAVAILABLE: cannot listen on 127.0.0.1:{port}" in stderr
            assert "Traceback" not in stderr
            answer = await encoder.Encode(message(1).request)
            assert len(answer.embeddings) == 1
        first.process.send_signal(signal.SIGTERM)
        assert (await first.end())[0] == 0
