"""A stand-in for an engine: writes a log, serves three routes, and misbehaves as `FAKE_ENGINE` (JSON) says.

log            lines to write, `delay_s` seconds apart; default: a short launch that becomes ready
hang           stop writing after the log and never become ready
exit_code      end with it after the log
child          start a child in the same session; `child_setsid`: in a session of its own, ignoring SIGTERM
helper         start this program with the argument 60, as a compiler would be
ignore_term    ignore SIGTERM
effective      what /server_info answers; `no_token`: /generate brings none; `slow_s`: /generate takes that long
"""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

LAUNCH = [
    "[2026-01-01 00:00:00] server_args=ServerArgs(model_path='m', api_key='hunter22')",
    "[2026-01-01 00:00:00] Init torch distributed begin.",
    "[2026-01-01 00:00:00] Init torch distributed ends. elapsed=0.00 s, mem usage=0.00 GB",
    "[2026-01-01 00:00:01] Load weight begin. avail mem=8.00 GB",
    "[2026-01-01 00:00:03] Load weight end. elapsed=2.00 s, type=Target, avail mem=7.50 GB, mem usage=0.50 GB.",
    "[2026-01-01 00:00:03] Load weight begin. avail mem=7.50 GB",
    "[2026-01-01 00:00:04] Load weight end. elapsed=1.00 s, type=DraftMTP, avail mem=7.25 GB, mem usage=0.25 GB.",
    "[2026-01-01 00:00:04] KV Cache is allocated. #tokens: 4096, K size: 0.50 GB, V size: 0.50 GB",
    "[2026-01-01 00:00:04] max_total_num_tokens=4096, max_running_requests=4, context_len=2048",
]
READY = "[2026-01-01 00:00:06] The server is fired up and ready to roll!"
CHILD = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(120)"


class Handler(BaseHTTPRequestHandler):
    plan: ClassVar[dict] = {}

    def do_GET(self) -> None:
        self._answer(
            {"version": "9.9.fake", "api_key": "hunter22", **self.plan.get("effective", {}), "internal_states": [{}]}
        )

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        time.sleep(self.plan.get("slow_s", 0))
        self._answer({"text": "x", "meta_info": {"completion_tokens": 0 if self.plan.get("no_token") else 4}})

    def _answer(self, body: dict) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        return


def main(argv: list[str]) -> None:
    signal.alarm(120)  # whatever happens to the test, nothing is left behind
    plan = json.loads(os.environ.get("FAKE_ENGINE", "{}"))
    if plan.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if plan.get("child") or plan.get("child_setsid"):
        command = [sys.executable, "-c", CHILD if plan.get("child_setsid") else "import time; time.sleep(120)"]
        subprocess.Popen(command, start_new_session=bool(plan.get("child_setsid")))
    if "helper" in plan:
        subprocess.Popen([plan["helper"], "60"])
    for line in plan.get("log", LAUNCH):
        print(line, flush=True)
        time.sleep(plan.get("delay_s", 0))
    if "exit_code" in plan:
        raise SystemExit(plan["exit_code"])
    if plan.get("hang"):
        time.sleep(120)
    host, port = argv[argv.index("--host") + 1], int(argv[argv.index("--port") + 1])
    Handler.plan = plan
    server = ThreadingHTTPServer((host, port), Handler)
    print(READY, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
