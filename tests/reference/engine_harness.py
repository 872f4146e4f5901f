"""Runs the engine's scheduler in the test's own thread, and the whole engine as a process."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import torch

from backend.modeltext import load_tokenizer
from backend.reference import loglines, server_args, worker
from backend.reference.config import TextConfig
from backend.reference.memory import plan_pools
from backend.reference.request import Request, SamplingParams
from backend.reference.scheduler import Scheduler
from backend.reference.training.random_checkpoint import write_random_checkpoint

ROOT = Path(__file__).resolve().parents[2]
# As the engine does: with more threads, a busy machine spends its time waiting for them.
torch.set_num_threads(1)

READY = "fired up and ready to roll"


def scheduler(directory, *flags, deliver=lambda outputs: None):
    """A scheduler with its worker, and nothing running yet."""
    args, _ = server_args.parse(["--model-path", str(directory), "--random-seed", "1", *flags])
    config = TextConfig.from_dir(directory)
    weights = worker.load_weights(config, args)
    mtp = worker.load_mtp_weights(config, args) if args.draft_steps else None
    plan, _ = plan_pools(config, args, 0, 4 << 30)
    runner = worker.Worker(config, args, weights, mtp, plan)
    return Scheduler(args, runner, load_tokenizer(Path(directory)), plan.kv_tokens, deliver, loglines)


def run_all(engine, prompts, limit_steps=20_000, **params):
    """Submit all prompts, run until all are finished, return the requests in order."""
    requests = [
        Request(f"r{n}", prompt, SamplingParams(**{"temperature": 0, **params}), stream=False)
        for n, prompt in enumerate(prompts)
    ]
    for request in requests:
        engine.submit(request)
    for _ in range(limit_steps):
        engine.run_once()
        if all(request.finished for request in requests):
            return requests
    raise AssertionError("the scheduler did not finish")


class EngineProcess:
    """`python -m backend.reference` in a process, ready when the constructor returns."""

    def __init__(self, log, directory, port, *flags, wait=True):
        self.log = log
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=30)
        command = [
            sys.executable,
            "-m",
            "backend.reference",
            "--model-path",
            str(directory),
            "--port",
            str(port),
            *flags,
        ]
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env={**os.environ})
        if wait:
            self.wait_ready()

    def wait_ready(self, seconds=40):
        deadline = time.monotonic() + seconds
        while READY not in self.text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"not ready:\n{self.text()}")
            time.sleep(0.05)

    def text(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    def post(self, path, **body):
        return self.client.post(path, json=body)

    def get(self, path, **kwargs):
        return self.client.get(path, **kwargs)

    def generate(self, text="import os\n", stream=False, **params):
        return self.post("/generate", text=text, stream=stream, sampling_params={"temperature": 0, **params})

    def wait_idle(self, seconds=10):
        deadline = time.monotonic() + seconds
        while self.get("/v1/loads").json()["loads"][0]["num_running_reqs"]:
            assert time.monotonic() < deadline, "requests still run"
            time.sleep(0.02)

    def end(self):
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=10)


@contextmanager
def engine_on_random_weights(folder, port, *flags):
    """An engine with MTP over a tiny NVFP4 checkpoint made in `folder`, gone at the end."""
    write_random_checkpoint(folder / "checkpoint", nvfp4=True)
    mtp = ("--speculative-algorithm", "NEXTN")
    engine = EngineProcess(folder / "engine.log", folder / "checkpoint", port, *mtp, *flags)
    try:
        yield engine
    finally:
        engine.end()
