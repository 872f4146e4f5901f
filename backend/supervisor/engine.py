"""One engine as the agent knows it: state, what was executed, what its log says, and who waits for a change."""

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from backend.clock import monotonic_s, utc_now
from backend.schema.engine import EngineKind, EngineState, EngineStatus, Failure, LaunchRequest, LedgerItem
from backend.supervisor.launch_log import LaunchLog, log_time_s
from backend.supervisor.log_file import LogFile
from backend.supervisor.process_tree import ProcessTree
from backend.supervisor.procfs import ProcessId, boot_id, command_line
from backend.supervisor.records import EngineRecord, RecordedProcess
from backend.supervisor.spec import LaunchSpec, redact_request
from backend.supervisor.state import transition


@dataclass
class Engine:
    """Mutable, owned by one task of the supervisor; everybody else reads `status()`."""

    id: str
    kind: EngineKind
    model: str
    host: str
    port: int
    url: str
    argv: list[str]
    env: dict[str, str]
    request: LaunchRequest | None
    log_path: Path
    state: EngineState = EngineState.STARTING
    api_key: str | None = None
    version: str | None = None
    config_hash: str = ""
    warnings: list[str] = field(default_factory=list)
    adopted: bool = False
    spec: LaunchSpec | None = None  # None for an adopted engine: it is not started again
    since: str = field(default_factory=utc_now)
    started_at_utc: str = field(default_factory=utc_now)
    launched_s: float = field(default_factory=monotonic_s)  # when it was asked for
    process_started_s: float = 0.0
    ended_s: float | None = None
    ready_seconds: float | None = None
    alarms: list[str] = field(default_factory=list)
    failure: Failure | None = None
    effective: dict[str, object] = field(default_factory=dict)
    own_ledger: dict[str, LedgerItem] = field(default_factory=dict)
    memory_before: Mapping[str, int] = field(default_factory=dict)
    oom_kills_before: int | None = None
    tree: ProcessTree | None = None
    essential: frozenset[ProcessId] = frozenset()
    lost: list[ProcessId] = field(default_factory=list)
    stop_requested: bool = False
    last_output_s: float = field(default_factory=monotonic_s)
    port_claim: socket.socket | None = None  # held from the choice of the port until the engine itself listens

    def __post_init__(self) -> None:
        self.file = LogFile(self.log_path)
        self.log = LaunchLog()
        self.wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._log_clock_s = 0.0

    def release_port(self) -> None:
        """The engine listens, or never will: the port speaks for itself again."""
        if self.port_claim is not None:
            self.port_claim.close()
            self.port_claim = None

    # ---- state

    @property
    def has_ended(self) -> bool:
        return self.state.ended

    def move(self, target: EngineState) -> None:
        """To another state, which is refused when it is no legal move."""
        self.state = transition(self.state, target)
        self.since = utc_now()
        if self.has_ended:
            self.ended_s = monotonic_s()
        self.touch()

    def touch(self) -> None:
        """Tells whoever waits that something is different now."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self, timeout_s: float) -> None:
        """Returns at the next change, or after `timeout_s`."""
        await _wait(self._changed, timeout_s)

    async def pause(self, seconds: float) -> None:
        """Sleeps, unless a process ends or a stop is asked for."""
        if await _wait(self.wake, seconds):
            self.wake.clear()

    def alarm(self, text: str) -> None:
        if text not in self.alarms:
            self.alarms.append(text)
            self.touch()

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)
            self.touch()

    # ---- processes

    def watch(self, root: ProcessId, recorded: list[ProcessId] | None = None) -> None:
        self.tree = ProcessTree(root, self._process_ended, recorded or [])

    @property
    def root_ended(self) -> bool:
        return self.tree is not None and self.tree.root_ended

    def _process_ended(self, process: ProcessId) -> None:
        if process in self.essential:
            self.lost.append(process)
        self.wake.set()

    # ---- log

    def read_log(self) -> bool:
        """Takes in what the engine wrote. Bounded per call: True means that there may be more."""
        size = self.file.size_bytes
        first = self.file.line_count + 1
        for number, line in enumerate(self.file.read_new(), start=first):
            self.log.feed(number, line, self._read_at(line))
        if self.file.size_bytes > size:
            self.last_output_s = monotonic_s()
            self.log.feed_partial(self.file.partial)
        return self.file.size_bytes > size

    async def read_whole_log(self) -> None:
        """Until the present end of the file: for a log that is no longer written, or to catch up."""
        while self.read_log():
            await asyncio.sleep(0)

    def _read_at(self, line: str) -> float:
        """When a line was written. An adopted engine's lines were written before anybody read them, so the log's own
        clock counts there; all its phases then are on that clock."""
        if not self.adopted:
            return monotonic_s()
        self._log_clock_s = log_time_s(line) or self._log_clock_s
        return self._log_clock_s

    # ---- documents

    def status(self) -> EngineStatus:
        """`elapsed_s`: seconds since the launch was asked for, until the end. `ready_seconds`: until the smoke request
        was answered, counted from the start of the process."""
        end = self.ended_s if self.ended_s is not None else monotonic_s()
        return EngineStatus(
            id=self.id,
            state=self.state,
            kind=self.kind,
            url=self.url,
            model=self.model,
            version=self.version,
            pid=self.tree.root.pid if self.tree else None,
            argv=self.argv,
            env=self.env,
            config_hash=self.config_hash,
            request=self.request,
            since=self.since,
            started_at_utc=self.started_at_utc,
            elapsed_s=round(max(0.0, end - self.launched_s), 3),
            ready_seconds=self.ready_seconds,
            phases=self.log.phases(),
            effective=self.effective,
            ledger={**self.log.ledger(), **self.own_ledger},
            warnings=list(self.warnings),
            alarms=list(self.alarms),
            failure=self.failure,
            log=str(self.log_path),
            adopted=self.adopted,
        )

    def record(self) -> EngineRecord | None:
        """What the next agent needs to find this engine; None while no process runs."""
        if self.tree is None:
            return None
        root = self.tree.root
        relatives = [RecordedProcess(pid=p.pid, start_ticks=p.start_ticks) for p in self.tree.recorded if p != root]
        return EngineRecord(
            boot_id=boot_id(),
            root=RecordedProcess(pid=root.pid, start_ticks=root.start_ticks),
            relatives=relatives,
            host=self.host,
            port=self.port,
            launched_s=self.launched_s,
            process_started_s=self.process_started_s,
            memory_before=dict(self.memory_before),
            status=self.status(),
        )


def new_engine(engine_id: str, spec: LaunchSpec, request: LaunchRequest, logs: Path) -> Engine:
    """An engine that is about to be started."""
    return Engine(
        id=engine_id,
        kind=spec.kind,
        model=spec.model,
        host=spec.host,
        port=spec.port,
        url=spec.url,
        argv=spec.shown_argv(),
        env=spec.shown_env(),
        request=redact_request(request),
        spec=spec,
        log_path=logs / f"{engine_id}.log",
        api_key=spec.api_key,
        version=spec.version,
        warnings=list(spec.warnings),
        config_hash=spec.config_hash(spec.version),
    )


def adopted_engine(record: EngineRecord) -> Engine:
    """An engine that an earlier agent started, with what that agent knew about it."""
    known = record.status
    return Engine(
        id=known.id,
        kind=known.kind,
        model=known.model,
        host=record.host,
        port=record.port,
        url=known.url,
        argv=known.argv,
        env=known.env,
        request=known.request,
        log_path=Path(known.log or "/dev/null"),
        state=known.state,
        version=known.version,
        config_hash=known.config_hash,
        warnings=list(known.warnings),
        alarms=list(known.alarms),
        adopted=True,
        since=known.since,
        started_at_utc=known.started_at_utc,
        launched_s=record.launched_s,
        process_started_s=record.process_started_s,
        ready_seconds=known.ready_seconds,
        effective=known.effective,
        own_ledger={name: item for name, item in known.ledger.items() if item.line is None},
        memory_before=record.memory_before,
    )


def api_key_of(pid: int) -> str | None:
    """The key is not stored; the process itself still has it on its command line."""
    words = command_line(pid)
    for index, word in enumerate(words):
        if word.startswith("--api-key="):
            return word.partition("=")[2]
        if word == "--api-key" and index + 1 < len(words):
            return words[index + 1]
    return None


async def _wait(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return False
    return True
