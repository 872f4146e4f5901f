"""Request bodies of the three routes."""

from typing import Any

import orjson

from backend.load.spec import Prompt
from backend.schema.load import BenchRequest, Endpoint

PATHS = {
    Endpoint.GENERATE: "/generate",
    Endpoint.CHAT: "/v1/chat/completions",
    Endpoint.COMPLETIONS: "/v1/completions",
}


def body(request: BenchRequest, prompt: Prompt, model: str) -> bytes:
    """JSON body of one request. `model` is used by the OpenAI routes only."""
    if request.endpoint is Endpoint.GENERATE:
        sampling = {
            "max_new_tokens": request.output_len,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "ignore_eos": request.ignore_eos,
        }
        return orjson.dumps({"text": prompt.text, "sampling_params": sampling, "stream": True})
    content: dict[str, Any] = (
        {"messages": prompt.messages} if request.endpoint is Endpoint.CHAT else {"prompt": prompt.text}
    )
    return orjson.dumps(
        {
            "model": model,
            **content,
            "max_tokens": request.output_len,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "ignore_eos": request.ignore_eos,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
    )
