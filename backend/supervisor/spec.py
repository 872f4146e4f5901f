"""From a launch request to the exact command line, environment and working directory.

Defaults: without a model the tiny checkpoint is served; without a kind the engine is SGLang when an engine tree or an
interpreter is named, else the reference engine.
"""

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from backend.checkpoint import require_checkpoint
from backend.engine_scan import scan_engine
from backend.errors import InputError, UsageError
from backend.flagwords import GivenFlag, check_flags, value_of, wrong_variable
from backend.paths import PROJECT_ROOT, TINY_CHECKPOINT
from backend.redact import REDACTED, redact_argv, redact_env
from backend.schema.engine import EngineKind, LaunchRequest

MARKER = "SLIPSTREAM_ENGINE_ID"

# Variables that change what an engine does or measures: stored with a run even when they were inherited.
_TELLING_PREFIXES = (
    "CUDA_",
    "FLASHINFER_",
    "HF_",
    "LD_LIBRARY_PATH",
    "MKL_",
    "NCCL_",
    "NVIDIA_",
    "OMP_",
    "PYTHONPATH",
    "PYTORCH_",
    "SGL",
    "TORCH",
    "TRITON_",
)
# The agent's own: of no use to an engine, and the token must not reach it.
_AGENT_ONLY = frozenset({"SLIPSTREAM_AGENT_TOKEN", "SLIPSTREAM_AGENT_URL"})


