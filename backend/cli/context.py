"""What a command works with: its streams, its state directory and its ways to the agent and the store.

Everything heavy is imported when it is first used: `status` must not wait for Arrow.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO, TypeVar

from pydantic import BaseModel, ValidationError

from backend.agent.client import AgentClient
from backend.agent.discovery import find_agent, find_or_start_agent
from backend.errors import UsageError
from backend.paths import StatePaths, state_paths

if TYPE_CHECKING:
    from backend.store import StoreReader

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Context:
    """The outside of a command. Tests give their own streams, agent and clock."""

    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    paths: StatePaths = field(default_factory=state_paths)
    find: Callable[..., AgentClient] = find_agent
    find_or_start: Callable[..., AgentClient] = find_or_start_agent
    sleep: Callable[[float], None] = time.sleep

    def agent(self, url: str | None) -> AgentClient:
        """The agent of a command that needs one; started, detached, when none runs and none is named."""
        return self.find_or_start(self.paths, started_by="cli", url=url)

    def reader(self) -> "StoreReader":
        """The store of this machine, read-only: what is stored can be read while no agent runs."""
        from backend.store import StoreReader

        return StoreReader(self.paths)

    def say(self, text: str) -> None:
        """A line for the person who waits. Never on stdout, which belongs to the result."""
        print(text, file=self.err, flush=True)

    def answer(self, document: Model, as_json: bool, render: Callable[[Model], str]) -> None:
        """The result: one line of JSON, or text for a person."""
        print(document.model_dump_json(by_alias=True) if as_json else render(document), file=self.out, flush=True)


@contextmanager
def interrupt_held() -> Iterator[None]:
    """Ctrl-C waits until the block ends: between a request and its answer nobody knows yet what there is to cancel.

    The handler is replaced, not the signal blocked: a library's thread that does not block it would let it through.
    """
    pressed = False

    def note(_signal: int, _frame: object) -> None:
        nonlocal pressed
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            signal.raise_signal(signal.SIGINT)


def request_of(model: type[Model], values: dict[str, object]) -> Model:
    """A request document from command-line values; UsageError names the option that does not fit.

    Options are called as their fields are, without the unit: `--duration` for `duration_s`.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])).removesuffix('_s').replace('_', '-') or 'options'}: "
            f"{item['msg'].removeprefix('Value error, ')}"
            for item in error.errors(include_url=False)
        )
        raise UsageError(problems) from error
