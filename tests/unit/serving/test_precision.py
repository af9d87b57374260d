"""Which form is run."""

from typing import get_args

import pytest

from serving.bundle import GOLDEN_NAME, MODEL_NAME, TOKENIZER_NAME, FileEntry, Form, Manifest, Precision, SpecialTokens
from serving.errors import Misconfigured
from serving.precision import PrecisionChoice, choose

VNNI = ("avx512_vnni",)
ALL: tuple[Precision, ...] = ("fp32", "fp16", "int8")


def manifest(own: Precision, *further: Precision) -> Manifest:
    """A manifest of a bundle with these forms."""
    names = [MODEL_NAME, TOKENIZER_NAME, GOLDEN_NAME, *(f"model.{each}.onnx" for each in further)]
    return Manifest(
        kind="reranker",
        model_id="tiny",
        source="tests",
        revision="1",
        architecture="TinyModel",
        precision=own,
        weights=own,
        vocabulary=10,
        max_tokens=64,
        special_tokens=SpecialTokens(bos=0, eos=2, pad=1, unk=3),
        inputs=("input_ids", "attention_mask"),
        output="logits",
        tolerance=1e-3,
        forms={each: Form(file=f"model.{each}.onnx", weights=each, tolerance=0.1) for each in further},
        files=dict.fromkeys(names, FileEntry(size=1, sha256="0" * 64)),
    )


@pytest.mark.parametrize(
    ("device", "flags", "has", "expected"),
    [
        ("cuda", (), ALL, "fp16"),
        ("tensorrt", VNNI, ALL, "fp16"),
        ("cuda", VNNI, ("fp32", "int8"), "fp32"),
        ("cpu", VNNI, ALL, "int8"),
        ("cpu", (), ALL, "fp32"),
        ("cpu", VNNI, ("fp32", "fp16"), "fp32"),
        ("cpu", VNNI, ("fp16",), "fp16"),
        ("cpu", (), ("fp16", "fp32"), "fp32"),
    ],
)
def test_auto_takes_what_suits_the_device(
    device: str, flags: tuple[str, ...], has: tuple[Precision, ...], expected: Precision
):
    """fp16 belongs to GPUs, int8 to CPUs with instructions for it, and where the bundle has neither fp32 is run."""
    assert choose("auto", manifest(*has), device=device, int8_flags=flags) == expected


def test_auto_leaves_an_encoder_on_a_cpu_in_fp32():
    """Vectors stay in an index, so an encoder loses digits only where someone asks for it."""
    encoder = manifest(*ALL).model_copy(update={"kind": "encoder"})
    assert choose("auto", encoder, device="cpu", int8_flags=VNNI) == "fp32"
    assert choose("int8", encoder, device="cpu", int8_flags=VNNI) == "int8"
    assert choose("auto", encoder, device="cuda", int8_flags=()) == "fp16"


@pytest.mark.parametrize("own", ALL)
def test_without_a_wish_the_bundles_own_form_is_run(own: Precision):
    """None is whatever `model.onnx` is, on every device."""
    others = [each for each in ALL if each != own]
    assert choose(None, manifest(own, *others), device="cuda", int8_flags=VNNI) == own


@pytest.mark.parametrize("asked", ALL)
def test_a_form_by_name_is_that_form(asked: Precision):
    """A precision that was asked for is taken even where another would be faster."""
    assert choose(asked, manifest(*ALL), device="cpu", int8_flags=()) == asked


@pytest.mark.parametrize("asked", ["fp16", "int8"])
def test_a_form_that_is_not_there_is_refused(asked: PrecisionChoice):
    """The operator learns what the bundle has."""
    with pytest.raises(Misconfigured, match=f"precision={asked}.*only fp32$|only fp32;") as caught:
        choose(asked, manifest("fp32"), device="cpu", int8_flags=VNNI)
    assert caught.value.reason == "PRECISION_UNAVAILABLE"


def test_every_precision_can_be_asked_for():
    """The setting knows each precision that a manifest may have, and auto."""
    assert set(get_args(PrecisionChoice)) == {"auto", *get_args(Precision)}


def test_a_manifest_says_what_each_form_is():
    """The form of `model.onnx` and the further ones are told in the same terms."""
    both = manifest("fp32", "int8")
    assert both.precisions == ("fp32", "int8")
    assert both.form("fp32") == Form(file=MODEL_NAME, weights="fp32", tolerance=1e-3)
    assert both.form("int8").file == "model.int8.onnx"
