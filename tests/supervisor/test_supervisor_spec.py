"""From a request to the exact command line and environment."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from backend.errors import InputError, SlipstreamError, UsageError
from backend.paths import PROJECT_ROOT
from backend.schema.engine import EngineKind, LaunchRequest
from backend.supervisor.spec import LaunchSpec, prepare, redact_request

Fake = Callable[..., LaunchRequest]


@pytest.fixture
def spec_of(tmp_path: Path, checkpoint: Path) -> Callable[..., LaunchSpec]:
    def make(**fields: object) -> LaunchSpec:
        return prepare(LaunchRequest(**{"model": str(checkpoint), **fields}), 31234, tmp_path)

    return make


def test_the_reference_engine_runs_from_the_project_with_this_interpreter(
    spec_of: Callable[..., LaunchSpec], checkpoint: Path
) -> None:
    spec = spec_of(flags=["--max-running-requests", "4"])
    address = ["--host", "127.0.0.1", "--port", "31234"]
    flags = ["--max-running-requests", "4"]
    assert spec.argv == [sys.executable, "-m", "backend.reference", "--model-path", str(checkpoint), *address, *flags]
    assert (spec.cwd, spec.kind, spec.url) == (PROJECT_ROOT, EngineKind.REFERENCE, "http://127.0.0.1:31234")
    assert spec.warnings == ()


def test_a_named_interpreter_means_sglang_away_from_our_packages(
    spec_of: Callable[..., LaunchSpec], tmp_path: Path
) -> None:
    spec = spec_of(python=sys.executable)
    assert spec.argv[:3] == [sys.executable, "-m", "sglang.launch_server"]
    assert spec.cwd == tmp_path
    assert "not checked" in spec.warnings[0]


def test_a_source_tree_goes_to_the_front_of_pythonpath(spec_of: Callable[..., LaunchSpec], tmp_path: Path) -> None:
    package = tmp_path / "checkout" / "python" / "sglang"
    package.mkdir(parents=True)
    (package / "launch_server.py").touch()
    spec = spec_of(engine=str(tmp_path / "checkout"), python=sys.executable, env={"PYTHONPATH": "/elsewhere"})
    assert spec.env["PYTHONPATH"] == f"{tmp_path / 'checkout' / 'python'}{os.pathsep}/elsewhere"


def test_the_interpreter_of_a_site_packages_folder_is_found(spec_of: Callable[..., LaunchSpec], tmp_path: Path) -> None:
    site = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    (site / "sglang").mkdir(parents=True)
    (site / "sglang" / "launch_server.py").touch()
    (tmp_path / "env" / "bin").mkdir()
    python = tmp_path / "env" / "bin" / "python"
    python.symlink_to(sys.executable)
    assert spec_of(engine=str(site)).python == str(python)


def test_gpus_become_cuda_variables_in_bus_order(spec_of: Callable[..., LaunchSpec]) -> None:
    env = spec_of(gpus=["2", "0"]).env
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("2,0", "PCI_BUS_ID")


def test_the_agents_token_does_not_reach_the_engine(
    spec_of: Callable[..., LaunchSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_AGENT_TOKEN", "agent-secret")
    monkeypatch.setenv("SOMETHING", "inherited")
    environment = spec_of(env={"OMP_NUM_THREADS": "1"}).environment("e-1")
    assert "agent-secret" not in environment.values()
    assert (environment["SOMETHING"], environment["OMP_NUM_THREADS"]) == ("inherited", "1")
    assert environment["SLIPSTREAM_ENGINE_ID"] == "e-1"


def test_what_is_shown_names_inherited_settings_that_matter_and_no_secrets(
    spec_of: Callable[..., LaunchSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("SOMETHING", "private")
    shown = spec_of(env={"HF_TOKEN": "hf-secret", "A": "1"}).shown_env()
    assert (shown["NCCL_DEBUG"], shown["A"]) == ("INFO", "1")
    assert "hf-secret" not in shown.values()
    assert "SOMETHING" not in shown


def test_the_hash_names_the_configuration_and_not_its_address_or_spelling(spec_of: Callable[..., LaunchSpec]) -> None:
    one = spec_of(flags=["--max-running-requests", "4", "--mem-fraction-static=0.5"])
    same = spec_of(flags=["--mem-fraction-static", "0.5", "--max-running-requests=4"], port=30001)
    other = spec_of(flags=["--max-running-requests", "5", "--mem-fraction-static=0.5"])
    assert one.config_hash("1") == same.config_hash("1")
    assert len({one.config_hash("1"), one.config_hash("2"), other.config_hash("1")}) == 3


def test_a_flag_given_twice_is_a_warning(spec_of: Callable[..., LaunchSpec]) -> None:
    assert (
        "--max-running-requests" in spec_of(flags=["--max-running-requests=4", "--max-running-requests=5"]).warnings[0]
    )


def test_listening_for_everybody_is_a_warning_and_reached_through_loopback(spec_of: Callable[..., LaunchSpec]) -> None:
    spec = spec_of(host="0.0.0.0")
    assert spec.url == "http://127.0.0.1:31234"
    assert "anybody" in spec.warnings[0]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"model": "/no/such/model"}, InputError, "does not exist"),
        ({"kind": "sglang"}, UsageError, "--python INTERPRETER or --engine PATH"),
        ({"kind": "attach"}, UsageError, "attach --url"),
        ({"kind": "reference", "engine": "/x"}, UsageError, "built in"),
        ({"python": "/no/such/python"}, InputError, "not an executable file"),
        ({"engine": "/no/such/tree"}, InputError, "does not exist"),
        ({"engine": "/usr", "python": sys.executable}, InputError, "holds no sglang package"),
        ({"env": {"BAD NAME": "1"}}, UsageError, "'BAD NAME'"),
        ({"env": {"A": "1\n2"}}, UsageError, "line break"),
        ({"gpus": ["0"], "env": {"CUDA_VISIBLE_DEVICES": "1"}}, UsageError, "not both"),
        ({"flags": ["--no-such-flag"]}, UsageError, "--no-such-flag"),
        ({"python": sys.executable, "flags": ["--api-key", "[redacted]"]}, UsageError, "was not stored"),
    ],
)
def test_a_request_that_cannot_run_is_refused_with_the_reason(
    spec_of: Callable[..., LaunchSpec], fields: dict[str, object], error: type[SlipstreamError], message: str
) -> None:
    with pytest.raises(error) as caught:
        spec_of(**fields)
    assert message in str(caught.value)


def test_a_stored_request_holds_no_secret(fake: Fake) -> None:
    stored = redact_request(fake(flags=["--api-key", "hunter22", "--admin-api-key=hunter23"]))
    assert "hunter2" not in stored.model_dump_json()
