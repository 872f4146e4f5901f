"""What a request may ask for, and how it is told that it asked for more."""

from backend.reference.request import SamplingParams


class RefusedError(Exception):
    """A request that is refused; `str(error)` goes to the client, with SGLang's name of the kind and an HTTP status."""

    def __init__(self, message: str, kind: str = "BadRequestError", status: int = 400) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status


def check_limits(prompt: list[int], params: SamplingParams, vocabulary: int, context: int, pool: int) -> None:
    """Raises RefusedError when the request cannot be served at any time."""
    if not prompt:
        raise RefusedError("The prompt is empty; send text or input_ids with at least one token.")
    bad = next((token for token in prompt if not 0 <= token < vocabulary), None)
    if bad is not None:
        raise RefusedError(f"input_ids contains {bad}, which is outside the vocabulary (0 to {vocabulary - 1}).")
    bad = next((token for token in params.stop_token_ids if not 0 <= token < vocabulary), None)
    if bad is not None:
        raise RefusedError(f"stop_token_ids contains {bad}, which is outside the vocabulary (0 to {vocabulary - 1}).")
    if params.min_new_tokens > params.max_new_tokens:
        raise RefusedError(
            f"The shortest output asked for, {params.min_new_tokens} tokens, is longer than the longest, "
            f"{params.max_new_tokens}; lower the one or raise the other."
        )
    total = len(prompt) + params.max_new_tokens
    if total > context:
        raise RefusedError(
            f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested a "
            f"total of {total} tokens: {len(prompt)} tokens from the input messages and {params.max_new_tokens} tokens "
            "for the completion. Please reduce the number of tokens in the input messages or the completion to fit "
            "within the limit."
        )
    if total > pool:
        raise RefusedError(
            f"The request needs {total} tokens of KV memory and the pool holds {pool}. Please reduce the request, or "
            "raise --max-total-tokens or --mem-fraction-static."
        )
