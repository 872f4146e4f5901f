"""Interpreters that can run an engine, found by looking at files. Nothing is imported and nothing is executed."""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from backend import __version__
from backend.paths import PROJECT_ROOT
from backend.schema.engine import EngineKind
from backend.schema.host import EngineEnvironment

ENGINE_PYTHON_VARIABLE = "SLIPSTREAM_ENGINE_PYTHON"

_CONDA_HOMES = (".conda", "miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba")
_VERSION_LINE = re.compile(r"^(?:__version__|version)\s*=.*?['\"]([^'\"]+)['\"]", re.MULTILINE)


@dataclass(frozen=True)
class Machine:
    """Where environments may lie. A test gives its own."""

    environ: Mapping[str, str]
    home: Path
    root: Path = Path("/")
    prefix: Path = Path(sys.prefix)

    @classmethod
    def here(cls) -> "Machine":
        return cls(os.environ, Path.home())


def find_engines(machine: Machine) -> list[EngineEnvironment]:
    """The reference engine if its torch is installed, then every SGLang, in the order in which they should be tried."""
    found = [reference] if (reference := _reference_engine()) else []
    seen: set[Path] = set()
    for prefix, python in _candidates(machine):
        if prefix in seen:
            continue
        seen.add(prefix)
        environment = _sglang_in(prefix, python)
        if environment is not None:
            found.append(environment)
    return found


def torch_is_installed() -> bool:
    """Looks for the package without importing it, which would take seconds."""
    return find_spec("torch") is not None


def _reference_engine() -> EngineEnvironment | None:
    if not torch_is_installed():
        return None
    return EngineEnvironment(
        kind=EngineKind.REFERENCE, python=sys.executable, version=__version__, root=str(PROJECT_ROOT)
    )


def _candidates(machine: Machine) -> Iterator[tuple[Path, Path | None]]:
    """(prefix of an environment, its interpreter if it was named), most explicit first."""
    for entry in machine.environ.get(ENGINE_PYTHON_VARIABLE, "").split(os.pathsep):
        if entry:
            path = Path(entry).expanduser()
            yield (path, None) if path.is_dir() else (path.parent.parent, path)
    yield machine.prefix, None
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if machine.environ.get(variable):
            yield Path(machine.environ[variable]), None
    yield machine.home / ".venv", None
    groups = [machine.home / "venvs", *(machine.home / name / "envs" for name in _CONDA_HOMES), machine.root / "opt"]
    for group in groups:
        for prefix in _directories(group):
            yield prefix, None
    system = machine.root / "usr"
    yield system / "local", None
    yield system, None


def _directories(parent: Path) -> list[Path]:
    try:
        return sorted(entry for entry in parent.iterdir() if entry.is_dir())
    except OSError:
        return []


def _sglang_in(prefix: Path, python: Path | None) -> EngineEnvironment | None:
    """The SGLang of one environment. Debian keeps what pip installs system-wide under `dist-packages`."""
    python = python or _interpreter(prefix)
    if python is None:
        return None
    for packages in sorted([*prefix.glob("lib/python3*/site-packages"), *prefix.glob("lib/python3*/dist-packages")]):
        metadata = next(iter(sorted(packages.glob("sglang-*.dist-info"))), None)
        root = _package_root(packages, metadata)
        if root is not None:
            version = _metadata_version(metadata) or _source_version(root)
            return EngineEnvironment(kind=EngineKind.SGLANG, python=str(python), version=version, root=str(root))
    return None


def _interpreter(prefix: Path) -> Path | None:
    names = [prefix / "bin" / "python", prefix / "bin" / "python3", prefix.parent / "bin" / "python3"]
    return next((name for name in names if os.access(name, os.X_OK)), None)


def _package_root(packages: Path, metadata: Path | None) -> Path | None:
    """The directory that holds the package `sglang`: site-packages, or the source tree of an editable install."""
    if (packages / "sglang" / "version.py").is_file():
        return packages
    if metadata is None:
        return None
    try:
        origin = json.loads((metadata / "direct_url.json").read_bytes())
        source = Path(unquote(urlsplit(origin["url"]).path))
    except (OSError, ValueError, KeyError, TypeError):
        return packages if (packages / "sglang").is_dir() else None
    return source if (source / "sglang").is_dir() else None


def _metadata_version(metadata: Path | None) -> str | None:
    if metadata is None:
        return None
    try:
        lines = (metadata / "METADATA").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("Version:")), None)


def _source_version(root: Path) -> str | None:
    try:
        match = _VERSION_LINE.search((root / "sglang" / "version.py").read_text(errors="replace"))
    except OSError:
        return None
    return match[1] if match else None
