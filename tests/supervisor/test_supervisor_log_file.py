"""Reading a log that grows: lines, cursors, and everything that a log should not contain."""

import os
from pathlib import Path

import pytest

from backend.supervisor.log_file import LogFile, prune_logs
from backend.thresholds import ENGINE_LOGS_KEPT_COUNT, LOG_CHUNK_LINES, LOG_LINE_SHOWN_CHARS
from tests.supervisor.supervisor_host import logs_of_launches


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_lines_are_read_when_they_are_complete(path: Path) -> None:
    log = LogFile(path)
    append(path, b"one\ntw")
    assert log.read_new() == ["one"]
    assert (log.partial, log.line_count) == ("tw", 1)
    append(path, b"o\n\nfour\n")
    assert log.read_new() == ["two", "", "four"]
    assert log.read_new() == []
    log.close()


def test_a_cursor_gives_what_is_new(path: Path) -> None:
    log = LogFile(path)
    append(path, b"a\nb\nc\n")
    log.read_new()
    first = log.chunk(0)
    assert (first.lines, first.first_line, first.cursor, first.reset) == (["a", "b", "c"], 1, 3, False)
    append(path, b"d\n")
    log.read_new()
    more = log.chunk(first.cursor)
    assert (more.lines, more.first_line, more.cursor) == (["d"], 4, 4)
    assert log.chunk(-2).lines == ["c", "d"]
    assert log.chunk(-99).first_line == 1
    log.close()


def test_a_cursor_of_another_log_starts_anew(path: Path) -> None:
    log = LogFile(path)
    append(path, b"a\n")
    log.read_new()
    chunk = log.chunk(7)
    assert (chunk.lines, chunk.reset) == (["a"], True)
    log.close()


def test_a_long_log_comes_in_pieces(path: Path) -> None:
    log = LogFile(path)
    append(path, b"".join(b"%d\n" % number for number in range(LOG_CHUNK_LINES + 5)))
    log.read_new()
    first = log.chunk(0)
    second = log.chunk(first.cursor)
    assert (len(first.lines), second.lines[0], len(second.lines)) == (LOG_CHUNK_LINES, str(LOG_CHUNK_LINES), 5)
    log.close()


def test_a_very_long_line_is_cut_for_display_and_keeps_its_ends_for_the_parser(path: Path) -> None:
    log = LogFile(path)
    append(path, b"head " + b"x" * 300_000)
    log.read_new()
    append(path, b" tail\nnext\n")
    lines = log.read_new()
    assert lines[0].startswith("head ")
    assert lines[0].endswith(" tail")
    assert len(lines[0]) <= 1 << 16
    shown = log.chunk(0).lines
    assert shown[0].startswith("head xxx")
    assert "more characters" in shown[0]
    assert len(shown[0]) < LOG_LINE_SHOWN_CHARS + 50
    assert shown[1] == "next"
    log.close()


def test_colours_invalid_bytes_and_redrawn_bars_are_made_readable(path: Path) -> None:
    log = LogFile(path)
    append(path, b"\x1b[31mred\x1b[0m \xff\xfe\n 10%|#\r 50%|##\r100%|###\r\n")
    assert log.read_new()[0] == "red \ufffd\ufffd"
    assert log.chunk(0).lines == ["red \ufffd\ufffd", "100%|###"]
    log.close()


def test_secrets_are_hidden_in_what_is_shown(path: Path) -> None:
    log = LogFile(path)
    append(path, b"server_args=ServerArgs(api_key='hunter22', port=1)\n")
    log.read_new()
    assert "hunter22" not in log.chunk(0).lines[0]
    log.close()


def test_a_file_that_is_not_there_yet_or_became_shorter_gives_nothing(path: Path) -> None:
    log = LogFile(path)
    assert log.read_new() == []
    append(path, b"a\nb\n")
    log.read_new()
    path.write_bytes(b"")
    assert log.read_new() == []
    assert log.line_count == 2
    log.close()


# ---- old logs


def test_the_newest_logs_are_kept_and_those_in_use_however_old(tmp_path: Path) -> None:
    paths = logs_of_launches(tmp_path, ENGINE_LOGS_KEPT_COUNT + 5)
    other = tmp_path / "notes.txt"
    other.touch()
    os.utime(other, (0, 0))
    prune_logs(tmp_path, {paths[1]})
    assert sorted(tmp_path.glob("*.log")) == [paths[1], *paths[5:]]
    assert other.exists()
    prune_logs(tmp_path, set())
    assert sorted(tmp_path.glob("*.log")) == paths[5:]


def test_pruning_a_folder_that_is_not_there_or_holds_what_cannot_be_removed_is_no_error(tmp_path: Path) -> None:
    prune_logs(tmp_path / "logs", set())
    paths = logs_of_launches(tmp_path, ENGINE_LOGS_KEPT_COUNT + 2)
    paths[0].unlink()
    paths[0].mkdir()
    os.utime(paths[0], (0, 0))
    prune_logs(tmp_path, set())
    assert sorted(tmp_path.glob("*.log")) == [paths[0], *paths[2:]]
