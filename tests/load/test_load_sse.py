"""Events out of bytes, wherever the transport cut them."""

from backend.load.sse import EventSplitter


def events(data: bytes, size: int) -> list[bytes]:
    splitter = EventSplitter()
    return [event for at in range(0, len(data), size) for event in splitter.feed(data[at : at + size])]


BODY = 'data: {"text":"a\u2028b\u0085c é"}\n\ndata: {"n":2}\n\ndata: [DONE]\n\n'.encode()
PAYLOADS = ['{"text":"a\u2028b\u0085c é"}'.encode(), b'{"n":2}', b"[DONE]"]


def test_events_are_the_same_for_every_size_of_piece() -> None:
    assert [size for size in range(1, len(BODY) + 1) if events(BODY, size) != PAYLOADS] == []


def test_events_are_the_same_for_every_position_of_one_cut() -> None:
    for at in range(len(BODY)):
        splitter = EventSplitter()
        assert splitter.feed(BODY[:at]) + splitter.feed(BODY[at:]) == PAYLOADS


def test_windows_line_ends_split_as_well_at_every_size_of_piece() -> None:
    body = BODY.replace(b"\n", b"\r\n")
    assert [size for size in range(1, len(body) + 1) if events(body, size) != PAYLOADS] == []


def test_comments_and_other_fields_are_no_events_and_data_lines_are_joined() -> None:
    body = b": keep-alive\n\nevent: x\ndata: 1\nid: 7\ndata:2\n\n\n\n"
    assert events(body, len(body)) == [b"1\n2"]


def test_an_event_that_did_not_end_is_not_given_out() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b'data: {"n":1}\n\ndata: {"n":') == [b'{"n":1}']
    assert splitter.pending == b'data: {"n":'
