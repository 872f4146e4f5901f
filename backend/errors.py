"""Every error Slipstream raises on purpose.

SlipstreamError                 base: a message for a person, and the exit status of the CLI
├── UsageError                  our own command line or request is wrong (exit 2, HTTP 400)
├── InputError                  the thing asked about is missing or unreadable: model path, prompt file, run (1, 422)
│   └── ModelNotFoundError      no checkpoint of that name (launch failure class `model_not_found`)
├── NotFoundError               an id that does not exist: engine, load, run (exit 1, HTTP 404)
├── ConflictError               the state forbids it now: port taken, a load is running (exit 1, HTTP 409)
│   └── PortInUseError          the engine's port is taken (launch failure class `port_in_use`)
├── AgentError                  the agent cannot be reached or refused the token (exit 1, HTTP 502)
│   └── TokenError              the agent answered 401 (exit 1, HTTP 401)
├── EngineError                 the engine answered wrongly or went away (exit 1, HTTP 502)
└── StorageError                the store could not be read or written: disk full, damaged file (exit 1, HTTP 507)

A message says what happened, with which value, and what to do next. Foreign errors (httpx, sqlite3, OSError, NVML)
are translated into these at one boundary each, with `raise … from`.
"""

from typing import ClassVar


class SlipstreamError(Exception):
    """Base of the tree. `str(error)` is shown to people as it is."""

    exit_status: ClassVar[int] = 1
    http_status: ClassVar[int] = 500


class UsageError(SlipstreamError):
    """The command line or the request body is wrong."""

    exit_status = 2
    http_status = 400


class InputError(SlipstreamError):
    """A file or directory that was named is missing or cannot be used."""

    http_status = 422


class ModelNotFoundError(InputError):
    """The model that was named is no checkpoint on the engine's machine."""


class NotFoundError(SlipstreamError):
    """No engine, load or run has this id."""

    http_status = 404


class ConflictError(SlipstreamError):
    """The request is well formed but the present state forbids it."""

    http_status = 409


class PortInUseError(ConflictError):
    """Something listens on the port that the engine should have."""


class AgentError(SlipstreamError):
    """The agent cannot be reached, or answered with something that is no answer."""

    http_status = 502


class TokenError(AgentError):
    """The agent refused the bearer token."""

    http_status = 401


class EngineError(SlipstreamError):
    """The engine's HTTP side answered wrongly or went away."""

    http_status = 502


class StorageError(SlipstreamError):
    """The store could not be read or written."""

    http_status = 507
