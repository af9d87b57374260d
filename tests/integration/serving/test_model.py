"""Model, session and self-test on tiny real graphs: what runs, what agrees, and what is refused at start."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from factories import (
    CRASH,
    DIMENSION,
    POISON,
    SPECIAL,
    reference_ids,
    reference_logit,
    reference_vector,
    tiny_encoder_bundle,
    tiny_reranker_bundle,
)
from onnx import TensorProto

from serving.bundle import Bundle, Kind
from serving.cpu import usable_cpus
from serving.errors import InferenceFailed, Misconfigured
from serving.model import Model
from serving.selftest import PROBES, check_golden, self_test
from serving.session import Session
from serving.session_options import Device, SessionOptions
from serving.tokens import PairTruncation, Tokens

BUILDERS = {"encoder": tiny_encoder_bundle, "reranker": tiny_reranker_bundle}
ON_CPU = SessionOptions(device="cpu", threads=1)
TEXTS = ["panda", "what is tea?", "river " * 700, "熊猫", "a mountain of paper", "bear " * 60]


def load(directory: Path, kind: Kind = "encoder", *, limit: int | None = None, **recipe: Any) -> Model:
    """Make a bundle and load it."""
    return Model(BUILDERS[kind](directory / kind, **recipe), kind, ON_CPU, limit)


def refused(directory: Path, kind: Kind = "encoder", **recipe: Any) -> Misconfigured:
    """Make a bundle, load and self-test it as a server does, and return why it was refused."""
    with pytest.raises(Misconfigured) as caught:
        self_test(load(directory, kind, **recipe))
    assert "\n" not in caught.value.message
    return caught.value


def singles(model: Model, *texts: str) -> list[Tokens]:
    """Tokenize texts."""
    return [model.tokenizer.single(ids) for ids in model.tokenizer.content_ids(texts)]


def pairs(model: Model, *texts: tuple[str, str]) -> list[Tokens]:
    """Tokenize pairs."""
    contents = [model.tokenizer.content_ids(both) for both in texts]
    return [model.tokenizer.pair(query, passage, PairTruncation.LONGEST_FIRST) for query, passage in contents]


# --- answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_a_sound_bundle_passes_its_self_test(tmp_path: Path, kind: Kind):
    """Every probe shape runs and every golden output is met on this device (field failures 47 and 49)."""
    report = self_test(load(tmp_path, kind, max_tokens=512))
    assert report.row_count > 3
    assert report.max_difference < 1e-5


def test_vectors_are_what_numpy_says(tmp_path: Path):
    """Ids from the library's own templates and the model in numpy give the same unit vectors."""
    model = load(tmp_path)
    for text, output in zip(TEXTS, model.compute(singles(model, *TEXTS)), strict=True):
        assert isinstance(output, np.ndarray)
        assert output.shape == (DIMENSION,)
        np.testing.assert_allclose(output, reference_vector(reference_ids(text)), atol=1e-5)
        assert np.linalg.norm(output) == pytest.approx(1, abs=1e-5)


def test_logits_are_what_numpy_says(tmp_path: Path):
    """The reranker's logits follow from query and passage, and from their order."""
    model = load(tmp_path, "reranker")
    texts = [("panda bear", "what is tea"), ("what is tea", "panda bear"), ("tea", "river " * 90)]
    outputs = [float(output) for output in model.compute(pairs(model, *texts))]
    assert outputs == pytest.approx([reference_logit(reference_ids(*both)) for both in texts], abs=1e-5)
    assert outputs[0] != pytest.approx(outputs[1], abs=1e-3)


def test_a_row_alone_is_the_row_in_any_batch(tmp_path: Path):
    """A vector does not depend on what else is in its batch (field failure 11)."""
    model = load(tmp_path)
    rows = singles(model, *TEXTS)
    alone = np.array([model.raw([row])[0] for row in rows])
    for turn in range(len(rows)):
        together = model.raw(rows[turn:] + rows[:turn])
        np.testing.assert_allclose(together, np.roll(alone, -turn, axis=0), atol=1e-5)


def test_a_pair_alone_is_the_pair_in_any_batch(tmp_path: Path):
    """A logit does not depend on what else is in its batch (field failure 11)."""
    model = load(tmp_path, "reranker")
    rows = pairs(model, *((query, passage) for query in TEXTS for passage in TEXTS[:3]))
    alone = np.array([model.raw([row])[0] for row in rows])
    np.testing.assert_allclose(model.raw(rows), alone, atol=1e-5)
    np.testing.assert_allclose(model.raw(rows[::-1]), alone[::-1], atol=1e-5)


