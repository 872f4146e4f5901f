"""Finds the SGLang package that a path means: a source tree, a site-packages directory, an environment, an interpreter.

Nothing is imported. An interpreter outside an environment is asked where it would find the package.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from backend.errors import InputError
from backend.thresholds import INTERPRETER_ANSWER_TIMEOUT_S

_WHERE = "import importlib.util as u; s = u.find_spec('sglang'); print(s.submodule_search_locations[0] if s else '')"
_VERSION = re.compile(r"""^(?:__version__|version)\b.*?=\s*(?:version\s*=\s*)?["']([^"']+)["']""", re.MULTILINE)


@dataclass(frozen=True)
class EngineRoot:
    """`package` is the folder `sglang`; `version` None where nothing beside it says one."""

    package: Path
    version: str | None


def locate(engine: str) -> EngineRoot:
    """Raises InputError when `engine` leads to no SGLang package."""
    path = Path(engine).expanduser().absolute()
    if not path.exists():
        raise InputError(f"engine {engine} does not exist; give a source tree, a site-packages directory or a python")
    if path.is_file():
        return _of_interpreter(path)
    try:
        found = next((p for p in _candidates(path) if (p / "srt").is_dir()), None)
    except OSError as error:
        raise InputError(f"engine {engine} cannot be read: {error.strerror}") from error
    interpreter = path / "bin" / "python"
    if found is None and interpreter.is_file():  # it may be installed elsewhere and only linked into the environment
        return _of_interpreter(interpreter)
    if found is None:
        raise InputError(
            f"engine {engine} holds no SGLang: there is no folder sglang/srt in it, in its python/ or in its "
            "site-packages; give the directory that holds the package sglang"
        )
    return EngineRoot(found, _version(found))


def _candidates(path: Path) -> list[Path]:
    installed = sorted(path.glob("lib/python3*/site-packages/sglang"))
    return [path / "sglang", path / "python" / "sglang", *installed, path, path / "srt" / ".."]


def _of_interpreter(path: Path) -> EngineRoot:
    environment = path.parent.parent
    for package in sorted(environment.glob("lib/python3*/site-packages/sglang")):
        if (package / "srt").is_dir():
            return EngineRoot(package, _version(package))
    if not os.access(path, os.X_OK):
        raise InputError(f"engine {path} is a file that cannot be run; give a directory or an interpreter")
    try:
        done = subprocess.run(
            [str(path), "-c", _WHERE],
            capture_output=True,
            text=True,
            timeout=INTERPRETER_ANSWER_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        raise InputError(f"engine {path} cannot be asked where SGLang is ({error}); give its directory") from error
    package = Path(done.stdout.strip() or "/nowhere")
    if done.returncode or not (package / "srt").is_dir():
        raise InputError(f"the interpreter {path} has no SGLang; give one that has, or the directory of its package")
    return EngineRoot(package, _version(package))


def _version(package: Path) -> str | None:
    """From the version module that a build writes, else from the installed distribution's name."""
    for name in ("_version.py", "version.py"):
        try:
            match = _VERSION.search((package / name).read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        if match:
            return match[1]
    found = sorted(package.parent.glob("sglang-*.dist-info"))
    return found[0].name.removeprefix("sglang-").removesuffix(".dist-info") if found else None