@dataclass(frozen=True)
class LaunchSpec:
    """Everything that is executed. `env` holds what the configuration sets; the rest is inherited from the agent."""

    kind: EngineKind
    model: str
    host: str
    port: int
    python: str
    flags: tuple[GivenFlag, ...]
    words: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    version: str | None
    warnings: tuple[str, ...]

    @property
    def argv(self) -> list[str]:
        module = "backend.reference" if self.kind is EngineKind.REFERENCE else "sglang.launch_server"
        address = ["--host", self.host, "--port", str(self.port)]
        return [self.python, "-m", module, "--model-path", self.model, *address, *self.words]

    @property
    def url(self) -> str:
        """Where a client on this host reaches it: a wildcard address is reached through loopback."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 compared, not bound
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def api_key(self) -> str | None:
        return value_of(self.flags, "--api-key")

    def environment(self, engine_id: str) -> dict[str, str]:
        """The complete environment of the process."""
        inherited = {name: value for name, value in os.environ.items() if name not in _AGENT_ONLY}
        # Unbuffered, so that a line is in the log when it is printed and not when a buffer is full.
        return {**inherited, "PYTHONUNBUFFERED": "1", **self.env, MARKER: engine_id}

    def shown_env(self) -> dict[str, str]:
        """What the configuration sets, and the inherited variables that can change a result; secrets redacted."""
        telling = {name: value for name, value in os.environ.items() if name.startswith(_TELLING_PREFIXES)}
        return redact_env({**telling, **self.env})

    def shown_argv(self) -> list[str]:
        return redact_argv(self.argv)

    def config_hash(self, version: str | None) -> str:
        """Names a configuration: kind, model, flags in any order, environment, engine version. The address is left out,
        and secrets too: they must not be recognisable by a hash."""
        flags = sorted(redact_argv([flag.name, *flag.values]) for flag in self.flags)
        content = [self.kind, self.model, flags, sorted(redact_env(self.env).items()), version]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def prepare(request: LaunchRequest, port: int, state_dir: Path) -> LaunchSpec:
    """Checks a request and completes it. Raises UsageError (flags, environment) and InputError (model, interpreter)."""
    try:
        return _prepare(request, port, state_dir)
    except (OSError, RuntimeError) as error:  # a path that is too long, not permitted, or of a user who does not exist
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"a path of this launch cannot be used: {reason}; check model, engine and interpreter"
        ) from error


def _prepare(request: LaunchRequest, port: int, state_dir: Path) -> LaunchSpec:
    kind = _kind(request)
    env = _environment(request)
    model = require_checkpoint(request.model or str(TINY_CHECKPOINT))
    _refuse_placeholders(request)
    if kind is EngineKind.REFERENCE:
        scan = scan_engine(kind)
        flags, warnings, version = check_flags(request.flags, scan), [], scan.version
        python, cwd = request.python or sys.executable, PROJECT_ROOT
    else:
        flags, version = check_flags(request.flags, None), None
        warnings = ["the flags were not checked against this SGLang: `scan` shows what it declares"]
        python, tree = _interpreter(request)
        if tree is not None:
            env = _with_tree(env, tree)
        cwd = state_dir  # neutral: Slipstream's own packages must not be importable by SGLang
    return LaunchSpec(
        kind=kind,
        model=str(model),
        host=request.host,
        port=port,
        python=_require_executable(python),
        flags=tuple(flags),
        words=tuple(request.flags),
        env=env,
        cwd=cwd,
        version=version,
        warnings=(*warnings, *_repeated(flags), *_exposed(request.host)),
    )


def redact_request(request: LaunchRequest) -> LaunchRequest:
    """The request as it may be stored and shown."""
    return request.model_copy(update={"flags": redact_argv(request.flags), "env": redact_env(request.env)})


def _kind(request: LaunchRequest) -> EngineKind:
    if request.kind is EngineKind.ATTACH:
        raise UsageError("kind attach is measured, never launched; use `attach --url URL`")
    if request.kind is not None:
        if request.kind is EngineKind.REFERENCE and request.engine is not None:
            raise UsageError("the reference engine is built in: --engine is for kind sglang")
        return request.kind
    return EngineKind.SGLANG if request.engine or request.python else EngineKind.REFERENCE


def _environment(request: LaunchRequest) -> dict[str, str]:
    for name, value in request.env.items():
        wrong = wrong_variable(name, value)
        if wrong:
            raise UsageError(wrong)
    if not request.gpus:
        return dict(request.env)
    if "CUDA_VISIBLE_DEVICES" in request.env:
        raise UsageError("give the GPUs either as --gpus or as CUDA_VISIBLE_DEVICES, not both")
    # CUDA counts the fastest device first unless told to use the bus order, which is the order NVML and doctor use.
    chosen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(request.gpus)}
    return {**chosen, **request.env}


def _refuse_placeholders(request: LaunchRequest) -> None:
    words = [*request.flags, *(f"{name}={value}" for name, value in request.env.items())]
    if any(REDACTED in word for word in words):
        raise UsageError("a secret of this configuration was not stored; give its value again in place of " + REDACTED)


def _interpreter(request: LaunchRequest) -> tuple[str, Path | None]:
    """The interpreter for SGLang and the tree that goes to PYTHONPATH, if any."""
    if request.engine is None:
        if request.python is None:
            raise UsageError("kind sglang needs --python INTERPRETER or --engine PATH; `doctor` lists what it finds")
        return request.python, None
    engine = Path(request.engine).expanduser().absolute()
    if not engine.exists():
        raise InputError(
            f"engine {engine} does not exist; give a source tree, a site-packages folder or an interpreter"
        )
    if engine.is_file():
        return str(engine), None
    tree = next(
        (t for t in (engine, engine / "python", engine.parent) if (t / "sglang/launch_server.py").is_file()), None
    )
    if tree is None:
        raise InputError(f"engine {engine} holds no sglang package (looked for sglang/launch_server.py)")
    python = request.python or _python_beside(tree)
    if python is None:
        raise UsageError(f"no interpreter belongs to {tree}; name one with --python INTERPRETER")
    return python, tree


def _python_beside(tree: Path) -> str | None:
    """The interpreter of a virtual environment whose site-packages `tree` is (`VENV/lib/python3.x/site-packages`)."""
    if tree.name != "site-packages" or len(tree.parents) < 3:
        return None
    python = tree.parents[2] / "bin" / "python"
    return str(python) if python.exists() else None


def _with_tree(env: dict[str, str], tree: Path) -> dict[str, str]:
    others = env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
    return {**env, "PYTHONPATH": f"{tree}{os.pathsep}{others}" if others else str(tree)}


def _require_executable(python: str) -> str:
    path = Path(python).expanduser()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise InputError(f"interpreter {python} is not an executable file; give its full path with --python")
    return str(path.absolute())  # not resolved: a virtual environment is known by the link's own place


def _repeated(flags: list[GivenFlag]) -> list[str]:
    names = [flag.name for flag in flags]
    return [
        f"{name} is given more than once; the last one counts"
        for name in sorted({n for n in names if names.count(n) > 1})
    ]


def _exposed(host: str) -> list[str]:
    if host in {"127.0.0.1", "localhost", "::1"}:
        return []
    return [f"the engine listens on {host}: anybody who reaches this machine can use it"]