@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_zeros_are_fed_where_the_graph_asks_for_token_types(tmp_path: Path, kind: Kind):
    """A BERT graph under an XLM-R tokenizer gets type 0 everywhere; any other type would miss golden (case 29)."""
    report = self_test(load(tmp_path, kind, inputs=("input_ids", "attention_mask", "token_type_ids")))
    assert report.max_difference < 1e-5


def test_weights_in_a_file_of_their_own_are_loaded(tmp_path: Path):
    """The graph finds its external data beside itself (field failure 46)."""
    assert self_test(load(tmp_path, external_data=True)).max_difference < 1e-5


def test_a_non_finite_row_fails_alone(tmp_path: Path):
    """NaN in one row is that row's failure; its batch-mates get what they get without it (field failure 22)."""
    model = load(tmp_path, poison=True)
    good, bad, also_good = model.compute(singles(model, "panda", f"tea {POISON}", "bear"))
    assert isinstance(bad, InferenceFailed)
    assert bad.reason == "NON_FINITE"
    expected = model.raw(singles(model, "panda", "bear"))
    np.testing.assert_allclose([good, also_good], expected, atol=1e-6)


def test_an_id_that_the_table_lacks_raises_and_leaves_the_session_usable(tmp_path: Path):
    """The engine's exception is not an answer, and the next batch is computed (field failures 23 and 30)."""
    model = load(tmp_path, crash=True)
    with pytest.raises(Exception, match="out of data bounds"):
        model.compute(singles(model, "panda", CRASH))
    assert len(model.compute(singles(model, "panda"))) == 1


def test_a_row_over_the_position_table_raises(tmp_path: Path):
    """The limit that the tokenizer keeps is real: one token more and the graph throws (field failure 24)."""
    model = load(tmp_path, max_tokens=512)
    assert len(model.raw([Tokens([4] * 512, untruncated_count=512)])) == 1
    with pytest.raises(Exception, match="512 by 513"):
        model.raw([Tokens([4] * 513, untruncated_count=513)])


def test_a_lower_limit_is_kept(tmp_path: Path):
    """A server that is set to fewer tokens cuts there, and still passes with the golden rows that fit (case 50)."""
    model = load(tmp_path, limit=16)
    assert model.max_tokens == model.tokenizer.max_tokens == 16
    (row,) = singles(model, "panda " * 40)
    assert (len(row), row.truncated) == (16, True)
    assert 0 < self_test(model).row_count < len(model.bundle.golden().rows)


# --- the device ----------------------------------------------------------------------------------------------------


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """A sound encoder."""
    return tiny_encoder_bundle(tmp_path / "bundle")


@pytest.fixture
def without_cuda() -> None:
    """Skip where onnxruntime has CUDA built in."""
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this onnxruntime can use CUDA")


@pytest.mark.usefixtures("without_cuda")
def test_cuda_that_is_not_to_be_had_is_refused(bundle: Bundle):
    """device=cuda is never silently a CPU (field failure 1)."""
    with pytest.raises(Misconfigured, match="device=cuda") as caught:
        Session(bundle, SessionOptions(device="cuda", threads=1))
    assert caught.value.reason == "DEVICE_UNAVAILABLE"


def test_cuda_that_is_offered_but_does_not_load_is_refused(bundle: Bundle, monkeypatch: pytest.MonkeyPatch):
    """A provider on the list whose libraries fail leaves a CPU session behind, which is not served (case 1)."""
    offered = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(ort, "get_available_providers", lambda: offered)
    monkeypatch.setattr(ort.InferenceSession, "get_providers", lambda _self: offered[1:])
    with pytest.raises(Misconfigured) as caught:
        Session(bundle, SessionOptions(device="cuda", threads=1))
    assert caught.value.reason == "DEVICE_UNAVAILABLE"


@pytest.mark.usefixtures("without_cuda")
def test_auto_says_which_device_it_took(bundle: Bundle):
    """Falling back is allowed when asked for, and visible (field failure 1)."""
    assert Session(bundle, SessionOptions(device="auto", threads=1)).device == "cpu"


def test_the_number_of_threads_is_the_setting_or_the_quota(bundle: Bundle):
    """Threads are never left to onnxruntime, which counts the host's cores (field failure 17)."""
    assert Session(bundle, SessionOptions(device="cpu", threads=3)).threads == 3
    session = Session(bundle, SessionOptions(device="cpu"))
    assert session.threads == usable_cpus()
    assert session._session.get_session_options().intra_op_num_threads == usable_cpus()


