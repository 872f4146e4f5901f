"""The checkpoint's own chat template and tokenizer, with what a load test says when they do not serve."""

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

from backend import modeltext
from backend.errors import InputError

Messages = list[dict[str, str]]
Render = Callable[[Messages], str]


def chat_renderer(model_dir: Path) -> Render | None:
    """A function from messages to the text that the model was trained on; None when the checkpoint has no template.

    InputError when the template is broken or refuses the messages.
    """
    try:
        template = modeltext.load_chat_template(model_dir)
    except InputError as error:
        raise InputError(f"{error}, or switch the chat template off") from error
    if template is None:
        return None

    def render(messages: Messages) -> str:
        try:
            return template.render(messages)
        except modeltext.ChatError as error:
            raise InputError(
                f"the chat template of {model_dir} cannot render the prompts ({error}); switch the chat template off"
            ) from error

    return render


def load_tokenizer(model_dir: Path | None) -> Tokenizer:
    """The checkpoint's tokenizer. InputError when there is no readable `tokenizer.json`."""
    if model_dir is None:
        raise InputError(
            "A prompt length needs the checkpoint's tokenizer, and the server's checkpoint is not on this machine; "
            "leave the length out, or give prompts that have the length you want"
        )
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"A prompt length needs a tokenizer, and there is no {path}; leave the length out")
    return modeltext.load_tokenizer(model_dir)
