"""Where a load test is sent."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LoadTarget:
    """A server to load. `engine_id` is None for a server that somebody else started: its caches are left alone.

    url        base URL, e.g. `http://127.0.0.1:30000`
    model_dir  checkpoint directory on this machine, for its chat template and tokenizer; None when unknown
    api_key    sent as a bearer token; never written to the spool
    """

    url: str
    model_dir: str | None = None
    api_key: str | None = None
    engine_id: str | None = None
