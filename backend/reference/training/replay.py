"""Work that is launched once and replayed.

The model is small: launching its several thousand kernels one by one takes far longer than running them.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")


class Replayed(Generic[Result]):
    """`work`, which reads and writes tensors that stay where they are. On a GPU its kernels are captured as a CUDA
    graph; every call replays them and returns the same tensors, with new values."""

    def __init__(self, work: Callable[[], Result], device: torch.device) -> None:
        """Runs the work twice and captures it, on a GPU: what it writes must not matter yet."""
        self.work = work
        self.graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self._capture()

    def __call__(self) -> Result:
        if self.graph is None:
            return self.work()
        self.graph.replay()
        return self.result

    def _capture(self) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # libraries allocate their workspaces on first use, which a capture forbids
                self.work()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = self.work()
