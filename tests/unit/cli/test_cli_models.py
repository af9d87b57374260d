"""`twostage models` where packages are missing."""

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a package look as if it were not installed."""

    def hide(package: str) -> None:
        real = builtins.__import__

        def fake(name: str, *arguments: Any, **options: Any) -> Any:
            if name.partition(".")[0] == package:
                raise ModuleNotFoundError(f"No module named '{package}'", name=package)
            return real(name, *arguments, **options)

        monkeypatch.setattr(builtins, "__import__", fake)

    return hide


def test_the_full_profile_names_the_extra_before_it_downloads(without: Callable[[str], None], tmp_path: Path) -> None:
    """Without torch one line says what to install, and nothing is made."""
    without("torch")
    result = CliRunner().invoke(app, ["models", "prepare", "--profile", "full", "--home", str(tmp_path / "home")])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: the package torch is missing",
        "  -> install the export extra: pip install 'twostage[export]'",
    ]
    assert not (tmp_path / "home").exists()


def test_an_empty_home_has_no_bundles(tmp_path: Path) -> None:
    """Nothing there is said, not shown as an empty table."""
    assert "no bundles" in CliRunner().invoke(app, ["models", "list", "--home", str(tmp_path)]).stdout
    assert CliRunner().invoke(app, ["models", "list", "--home", str(tmp_path), "--json"]).stdout == "[]\n"
    assert CliRunner().invoke(app, ["models", "verify", "--home", str(tmp_path)]).exit_code == 1


def test_a_damaged_manifest_is_listed_with_its_problem(tmp_path: Path) -> None:
    """A bundle that cannot be read does not hide the others, and the status says so."""
    broken = tmp_path / "bundles" / "demo" / "encoder"
    broken.mkdir(parents=True)
    (broken / "bundle.json").write_text("{}")
    result = CliRunner().invoke(app, ["models", "list", "--home", str(tmp_path)])
    assert result.exit_code == 1
    assert str(broken) in result.stdout.replace("\n", "")
    assert "problem" in result.stdout
