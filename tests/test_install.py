"""The wheel holds what a user needs, and works where nothing of this repository is."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import datakit
from support.house import PACKAGE, ROOT


def run(words: list[str], *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program outside of this repository."""
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd, timeout=60)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built with the locked build back end and no network."""
    place = tmp_path_factory.mktemp("wheel")
    words = [
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        str(place),
        str(ROOT),
    ]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=120)
    return next(place.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel, and sees this one's libraries but not this repository."""
    place = tmp_path_factory.mktemp("env")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=60)
    python = place / "bin" / "python"
    words = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *words], check=True, timeout=120)
    site = next(place.glob("lib/python*/site-packages"))
    # a directory named in a .pth file is searched, and its own .pth files (an editable datakit) are not followed
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return place


def test_the_wheel_holds_every_room_the_types_and_the_licence(wheel: Path) -> None:
    """Every source file and py.typed are in it; tests, docs and pipelines are not."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())

    sources = {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py")}
    meta = f"datakit-{datakit.__version__}.dist-info"
    assert sources | {"datakit/py.typed", f"{meta}/licenses/LICENSE"} <= names
    assert {name.partition("/")[0] for name in names} == {"datakit", meta}


def test_the_wheel_imports_where_nothing_else_is_installed(wheel: Path) -> None:
    """In an isolated interpreter without any library, `import datakit` works and the errors are there."""
    script = (
        f"import sys; sys.path.append({str(wheel)!r}); import datakit\n"
        "print(datakit.__version__, datakit.NoSpace.exit_code, any('site-packages' in path for path in sys.path))"
    )

    done = run([sys.executable, "-I", "-S", "-c", script], cwd=wheel.parent)

    assert (done.stdout, done.stderr) == (f"{datakit.__version__} 5 False\n", "")


def test_the_installed_command_answers(installed: Path, tmp_path: Path) -> None:
    """`datakit --version` and `datakit --help` work from the wheel, outside of this repository."""
    command = str(installed / "bin" / "datakit")

    version = subprocess.run(
        [command, "--version"], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60
    )
    text = subprocess.run([command, "--help"], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)

    assert (version.stdout, version.stderr, version.returncode) == (f"datakit {datakit.__version__}\n", "", 0)
    assert "pack" in text.stdout
    assert text.returncode == 0


def test_the_installed_package_knows_what_it_asks_for(installed: Path, tmp_path: Path) -> None:
    """Doctor reads the extras and lower bounds from the installed description, and finds this machine's libraries."""
    script = (
        "import datakit; from datakit.operate.doctor import look; from pathlib import Path\n"
        "assert 'site-packages' in datakit.__file__, datakit.__file__\n"
        "for each in look(Path()).requirements:\n"
        "    print(each.extra, each.library, each.minimum, each.version is not None)\n"
    )

    done = subprocess.run(
        [str(installed / "bin" / "python"), "-I", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=60,
    )

    rows = [line.split() for line in done.stdout.splitlines()]
    assert done.stderr == ""
    assert {row[0] for row in rows} == {"None", "s3", "train", "dvc", "ray", "gpu"}
    assert ["None", "pyarrow", "18", "True"] in rows
    assert ["s3", "obstore", "0.12", "True"] in rows
