"""Download progress as people see it."""

from io import StringIO

from rich.console import Console

from models.bars import download_bars


def test_one_bar_per_file():
    """Each file has one line with its name and how much of it is there."""
    out = StringIO()
    with download_bars(Console(file=out, width=100)) as on_bytes:
        on_bytes("config.json", 500, 500)
        on_bytes("model.safetensors", 1_000_000, 4_000_000)
        on_bytes("model.safetensors", 2_000_000, 4_000_000)
    lines = [line for line in out.getvalue().splitlines() if line.strip()]
    assert [line.split()[0] for line in lines] == ["config.json", "model.safetensors"]
    assert "500/500 bytes" in lines[0]
    assert "2.0/4.0 MB" in lines[1]
