"""Settings from the environment: what is read, what is refused, and how it is said."""

import os
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic_settings import SettingsConfigDict

from serving.settings import EXIT_MISCONFIGURED, ModelServerSettings, ServerSettings, load


class PlainSettings(ServerSettings):
    """A server without a model."""

    prefix: ClassVar[str] = "TWOSTAGE_PLAIN_"
    model_config = SettingsConfigDict(env_prefix=prefix)


class OtherSettings(ModelServerSettings):
    """A server with a model."""

    prefix: ClassVar[str] = "TWOSTAGE_OTHER_"
    model_config = SettingsConfigDict(env_prefix=prefix)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without settings of ours."""
    for name in [name for name in os.environ if name.upper().startswith("TWOSTAGE_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    return monkeypatch


def refused(kind: type[ServerSettings], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Load settings that are wrong and return what was said."""
    with pytest.raises(SystemExit) as caught:
        load(kind)
    assert caught.value.code == EXIT_MISCONFIGURED == 2
    return capsys.readouterr().err.splitlines()


def test_settings_are_read_under_their_prefix(environment: pytest.MonkeyPatch):
    """Names are prefix and field; names without the prefix are somebody else's."""
    environment.setenv("TWOSTAGE_OTHER_BUNDLE", "/models/x")
    environment.setenv("TWOSTAGE_OTHER_PORT", "1234")
    environment.setenv("TWOSTAGE_OTHER_MAX_DELAY_MS", "0.5")
    environment.setenv("PORT", "99")
    environment.setenv("OTHER_PORT", "tcp://10.0.0.1:50052")
    settings = load(OtherSettings)
    assert (settings.bundle, settings.port, settings.max_delay_ms) == (Path("/models/x"), 1234, 0.5)
    assert settings.batch_limits("cpu").max_delay == 0.0005
    assert settings.session_options.device == "auto"


def test_a_batch_is_sized_for_the_device_that_was_taken(environment: pytest.MonkeyPatch):
    """Without a setting a GPU gets larger batches than a CPU; a setting counts on both."""
    environment.setenv("TWOSTAGE_OTHER_BUNDLE", "x")
    default = load(OtherSettings)
    assert default.batch_limits("cuda").max_batch_tokens > default.batch_limits("cpu").max_batch_tokens
    environment.setenv("TWOSTAGE_OTHER_MAX_BATCH_TOKENS", "77")
    assert [load(OtherSettings).batch_limits(device).max_batch_tokens for device in ("cpu", "cuda")] == [77, 77]


def test_an_empty_variable_is_an_unset_one(environment: pytest.MonkeyPatch):
    """Compose files set empty strings where they mean the default."""
    environment.setenv("TWOSTAGE_PLAIN_PORT", "")
    assert load(PlainSettings).port == 0


def test_every_problem_is_named_at_once(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """A misspelt name, a value of the wrong type, one out of range and a missing one are four lines."""
    environment.setenv("TWOSTAGE_OTHER_THREAD", "2")
    environment.setenv("TWOSTAGE_OTHER_PORT", "high")
    environment.setenv("TWOSTAGE_OTHER_DEVICE", "gpu")
    assert [line.partition(":")[0] for line in refused(OtherSettings, capsys)] == [
        "TWOSTAGE_OTHER_THREAD",
        "TWOSTAGE_OTHER_PORT",
        "TWOSTAGE_OTHER_BUNDLE",
        "TWOSTAGE_OTHER_DEVICE",
    ]


def test_a_misspelt_setting_is_refused_in_any_case(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Nothing that begins with the prefix is ignored."""
    environment.setenv("twostage_plain_prot", "1")
    assert refused(PlainSettings, capsys) == ["twostage_plain_prot: no such setting"]


def test_settings_that_contradict_each_other_are_named(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A text that no message could hold is a contradiction of the two limits."""
    environment.setenv("TWOSTAGE_OTHER_BUNDLE", "x")
    environment.setenv("TWOSTAGE_OTHER_MAX_TEXT_BYTES", str(64 * 1024 * 1024))
    (line,) = refused(OtherSettings, capsys)
    assert line.startswith("TWOSTAGE_OTHER: ")
    assert "max_text_bytes" in line


@pytest.mark.parametrize(("name", "value"), [("port", "70000"), ("default_deadline_s", "0"), ("grace_s", "-1")])
def test_values_out_of_range_are_refused(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
):
    """Limits are checked at start and not at the first call."""
    environment.setenv(f"TWOSTAGE_PLAIN_{name.upper()}", value)
    (line,) = refused(PlainSettings, capsys)
    assert line.startswith(f"TWOSTAGE_PLAIN_{name.upper()}: ")


def test_the_tokenizers_own_threads_are_switched_off_unless_asked_for(environment: pytest.MonkeyPatch):
    """One request takes one thread, not every core of the host; an explicit choice stays (field failure 63)."""
    load(PlainSettings)
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    environment.setenv("TOKENIZERS_PARALLELISM", "true")
    load(PlainSettings)
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


def test_what_a_session_is_told(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Device, precision and memory reach the session; a precision that there is not is refused."""
    environment.setenv("TWOSTAGE_OTHER_BUNDLE", "x")
    assert load(OtherSettings).session_options.precision == "auto"
    environment.setenv("TWOSTAGE_OTHER_DEVICE", "tensorrt")
    environment.setenv("TWOSTAGE_OTHER_PRECISION", "int8")
    environment.setenv("TWOSTAGE_OTHER_DEVICE_MEMORY_MIB", "4096")
    options = load(OtherSettings).session_options
    assert (options.device, options.precision, options.device_memory_mib) == ("tensorrt", "int8", 4096)
    assert load(OtherSettings).batch_limits("tensorrt") == load(OtherSettings).batch_limits("cuda")
    environment.setenv("TWOSTAGE_OTHER_PRECISION", "int4")
    (line,) = refused(OtherSettings, capsys)
    assert line.startswith("TWOSTAGE_OTHER_PRECISION: ")


@pytest.mark.parametrize(
    "value", ["collector:4317", "http://collector", "ftp://c:1", "http://c:70000", "http://c:1/v1"]
)
def test_an_endpoint_for_spans_is_scheme_host_and_port(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
):
    """Anything else is refused at the start, with the name of the setting."""
    environment.setenv("TWOSTAGE_PLAIN_OTLP_ENDPOINT", value)
    (line,) = refused(PlainSettings, capsys)
    assert line.startswith("TWOSTAGE_PLAIN_OTLP_ENDPOINT: ")


@pytest.mark.parametrize("value", ["http://collector:4317", "https://otel.example.com:443/", "http://[::1]:4317"])
def test_plaintext_and_tls_endpoints_are_taken(environment: pytest.MonkeyPatch, value: str):
    """Both schemes are known, and by default every call is traced."""
    environment.setenv("TWOSTAGE_PLAIN_OTLP_ENDPOINT", value)
    settings = load(PlainSettings)
    assert (settings.otlp_endpoint, settings.trace_share) == (value, 1.0)