def test_a_waiting_thread_does_not_spin(bundle: Bundle):
    """An idle server burns no core (field failure 45)."""
    options = Session(bundle, ON_CPU)._session.get_session_options()
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"


@pytest.mark.parametrize(("precision", "warned"), [("fp16", True), ("fp32", False)])
def test_half_precision_on_a_cpu_is_warned_of(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    precision: str,
    warned: bool,  # noqa: FBT001
):
    """fp16 weights on a CPU are slower, and the log says so once at start (field failure 55)."""
    caplog.set_level(logging.WARNING)
    load(tmp_path, precision=precision)
    assert ("fp16" in caplog.text) == warned


# --- refused at start ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 3, 17, 64])
def test_a_frozen_shape_is_refused(tmp_path: Path, tokens: int):
    """Declared dynamic axes are not trusted: every probe shape has to run (field failure 47)."""
    error = refused(tmp_path, frozen_tokens=tokens)
    assert error.reason == "MODEL_SHAPE"
    assert "does not run" in error.message


def test_a_non_finite_probe_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A precision that overflows on this device does not start (field failure 53)."""
    model = load(tmp_path)
    monkeypatch.setattr(model.session, "run", lambda ids, _mask: np.full((len(ids), DIMENSION), np.inf, np.float32))
    with pytest.raises(Misconfigured, match="on cpu in fp32") as caught:
        self_test(model)
    assert caught.value.reason == "MODEL_NON_FINITE"


def test_the_probes_cover_single_pair_full_and_mixed_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The batches that are run are (1, 3), (2, 17), (3, limit) and one of three lengths (field failures 47 and 53)."""
    model, masks = load(tmp_path), list[list[int]]()
    run = model.session.run
    monkeypatch.setattr(model.session, "run", lambda ids, mask: (masks.append([*mask.sum(1)]), run(ids, mask))[1])
    self_test(model)
    assert masks[:4] == [[3], [17, 17], [64, 64, 64], [3, 17, 64]]
    assert PROBES == ((3,), (17, 17), (512, 512, 512), (3, 17, 512))


