"""`/v1/completions`, `/v1/chat/completions` and `/v1/models` over the engine."""

from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from backend.modeltext import ChatError
from backend.reference.api import parse_body
from backend.reference.engine import Engine
from backend.reference.http import Json, event, read_body, whole
from backend.reference.limits import RefusedError
from backend.reference.openai_api import ChatBody, CompletionBody, OpenAiBody, choice, envelope, usage
from backend.reference.request import Request


class OpenAiRoutes:
    """One method per endpoint."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._model = engine.args.served_model_name

    async def models(self, _: HttpRequest) -> Response:
        """The list, of one."""
        return Json({"object": "list", "data": [self._card()]})

    async def model(self, http: HttpRequest) -> Response:
        """The one model by its name, which may hold slashes."""
        name = http.path_params["name"]
        if name != self._model:
            raise RefusedError(f"The model {name!r} does not exist; this engine serves {self._model!r}.", status=404)
        return Json(self._card())

    def _card(self) -> dict[str, object]:
        return {
            "id": self._model,
            "object": "model",
            "created": self._engine.created,
            "owned_by": "slipstream",
            "root": self._model,
            "parent": None,
            "max_model_len": self._engine.plan.context_length,
        }

    async def completions(self, http: HttpRequest) -> Response:
        """Text that continues a prompt."""
        body = parse_body(CompletionBody, await read_body(http), "/v1/completions")
        body.check()
        prompt = body.single()
        return await self._answer(http, body, self._engine.encode(prompt) if isinstance(prompt, str) else prompt)

    async def chat(self, http: HttpRequest) -> Response:
        """The assistant's next message."""
        body = parse_body(ChatBody, await read_body(http), "/v1/chat/completions")
        body.check()
        template = self._engine.chat_template
        if template is None:
            raise RefusedError("The checkpoint has no chat template; use /v1/completions.")
        try:
            prompt = template.render([m.document() for m in body.messages], body.chat_template_kwargs)
        except ChatError as error:
            raise RefusedError(f"The chat template cannot render these messages: {error}") from error
        return await self._answer(http, body, self._engine.encode(prompt))

    async def _answer(self, http: HttpRequest, body: OpenAiBody, prompt: list[int]) -> Response:
        params = body.params(body.limit or self._engine.room(prompt))
        request = self._engine.make_request(prompt, params, body.rid, body.stream)
        if body.stream:
            return StreamingResponse(self._events(body, request), media_type="text/event-stream")
        last = await whole(http, self._engine, request)
        chat = isinstance(body, ChatBody)
        text = {"message": _message(last.text)} if chat else {"text": last.text}
        answer = envelope(request, body.object_name, self._model, [choice(last.finish_reason, **text)])
        return Json({**answer, "usage": usage(request, len(last.ids)), "metadata": {"weight_version": "default"}})

    async def _events(self, body: OpenAiBody, request: Request) -> AsyncIterator[bytes]:
        chat = isinstance(body, ChatBody)
        if chat:
            yield self._chunk(body, request, None, {"delta": {"role": "assistant", "content": ""}}, 0)
        tokens = 0
        async for progress in self._engine.generate(request):
            tokens, last = len(progress.ids), progress.finish_reason
            if not chat:
                yield self._chunk(body, request, last, {"text": progress.new_text}, tokens)
                continue
            if progress.new_text:
                yield self._chunk(body, request, None, {"delta": {"content": progress.new_text}}, tokens)
            if last:
                yield self._chunk(body, request, last, {"delta": {}}, tokens)
        if body.usage_at_end:
            yield event({**envelope(request, body.chunk_name, self._model, []), "usage": usage(request, tokens)})
        yield b"data: [DONE]\n\n"

    def _chunk(
        self,
        body: OpenAiBody,
        request: Request,
        last: dict[str, Any] | None,
        content: dict[str, object],
        tokens: int,
    ) -> bytes:
        document = envelope(request, body.chunk_name, self._model, [choice(last, **content)])
        if body.usage_in_chunks:
            document["usage"] = usage(request, tokens)
        return event(document)


def _message(text: str) -> dict[str, object]:
    return {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None}
