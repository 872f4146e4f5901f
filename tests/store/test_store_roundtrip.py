"""What goes into the store comes out of it."""

import re
from pathlib import Path

import pytest
from store_example import (
    HOST,
    RUN_ID,
    VERSIONS,
    begin,
    engine,
    level,
    live_points,
    record,
    records,
    request,
    store_whole_run,
    telemetry,
)

from backend.errors import ConflictError, InputError, NotFoundError, StorageError
from backend.paths import StatePaths
from backend.schema.load import LoadState
from backend.schema.run import RunPatch
from backend.store import Store, StoreReader, new_run_id


def by_key(items: list) -> list:
    return sorted(items, key=lambda one: (one.level, one.phase, one.index))


def test_a_run_is_read_back_as_it_was_written(store: Store, reader: StoreReader) -> None:
    store_whole_run(store)
    detail = reader.run(RUN_ID)
    assert detail.bench.request == request()
    assert detail.bench.engine == engine()
    assert detail.bench.levels == [level(1), level(2, failed=1)]
    assert detail.bench.state is LoadState.FINISHED
    assert (detail.host, detail.versions, detail.seed) == (HOST, VERSIONS, 7)
    assert detail.request_count == 10  # 1 warm-up + 2 levels x 4 + 1 failed
    assert detail.sample_tables == ["chunks.parquet", "live.parquet", "telemetry.parquet"]


def test_request_records_come_back_whole_with_their_chunks(store: Store, reader: StoreReader) -> None:
    store_whole_run(store)
    assert by_key(reader.records(RUN_ID)) == by_key(records())


def test_samples_come_back_with_their_notes(store: Store, reader: StoreReader) -> None:
    store_whole_run(store)
    assert reader.live(RUN_ID) == (live_points(), [0.9, 0.7, 0.4])
    assert reader.telemetry(RUN_ID) == (telemetry(), "no NVIDIA driver: host memory")


def test_a_run_without_samples_has_empty_ones(store: Store, reader: StoreReader) -> None:
    begin(store)
    assert reader.records(RUN_ID) == []
    assert reader.live(RUN_ID) == ([], [])
    assert reader.telemetry(RUN_ID) == ([], "")


def test_runs_survive_closing_and_opening(paths: StatePaths, reader: StoreReader) -> None:
    with Store(paths) as first:
        store_whole_run(first)
    with Store(paths):
        assert [row.id for row in reader.runs().runs] == [RUN_ID]
    assert by_key(reader.records(RUN_ID)) == by_key(records())  # and with nobody writing


def test_a_row_of_the_list_carries_the_headline_of_each_level(store: Store, reader: StoreReader) -> None:
    store_whole_run(store)
    [row] = reader.runs().runs
    assert (row.model, row.engine, row.verdict, row.config_hash) == ("tiny", "reference 0.1.0", "partial", "c0ffee")
    assert (row.tags, row.note, row.pinned) == (["mtp", "night"], "first Try", False)
    assert [(one.concurrency, one.output_tok_s, one.tok_s_user, one.accept_length) for one in row.levels] == [
        (1, 75.25, 80.0, 3.0),
        (2, 150.5, 80.0, 3.0),
    ]
    assert row.draft_steps == 3
    assert row == reader.run(RUN_ID).row


def test_adding_the_same_records_twice_changes_nothing(store: Store, reader: StoreReader) -> None:
    begin(store)
    store.add_records(RUN_ID, records())
    store.add_records(RUN_ID, records()[2:6])
    assert by_key(reader.records(RUN_ID)) == by_key(records())


def test_records_added_in_parts_are_joined(store: Store, reader: StoreReader) -> None:
    begin(store)
    for one in records():
        store.add_records(RUN_ID, [one])
    assert by_key(reader.records(RUN_ID)) == by_key(records())


def test_a_warm_up_and_a_measured_request_with_one_index_are_two_records(store: Store, reader: StoreReader) -> None:
    begin(store)
    store.add_records(RUN_ID, [record(0, phase="warmup"), record(0)])
    assert [one.phase for one in by_key(reader.records(RUN_ID))] == ["measure", "warmup"]


@pytest.mark.parametrize(
    ("state", "levels", "verdict"),
    [
        (LoadState.FINISHED, [level(1)], "ok"),
        (LoadState.FINISHED, [level(1), level(2, failed=1)], "partial"),
        (LoadState.FINISHED, [level(1, ok=0, failed=4)], "failed"),
        (LoadState.FINISHED, [], "failed"),
        (LoadState.FINISHED, [level(1, client="client_bound")], "client_bound"),
        (LoadState.STOPPED, [level(1)], "partial"),
        (LoadState.FAILED, [level(1)], "failed"),
        (LoadState.INTERRUPTED, [level(1)], "interrupted"),
        (LoadState.RUNNING, [], "running"),
    ],
)
def test_the_verdict_follows_from_state_and_levels(
    store: Store, reader: StoreReader, state: LoadState, levels: list, verdict: str
) -> None:
    begin(store)
    store.finish_run(RUN_ID, state, levels, None)
    assert reader.runs().runs[0].verdict == reader.run(RUN_ID).row.verdict == verdict


def test_a_begun_run_is_unfinished_until_it_ends(store: Store, reader: StoreReader) -> None:
    begin(store)
    assert store.unfinished() == [RUN_ID]
    assert reader.runs().runs[0].verdict == "running"
    store.finish_run(RUN_ID, LoadState.INTERRUPTED, [level(1)], "the agent died")
    assert store.unfinished() == []
    assert reader.run(RUN_ID).bench.failure == "the agent died"


