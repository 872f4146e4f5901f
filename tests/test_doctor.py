import json
import os
import socket
import time
from pathlib import Path

import pytest

from backend import __version__
from backend.doctor import choose_engine, doctor
from backend.doctor import findings as look
from backend.doctor.environments import Machine, find_engines
from backend.errors import StorageError, UsageError
from backend.paths import StatePaths
from backend.schema.engine import EngineKind
from backend.schema.host import AgentInfo, EngineEnvironment, Gpu
from backend.telemetry import Nvml

ALL_IDS = [
    "python",
    "platform",
    "nvidia_driver",
    "gpus",
    "torch",
    "checkpoint",
    "engines",
    "agent",
    "state_dir",
    "disk",
    "store",
    "ports",
    "shm",
    "nofile",
]


def agent_info(**changes: object) -> AgentInfo:
    known: dict[str, object] = {
        "version": __version__,
        "pid": 4711,
        "url": "http://127.0.0.1:9",
        "boot": "b",
        "host": "gpu-host",
        "state_dir": "/x",
        "started_at_utc": "2026-01-01T00:00:00.000Z",
        "started_by": "cli",
    }
    return AgentInfo.model_validate(known | changes)


def machine_in(tmp_path: Path, **environ: str) -> Machine:
    return Machine(environ=environ, home=tmp_path / "home", root=tmp_path / "root", prefix=tmp_path / "active")


def make_environment(prefix: Path, *, version: str | None = "1.2.3", source: str | None = None) -> Path:
    """An environment with SGLang's files and an interpreter that fails when it is executed."""
    packages = prefix / "lib" / "python3.12" / "site-packages"
    (packages / "sglang").mkdir(parents=True)
    (prefix / "bin").mkdir()
    python = prefix / "bin" / "python"
    python.write_text("#!/bin/sh\nexit 99\n")
    python.chmod(0o755)
    if version is not None:
        info = packages / f"sglang-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: sglang\nVersion: {version}\n\nVersion: in prose\n"
        )
    if source is not None:
        (packages / "sglang" / "version.py").write_text(source)
    return python


def sglang_of(machine: Machine) -> list[EngineEnvironment]:
    return [engine for engine in find_engines(machine) if engine.kind == "sglang"]


# ---- the document


def test_every_finding_is_there_once_and_each_problem_has_a_remedy(tmp_path):
    answer = doctor(StatePaths(tmp_path), None, nvml=Nvml(None), machine=machine_in(tmp_path))
    assert [finding.id for finding in answer.findings] == ALL_IDS
    assert [f.id for f in answer.findings if f.status != "ok" and not f.remedy] == []
    assert answer.gpus == []


def test_it_takes_less_than_a_third_of_a_second(tmp_path):
    doctor(StatePaths(tmp_path), None)
    started_s = time.process_time()
    doctor(StatePaths(tmp_path), None)
    assert time.process_time() - started_s < 0.3


def test_it_changes_nothing_on_disk(tmp_path):
    doctor(StatePaths(tmp_path / "never" / "made"), None, nvml=Nvml(None), machine=machine_in(tmp_path))
    assert list(tmp_path.iterdir()) == []


# ---- engine environments


def test_an_installed_sglang_is_found_with_its_version_and_never_executed(tmp_path):
    python = make_environment(tmp_path / "home" / "venvs" / "nightly")
    (tmp_path / "home" / "venvs" / "nightly" / "lib/python3.12/site-packages/sglang/version.py").touch()
    (found,) = sglang_of(machine_in(tmp_path))
    assert (found.python, found.version) == (str(python), "1.2.3")
    assert found.root == str(tmp_path / "home" / "venvs" / "nightly" / "lib/python3.12/site-packages")


@pytest.mark.parametrize(
    "place", ["home/.venv", "home/venvs/a", "home/miniconda3/envs/a", "root/opt/sglang", "active", "root/usr/local"]
)
def test_the_usual_places_are_searched(tmp_path, place):
    make_environment(tmp_path / place)
    assert [found.version for found in sglang_of(machine_in(tmp_path))] == ["1.2.3"]


def test_interpreters_named_in_the_environment_come_first(tmp_path):
    named = make_environment(tmp_path / "srv" / "one", version="7.0")
    make_environment(tmp_path / "srv" / "two", version="8.0")
    make_environment(tmp_path / "home" / "venvs" / "a", version="1.0")
    places = os.pathsep.join([str(named), str(tmp_path / "srv" / "two"), str(tmp_path / "srv" / "absent")])
    found = sglang_of(machine_in(tmp_path, SLIPSTREAM_ENGINE_PYTHON=places))
    assert [engine.version for engine in found] == ["7.0", "8.0", "1.0"]


def test_one_environment_reached_by_two_ways_is_listed_once(tmp_path):
    make_environment(tmp_path / "home" / "venvs" / "a")
    machine = machine_in(tmp_path, VIRTUAL_ENV=str(tmp_path / "home" / "venvs" / "a"))
    assert len(sglang_of(machine)) == 1


def test_an_editable_install_points_to_its_source_tree(tmp_path):
    make_environment(tmp_path / "active")
    packages = tmp_path / "active" / "lib/python3.12/site-packages"
    (packages / "sglang").rmdir()
    tree = tmp_path / "src dir" / "python"
    (tree / "sglang").mkdir(parents=True)
    url = {"url": tree.as_uri(), "dir_info": {"editable": True}}  # the blank is written as %20
    (packages / "sglang-1.2.3.dist-info" / "direct_url.json").write_text(json.dumps(url))
    (found,) = sglang_of(machine_in(tmp_path))
    assert (found.root, found.version) == (str(tree), "1.2.3")


