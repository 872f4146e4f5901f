"""The commands about stored runs, on a real store."""

import io
from pathlib import Path

import pytest

from backend.cli import Context, main
from backend.errors import AgentError, TokenError
from backend.paths import StatePaths
from backend.schema.run import Comparison, Exported, RunList, RunRow
from backend.store import Store, StoreReader
from tests.store.store_example import RUN_ID, store_whole_run

OTHER_ID = "20261130-231012-z9z9"


@pytest.fixture
def stored(tmp_home: Path) -> StatePaths:
    """A store with two runs; the second one has other tags and is pinned."""
    paths = StatePaths(tmp_home)
    with Store(paths) as store:
        store_whole_run(store)
        store_whole_run(store, OTHER_ID, tags=["plain"], note="second")
    return paths


def row(**changes: object) -> RunRow:
    known: dict[str, object] = {
        "id": RUN_ID,
        "started_at_utc": "2026-11-30T22:10:00.000Z",
        "model": "tiny",
        "engine": "reference 0.1.0",
        "levels": [],
        "verdict": "ok",
        "state": "finished",
    }
    return RunRow.model_validate(known | changes)


def ids(outcome) -> list[str]:
    return [run.id for run in RunList.model_validate(outcome.document).runs]


def test_without_any_run_the_list_is_empty_and_says_what_to_do(run):
    assert run("runs", "--json", lives=False).document == {"runs": []}
    assert "bench" in run("runs", lives=False).out


def test_runs_are_read_without_an_agent(run, stored, agent):
    outcome = run("runs", "--json", lives=False)
    assert (outcome.status, sorted(ids(outcome))) == (0, [RUN_ID, OTHER_ID])
    assert agent.calls == []


def test_the_list_shows_one_run_per_line_with_its_best_level(run, stored):
    lines = run("runs", "--tag", "plain", lives=False).out.splitlines()
    assert len(lines) == 2
    assert lines[0].split()[:2] == ["run", "started"]
    assert OTHER_ID in lines[1]
    assert "150.5" in lines[1]  # 75.25 tok/s per user at two users
    assert "3.00" in lines[1]
    assert "second" in lines[1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [("--tag plain", [OTHER_ID]), ("--note TRY", [RUN_ID]), ("--pin", []), ("--tag none", [])],
)
def test_the_list_is_chosen_by_tag_note_and_pin(run, stored, words, expected):
    assert ids(run("runs", *words.split(), "--json", lives=False)) == expected


def test_one_run_is_shown_by_a_prefix_of_its_id(run, stored):
    assert ids(run("runs", RUN_ID[:11], "--json", lives=False)) == [RUN_ID]


def test_a_run_is_changed_through_the_agent(run, agent):
    route = f"POST /v1/runs/{RUN_ID}"
    agent.on(route, row(pinned=True, tags=["a", "b"]))
    outcome = run("runs", RUN_ID, "--tag", "a", "--tag", "b", "--note", "kept", "--pin", "--json")
    assert ids(outcome) == [RUN_ID]
    assert agent.bodies[route] == {"note": "kept", "tags": ["a", "b"], "pinned": True}


def test_only_what_was_named_is_changed(run, agent):
    route = f"POST /v1/runs/{RUN_ID}"
    agent.on(route, row())
    run("runs", RUN_ID, "--unpin")
    assert agent.bodies[route] == {"note": None, "tags": None, "pinned": False}


def test_another_agents_runs_are_listed_there(run, agent):
    agent.on("GET /v1/runs?tag=a&pinned=true", RunList(runs=[row()]))
    assert ids(run("runs", "--agent", "http://far", "--tag", "a", "--pin", "--json")) == [RUN_ID]


@pytest.mark.parametrize("words", ["runs nope", "export nope", "compare nope nope"])
def test_a_run_that_does_not_exist_is_exit_1(run, stored, words):
    outcome = run(*words.split(), "--json", lives=False)
    assert (outcome.status, outcome.out) == (1, "")
    assert "nope" in outcome.err


def test_compare_prints_two_runs_side_by_side(run, stored):
    outcome = run("compare", RUN_ID, OTHER_ID, "--json", lives=False)
    assert outcome.status == 0
    assert Comparison.model_validate(outcome.document).a == RUN_ID
    text = run("compare", RUN_ID, OTHER_ID, lives=False).out
    assert f"A {RUN_ID}\nB {OTHER_ID}\nverdict: " in text
    assert "output_tok_s" in text


def test_an_exported_run_is_imported_on_another_machine(run, stored, tmp_path):
    outcome = run("export", RUN_ID, "--json", lives=False)
    exported = Exported.model_validate(outcome.document)
    file = tmp_path / f"{RUN_ID}.slipstream.zip"
    assert (exported.path, exported.bytes) == (file.name, file.stat().st_size)

    out, elsewhere = io.StringIO(), StatePaths(tmp_path / "elsewhere")

    def none_lives(*_: object) -> None:
        raise AgentError("no agent runs")

    context = Context(out=out, err=io.StringIO(), paths=elsewhere, find=none_lives)
    assert main(["import-run", str(file)], context) == 0
    assert out.getvalue() == f"run {RUN_ID}\n"
    assert StoreReader(elsewhere).run(RUN_ID).request_count == StoreReader(stored).run(RUN_ID).request_count


def test_an_export_that_cannot_be_written_leaves_nothing_behind(run, stored, tmp_path):
    outcome = run("export", RUN_ID, "-o", str(tmp_path / "absent" / "run.zip"), lives=False)
    assert outcome.status == 1
    assert "choose another place" in outcome.err
    assert list(tmp_path.glob("*.part")) == []


def test_import_goes_through_the_agent_that_lives(run, agent, tmp_path):
    (tmp_path / "run.zip").write_bytes(b"whole")
    agent.on("POST /v1/runs/import", b'{"run_id": "r7"}')
    assert run("import-run", "run.zip", "--json").document == {"run_id": "r7"}


@pytest.mark.parametrize("content", [None, b"", b"no zip at all"])
def test_a_file_that_is_no_export_is_exit_1(run, tmp_path, content):
    if content is not None:
        (tmp_path / "run.zip").write_bytes(content)
    outcome = run("import-run", "run.zip", lives=False)
    assert (outcome.status, outcome.out) == (1, "")
    assert "run.zip" in outcome.err or "export" in outcome.err


def test_an_agent_that_refuses_the_token_is_not_passed_by(tmp_home, tmp_path):
    """A second writer beside a live agent would be wrong."""

    def refused(*_: object) -> None:
        raise TokenError("wrong token")

    err = io.StringIO()
    context = Context(out=io.StringIO(), err=err, paths=StatePaths(tmp_home), find=refused)
    assert main(["import-run", str(tmp_path / "x.zip")], context) == 1
    assert err.getvalue() == "error: wrong token\n"
    assert not StatePaths(tmp_home).database.exists()
