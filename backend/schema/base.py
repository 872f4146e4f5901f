"""The two bases of every document."""

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """An immutable answer. Unknown keys are ignored, so a newer agent can answer an older page."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, serialize_by_alias=True)


class Request(BaseModel):
    """An immutable question. Unknown keys are refused: a misspelt setting must not be dropped silently.

    Numbers are finite.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True, allow_inf_nan=False
    )