def test_a_mask_that_the_precision_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Padding that turns a short row into NaN shows in the batch of mixed lengths (field failure 53)."""
    model = load(tmp_path)

    def overflowing(_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return np.where(mask.all(1, keepdims=True), 0.5, np.nan) * np.ones((1, DIMENSION), np.float32)

    monkeypatch.setattr(model.session, "run", overflowing)
    with pytest.raises(Misconfigured, match=r"\(3, 64\) gives a non-finite") as caught:
        self_test(model)
    assert caught.value.reason == "MODEL_NON_FINITE"


@pytest.mark.parametrize("form", ["column", "tokens"])
@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_an_output_of_another_shape_is_refused(tmp_path: Path, kind: Kind, form: str):
    """A reranker without its head, or an encoder without pooling, does not start, and the shape is named (case 48)."""
    error = refused(tmp_path, kind, output_form=form)
    assert error.reason == "MODEL_SHAPE"
    assert "output of shape" in error.message


def test_an_output_of_another_name_is_refused(tmp_path: Path):
    """An export of the bare model has other outputs (field failure 48)."""
    error = refused(tmp_path, output="last_hidden_state")
    assert error.reason == "MODEL_OUTPUT"
    assert "last_hidden_state" in error.message


def test_an_unknown_input_is_refused_by_name(tmp_path: Path):
    """An input that nobody can feed ends the start, not the first call (field failure 29)."""
    error = refused(tmp_path, inputs=("input_ids", "attention_mask", "position_ids"))
    assert error.reason == "MODEL_INPUTS"
    assert "position_ids" in error.message


def test_an_input_of_another_type_is_refused(tmp_path: Path):
    """int32 instead of int64 ends the start (field failure 29)."""
    error = refused(tmp_path, input_type=TensorProto.INT32)
    assert error.reason == "MODEL_INPUTS"
    assert "tensor(int32)" in error.message


def test_a_manifest_that_names_other_inputs_is_refused(tmp_path: Path):
    """Graph and manifest have to agree on what is fed (field failure 29)."""
    assert refused(tmp_path, manifest={"inputs": ("input_ids",)}).reason == "MODEL_INPUTS"


@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_missed_golden_outputs_are_refused(tmp_path: Path, kind: Kind):
    """A model that answers otherwise than its reference does not start (field failures 49 and 54)."""
    error = refused(tmp_path, kind, golden_shift=0.01)
    assert error.reason == "GOLDEN_MISMATCH"
    assert "0.01" in error.message


def test_another_number_of_golden_tokens_is_refused(tmp_path: Path):
    """Vectors may be near by luck; token counts show another tokenizer (field failure 30)."""
    error = refused(tmp_path, golden_extra_tokens=-1)
    assert error.reason == "GOLDEN_MISMATCH"
    assert "tokenizer.json is of another model" in error.message


def test_the_tokenizer_is_also_checked_under_a_lower_limit(tmp_path: Path):
    """Golden rows within the lower limit are whole, so their token counts still have to agree."""
    with pytest.raises(Misconfigured, match="another model"):
        check_golden(load(tmp_path, limit=32, golden_extra_tokens=-1))


def test_golden_rows_that_do_not_run_are_refused(tmp_path: Path):
    """A golden text whose ids the table lacks ends the start with one line and no engine traceback (case 30)."""
    model = load(tmp_path, crash=True)
    golden = model.bundle.golden()
    row = golden.rows[0].model_copy(update={"text": CRASH})
    model.bundle.golden = lambda: golden.model_copy(update={"rows": (row,)})  # type: ignore[method-assign]
    with pytest.raises(Misconfigured) as caught:
        check_golden(model)
    assert caught.value.reason == "GOLDEN_MISMATCH"


def test_golden_rows_of_another_dimension_are_refused(tmp_path: Path):
    """Outputs that cannot even be compared are a mismatch too."""
    model = load(tmp_path)
    golden = model.bundle.golden()
    row = golden.rows[0].model_copy(update={"output": (1.0, 2.0)})
    model.bundle.golden = lambda: golden.model_copy(update={"rows": (row,)})  # type: ignore[method-assign]
    with pytest.raises(Misconfigured) as caught:
        check_golden(model)
    assert caught.value.reason == "GOLDEN_MISMATCH"


def test_a_non_finite_golden_output_is_refused(tmp_path: Path):
    """NaN is not within any tolerance (field failure 53)."""
    model = load(tmp_path, poison=True)
    golden = model.bundle.golden()
    row = golden.rows[0].model_copy(update={"text": POISON})
    model.bundle.golden = lambda: golden.model_copy(update={"rows": (row,)})  # type: ignore[method-assign]
    with pytest.raises(Misconfigured, match="nan"):
        check_golden(model)


def test_a_tokenizer_larger_than_the_table_is_refused(tmp_path: Path):
    """Pieces without a row would throw at run time, so they are refused at start (field failure 30)."""
    error = refused(tmp_path, extra_pieces=1)
    assert error.reason == "TOKENIZER_MISMATCH"
    assert "embedding table" in error.message


def test_a_padding_id_that_is_no_special_token_is_refused(tmp_path: Path):
    """Manifest and tokenizer have to mean the same token (field failure 30)."""
    error = refused(tmp_path, special_tokens=SPECIAL.model_copy(update={"pad": 9}))
    assert error.reason == "TOKENIZER_MISMATCH"
    assert "pad" in error.message


def test_a_limit_above_the_models_is_refused(tmp_path: Path):
    """Positions that the table does not have cannot be asked for (field failure 50)."""
    with pytest.raises(Misconfigured, match="max_tokens=65") as caught:
        load(tmp_path, limit=65)
    assert caught.value.reason == "MAX_TOKENS"


@pytest.mark.parametrize(("kind", "wanted"), [("encoder", "reranker"), ("reranker", "encoder")])
def test_a_bundle_of_the_other_kind_is_refused(tmp_path: Path, kind: Kind, wanted: Kind):
    """The two directories swapped is a mistake that names itself."""
    with pytest.raises(Misconfigured, match=f"kind {kind}, wanted {wanted}"):
        Model(BUILDERS[kind](tmp_path / kind), wanted, ON_CPU)


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_graph_that_is_none_is_refused_by_name(tmp_path: Path, device: Device):
    """Whatever onnxruntime throws at a file, an operator is told which file."""
    directory = tiny_encoder_bundle(tmp_path / "bundle").path
    (directory / "model.onnx").write_bytes(b"no graph at all")
    bundle = object.__new__(Bundle)
    bundle.path, bundle.manifest = directory, Bundle(tiny_encoder_bundle(tmp_path / "sound").path).manifest
    with pytest.raises(Misconfigured, match=r"model\.onnx") as caught:
        Session(bundle, SessionOptions(device=device, threads=1))
    assert caught.value.reason == "MODEL_UNREADABLE"