def test_a_tree_without_metadata_tells_its_version_in_its_source(tmp_path):
    make_environment(tmp_path / "active", version=None, source="__version__ = version = '4.5.6'\n")
    assert [found.version for found in sglang_of(machine_in(tmp_path))] == ["4.5.6"]


def test_an_environment_without_sglang_is_none(tmp_path):
    make_environment(tmp_path / "active", version=None)
    assert sglang_of(machine_in(tmp_path)) == []


def test_the_reference_engine_is_found_where_torch_is_installed(tmp_path):
    reference = find_engines(machine_in(tmp_path))[0]
    assert (reference.kind, reference.version) == ("reference", __version__)


# ---- single findings


@pytest.mark.parametrize(("version", "status"), [((3, 10), "fail"), ((3, 11), "ok"), ((3, 13), "warn")])
def test_only_the_tested_python_is_ok(version, status):
    assert look.python(version).status == status


def test_engines_need_linux():
    assert look.operating_system("Darwin").status == "fail"
    assert look.operating_system("Linux").status == "ok"


def test_no_driver_is_absent_and_a_broken_one_a_warning():
    assert look.nvidia_driver("no NVIDIA driver on this machine", None).status == "absent"
    assert look.nvidia_driver("the NVIDIA driver was upgraded while it ran: reboot this machine", None).status == "warn"
    assert look.nvidia_driver(None, "580.1").message == "NVIDIA driver 580.1"


def test_equal_gpus_are_counted():
    cards = [Gpu(index=i, uuid=f"GPU-{i}", name="NVIDIA H200", memory_bytes=141 << 30) for i in range(8)]
    cards.append(Gpu(index=8, uuid="GPU-8", name="NVIDIA GB10"))
    assert look.gpus(cards).message == "8 × NVIDIA H200, 141 GiB, 1 × NVIDIA GB10, memory unknown"


def write_checkpoint(directory: Path) -> Path:
    """One tensor of 4 bytes: 8 bytes of length, the header, the data."""
    directory.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (directory / name).write_text("{}")
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "__metadata__": {}}).encode()
    file = directory / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return file


def test_a_whole_checkpoint_is_ok(tmp_path):
    write_checkpoint(tmp_path / "tiny")
    assert look.checkpoint(tmp_path / "tiny").status == "ok"


def test_a_checkpoint_cut_short_or_without_a_file_fails_and_a_missing_one_is_absent(tmp_path):
    file = write_checkpoint(tmp_path / "tiny")
    file.write_bytes(file.read_bytes()[:-1])
    assert "cut short" in look.checkpoint(tmp_path / "tiny").message
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n")
    assert look.checkpoint(tmp_path / "tiny").status == "fail"
    file.unlink()
    (tmp_path / "tiny" / "config.json").unlink()
    assert look.checkpoint(tmp_path / "tiny").message.endswith("config.json is missing, *.safetensors is missing")
    assert look.checkpoint(tmp_path / "absent").status == "absent"


def test_an_agent_of_another_version_is_a_warning():
    assert look.agent(None).status == "absent"
    assert look.agent(agent_info()).status == "ok"
    other = look.agent(agent_info(version="0.0.9"))
    assert other.status == "warn"
    assert "4711" in other.remedy


def test_a_state_directory_that_is_a_file_fails(tmp_path):
    (tmp_path / "state").write_text("")
    assert look.state_directory(StatePaths(tmp_path / "state")).status == "fail"
    assert look.state_directory(StatePaths(tmp_path / "new")).message.endswith("(made at first use)")


def test_a_store_is_absent_counted_or_damaged(tmp_path):
    paths = StatePaths(tmp_path)
    assert look.store(paths, None, lambda: 1).status == "absent"
    paths.database.touch()
    assert look.store(paths, None, lambda: 1).message == f"1 run in {paths.database}"

    def damaged() -> int:
        raise StorageError("slipstream.db is damaged")

    assert look.store(paths, None, damaged).status == "fail"
    full = look.store(paths, agent_info(store_error="disk full"), lambda: 1)
    assert (full.status, "disk full" in full.message) == ("fail", True)


def test_a_range_of_ports_that_are_all_taken_fails():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert look.engine_ports(first=port, last=port).status == "fail"
    assert look.engine_ports(first=port, last=port).status == "ok"


def test_few_open_files_are_a_warning():
    assert look.open_files((1024, 1 << 20)).status == "warn"
    assert "capped at 1024" in look.open_files((1024, 1024)).remedy
    assert look.open_files((65536, 65536)).status == "ok"


def test_shared_memory_that_is_not_mounted_is_absent(tmp_path):
    assert look.shared_memory(tmp_path / "shm").status == "absent"


def test_the_only_sglang_is_meant_where_none_is_named(tmp_path):
    machine = Machine({}, tmp_path / "home", tmp_path / "root", tmp_path / "prefix")
    assert choose_engine(None, machine) == (EngineKind.REFERENCE, None)
    first = sglang_environment(tmp_path / "home" / ".venv")
    assert choose_engine(None, machine) == (EngineKind.SGLANG, str(first))
    second = sglang_environment(tmp_path / "home" / "venvs" / "b")
    with pytest.raises(UsageError, match=r"--engine: .*venv.*venvs/b.*reference"):
        choose_engine(None, machine)
    assert choose_engine(str(second), machine) == (EngineKind.SGLANG, str(second))
    assert choose_engine("reference", machine) == (EngineKind.REFERENCE, None)


def sglang_environment(prefix):
    """An environment with SGLang in it; returns its interpreter."""
    package = prefix / "lib/python3.12/site-packages/sglang"
    package.mkdir(parents=True)
    (package / "version.py").write_text('__version__ = "9.9"\n')
    python = prefix / "bin" / "python"
    python.parent.mkdir()
    python.write_text("")
    python.chmod(0o755)
    return python
