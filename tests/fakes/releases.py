"""Real SGLang releases, installed once into a cache that outlives the run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

# Read once, before a test changes the environment.
CACHE = Path(os.environ.get("SLIPSTREAM_TEST_CACHE") or Path.home() / ".cache" / "slipstream-tests")
RELEASES = ("0.5.9", "0.5.12.post1", "0.5.20")
NEWEST = "0.5.23"


def installed(release):
    """Folder with this release, downloaded without its dependencies."""
    folder = CACHE / f"sglang-{release}"
    if not (folder / "done").exists():
        part = folder.with_name(f"{folder.name}.{os.getpid()}")
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-compile",
            "--target",
            str(part),
        ]
        subprocess.run([*command, f"sglang=={release}"], check=True, timeout=300)
        (part / "done").write_text("")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            part.rename(folder)
        except OSError:  # another test process was faster
            shutil.rmtree(part)
    return folder
