"""What a worker is told, for tests."""

from backend.load.spec import Prompt, WorkerSpec
from backend.schema.load import BenchRequest


def make_spec(url: str, **request: object) -> WorkerSpec:
    """A spec with 20 prompts. Without other wishes: one level of one slot, four requests, no warm-up."""
    settings = {"concurrency": [1], "requests": 4, "warmup_requests": 0, **request}
    prompts = [Prompt(id=f"p{n}", text=f"text {n}", messages=[{"role": "user", "content": "q"}]) for n in range(20)]
    return WorkerSpec(
        run_id="run", load_id="load", url=url, request=BenchRequest.model_validate(settings), prompts=prompts
    )