def test_finishing_again_replaces_the_results(store: Store, reader: StoreReader) -> None:
    store_whole_run(store)
    store.finish_run(RUN_ID, LoadState.FAILED, [level(2)], "server_lost")
    detail = reader.run(RUN_ID)
    assert (detail.row.verdict, [one.concurrency for one in detail.bench.levels]) == ("failed", [2])


def test_runs_are_listed_newest_first_and_found_by_tag_note_and_pin(store: Store, reader: StoreReader) -> None:
    begin(store, "20261130-000001-aaaa", tags=["x"], note="Blue")
    begin(store, "20261130-000002-bbbb", tags=["x", "y"], note="red")
    store.patch_run("20261130-000002", RunPatch(pinned=True))

    def found(**query: object) -> list[str]:
        return [row.id[-4:] for row in reader.runs(**query).runs]  # type: ignore[arg-type]

    assert found() == ["bbbb", "aaaa"]
    assert (found(tag="x"), found(tag="y"), found(tag="z")) == (["bbbb", "aaaa"], ["bbbb"], [])
    assert (found(note="BLU"), found(note="e")) == (["aaaa"], ["bbbb", "aaaa"])
    assert (found(pinned=True), found(pinned=False)) == (["bbbb"], ["aaaa"])


def test_a_patch_changes_what_it_names_and_nothing_else(store: Store, reader: StoreReader) -> None:
    store_whole_run(store)
    before = reader.run(RUN_ID)
    row = store.patch_run(RUN_ID, RunPatch(tags=[" b ", "a", "b", ""], note="second"))
    assert (row.tags, row.note, row.pinned) == (["b", "a"], "second", False)
    assert store.patch_run(RUN_ID, RunPatch(pinned=True)).note == "second"
    after = reader.run(RUN_ID)
    assert after.row.pinned
    assert after.bench == before.bench


def test_a_unique_prefix_is_enough_and_an_unknown_id_names_near_ones(store: Store, reader: StoreReader) -> None:
    begin(store, "20261130-000001-aaaa")
    begin(store, "20261130-000002-bbbb")
    assert reader.run("20261130-000002").row.id == "20261130-000002-bbbb"
    with pytest.raises(NotFoundError, match=r"beginning of 2 runs.*20261130-000001-aaaa"):
        reader.run("20261130")
    with pytest.raises(NotFoundError, match="Near ids: 20261130-000001-aaaa"):
        reader.run("20261130-000001-aaab")
    with pytest.raises(NotFoundError):
        reader.run("")
    with pytest.raises(NotFoundError):
        store.patch_run("nope", RunPatch(note="x"))


def test_reading_before_there_is_a_store_creates_nothing(reader: StoreReader, tmp_home: Path) -> None:
    assert reader.runs().runs == []
    with pytest.raises(NotFoundError, match="no store at"):
        reader.run(RUN_ID)
    with pytest.raises(NotFoundError):
        reader.export(RUN_ID)
    assert not tmp_home.exists()


def test_an_id_is_used_once_and_is_never_a_path(store: Store) -> None:
    begin(store)
    with pytest.raises(ConflictError, match="exists already"):
        begin(store)
    for bad in ("../evil", "a/b", "", ".", "x" * 200):
        with pytest.raises(InputError, match="no run id"):
            begin(store, bad)


def test_writing_to_an_unknown_run_is_refused_and_leaves_no_files(store: Store, paths: StatePaths) -> None:
    with pytest.raises(NotFoundError):
        store.add_records("20260101-000000-zzzz", [record(0)])
    with pytest.raises(NotFoundError):
        store.finish_run("20260101-000000-zzzz", LoadState.FINISHED, [], None)
    assert not paths.runs.exists()


def test_new_ids_are_url_safe_sortable_and_different() -> None:
    ids = {new_run_id() for _ in range(200)}
    assert len(ids) > 190  # 27^4 endings within one second: two of 200 are equal once in 27 test runs
    assert all(re.fullmatch(r"20\d{6}-\d{6}-[a-z0-9]{4}", one) for one in ids)


def test_missing_samples_are_an_error_not_empty_records(store: Store, reader: StoreReader, paths: StatePaths) -> None:
    store_whole_run(store)
    (paths.run_dir(RUN_ID) / "chunks.parquet").unlink()
    with pytest.raises(StorageError, match=r"chunks\.parquet lacks the samples"):
        reader.records(RUN_ID)
    assert reader.run(RUN_ID).row.verdict == "partial"  # the results are still there


def test_secrets_are_cut_out_before_they_reach_the_disk(store: Store, paths: StatePaths, reader: StoreReader) -> None:
    secret = "s3cr3t-value"
    store.create_run(
        RUN_ID,
        request=request(url=f"http://user:{secret}@127.0.0.1:1"),
        engine=engine(
            argv=["python", "--api-key", secret, f"--hf-token={secret}"],
            env={"HF_TOKEN": secret, "PATH": "/bin"},
            effective={"api_key": secret, "tokenizer_path": "/t", "nested": {"password": secret}},
        ),
        host={},
        versions={},
    )
    store.finish_run(RUN_ID, LoadState.FAILED, [], f"401 for Bearer {secret}")
    detail = reader.run(RUN_ID)
    assert detail.bench.engine.env["PATH"] == "/bin"
    assert detail.bench.engine.effective["tokenizer_path"] == "/t"
    store.close()
    assert secret.encode() not in paths.database.read_bytes()
    assert secret.encode() not in reader.export(RUN_ID)
