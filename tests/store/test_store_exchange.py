"""Runs as files: out of one home and into another, and whatever is no such file refused."""

import hashlib
import io
import json
import random
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from store_example import (
    RUN_ID,
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

from backend.errors import InputError, SlipstreamError
from backend.paths import StatePaths
from backend.schema.load import LoadState
from backend.schema.run import RunPatch
from backend.store import Store, StoreReader, bundle

Members = dict[str, bytes]


@pytest.fixture
def other(tmp_path: Path) -> StatePaths:
    return StatePaths(tmp_path / "other")


@pytest.fixture
def exported(store: Store, reader: StoreReader) -> bytes:
    store_whole_run(store)
    return reader.export(RUN_ID)


def import_into(paths: StatePaths, data: bytes) -> str:
    with Store(paths) as store:
        return store.import_run(data).run_id


def members_of(data: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(members: Members) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def resealed(members: Members, **manifest_changes: object) -> bytes:
    """The members with a manifest that is right for them: what somebody makes who edits on purpose."""
    manifest = json.loads(members["manifest.json"])
    manifest["members"] = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        for name, content in members.items()
        if name != "manifest.json"
    }
    return packed({**members, "manifest.json": json.dumps(manifest | manifest_changes).encode()})


def test_a_run_in_another_home_equals_the_original(exported: bytes, reader: StoreReader, other: StatePaths) -> None:
    assert import_into(other, exported) == RUN_ID
    there = StoreReader(other)
    assert there.run(RUN_ID) == reader.run(RUN_ID)
    assert there.records(RUN_ID) == reader.records(RUN_ID)
    assert there.live(RUN_ID) == (live_points(), [0.9, 0.7, 0.4])
    assert there.telemetry(RUN_ID) == (telemetry(), "no NVIDIA driver: host memory")
    assert there.export(RUN_ID) == exported  # byte for byte


def test_importing_again_changes_nothing_even_after_notes_and_pins(exported: bytes, other: StatePaths) -> None:
    import_into(other, exported)
    with Store(other) as store:
        store.patch_run(RUN_ID, RunPatch(note="mine", pinned=True, tags=["z"]))
        assert store.import_run(exported).run_id == RUN_ID
    [row] = StoreReader(other).runs().runs
    assert (row.note, row.pinned, row.tags) == ("mine", True, ["z"])


def test_another_run_with_the_same_id_gets_a_suffix_once(exported: bytes, other: StatePaths) -> None:
    with Store(other) as store:
        begin(store)
        store.add_records(RUN_ID, [record(0)])
        store.finish_run(RUN_ID, LoadState.FINISHED, [level(1)], None)
        assert store.import_run(exported).run_id == f"{RUN_ID}-2"
        assert store.import_run(exported).run_id == f"{RUN_ID}-2"
    there = StoreReader(other)
    assert len(there.records(RUN_ID)) == 1
    imported = there.records(f"{RUN_ID}-2")
    assert {one.run_id for one in imported} == {f"{RUN_ID}-2"}
    assert len(imported) == len(records())
    assert sum(len(one.chunk_ns) for one in imported) == 18  # 9 successful requests x 2 events


def test_the_engine_log_travels_without_secrets_and_without_its_path(
    store: Store, reader: StoreReader, other: StatePaths, tmp_path: Path
) -> None:
    log = tmp_path / "engine.log"
    log.write_text("server_args=ServerArgs(api_key='hush-hush', port=1)\n#new-token: 512, token usage: 0.01\n")
    store.create_run(RUN_ID, request=request(), engine=engine(), host={}, versions={}, log=str(log))
    store.finish_run(RUN_ID, LoadState.FINISHED, [level(1)], None)
    exported = reader.export(RUN_ID)
    assert str(tmp_path).encode() not in b"".join(members_of(exported).values())
    import_into(other, exported)
    there = Path(StoreReader(other).run(RUN_ID).log or "")
    assert there == other.run_dir(RUN_ID) / "engine.log"
    assert there.read_text() == (
        "server_args=ServerArgs(api_key='[redacted]', port=1)\n#new-token: 512, token usage: 0.01\n"
    )


def test_a_long_log_loses_its_middle(
    store: Store, reader: StoreReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "EXPORT_LOG_MAX_BYTES", 20)
    log = tmp_path / "engine.log"
    log.write_text("0123456789" + "m" * 30 + "abcdefghij")
    store.create_run(RUN_ID, request=request(), engine=engine(), host={}, versions={}, log=str(log))
    found = members_of(reader.export(RUN_ID))["engine.log"].decode()
    assert found == "0123456789\n... 30 bytes left out of this export ...\nabcdefghij"


def test_a_log_that_is_gone_is_left_out(store: Store, reader: StoreReader) -> None:
    store.create_run(RUN_ID, request=request(), engine=engine(), host={}, versions={}, log="/nowhere/engine.log")
    assert set(members_of(reader.export(RUN_ID))) == {"manifest.json", "run.json", "requests.jsonl"}


def test_a_run_exported_while_it_ran_is_interrupted_where_it_arrives(
    store: Store, reader: StoreReader, other: StatePaths
) -> None:
    begin(store)
    store.add_records(RUN_ID, [record(0)])
    with Store(other) as there:
        there.import_run(reader.export(RUN_ID))
        assert there.unfinished() == []
    assert StoreReader(other).runs().runs[0].verdict == "interrupted"


@pytest.mark.parametrize("name", ["run.json", "requests.jsonl", "chunks.parquet", "live.parquet", "telemetry.parquet"])
def test_a_damaged_member_is_named(exported: bytes, other: StatePaths, name: str) -> None:
    members = members_of(exported)
    members[name] = members[name][:-1] + b"!"
    with pytest.raises(InputError, match=f"Member {name} is damaged"):
        import_into(other, packed(members))
    assert StoreReader(other).runs().runs == []
    assert not other.runs.exists()


@pytest.mark.parametrize("name", ["run.json", "requests.jsonl", "chunks.parquet", "live.parquet"])
def test_a_member_that_is_sealed_but_nonsense_is_named(exported: bytes, other: StatePaths, name: str) -> None:
    members = {**members_of(exported), name: b"{]"}
    with pytest.raises(InputError, match=f"Member {name} cannot be read"):
        import_into(other, resealed(members))


def test_a_table_with_other_columns_is_refused(exported: bytes, other: StatePaths) -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"x": [1]}), out)
    with pytest.raises(InputError, match=r"Member telemetry\.parquet cannot be read"):
        import_into(other, resealed({**members_of(exported), "telemetry.parquet": out.getvalue()}))


@pytest.mark.parametrize("name", ["run.json", "requests.jsonl", "live.parquet", "manifest.json"])
def test_a_missing_member_is_named(exported: bytes, other: StatePaths, name: str) -> None:
    members = members_of(exported)
    del members[name]
    with pytest.raises(InputError, match=name):
        import_into(other, packed(members))


@pytest.mark.parametrize("name", ["../../evil.txt", "/etc/evil", "runs/../../x", "extra.txt", "sub/run.json"])
def test_a_member_of_any_other_name_is_refused(exported: bytes, other: StatePaths, tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.rglob("*evil*"))
    with pytest.raises(InputError, match="no export of ours"):
        import_into(other, resealed({**members_of(exported), name: b"evil"}))
    assert sorted(tmp_path.rglob("*evil*")) == before


def test_a_member_that_comes_twice_is_refused(exported: bytes, other: StatePaths) -> None:
    out = io.BytesIO(exported)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(out, "a") as archive:
        archive.writestr("run.json", b"{}")
    with pytest.raises(InputError, match="twice"):
        import_into(other, out.getvalue())


def test_a_run_id_that_is_a_path_is_refused(exported: bytes, other: StatePaths) -> None:
    members = members_of(exported)
    run = json.loads(members["run.json"]) | {"id": "../../evil"}
    with pytest.raises(InputError, match="no run id"):
        import_into(other, resealed({**members, "run.json": json.dumps(run).encode()}))


def test_a_newer_format_is_refused_with_the_version_that_wrote_it(exported: bytes, other: StatePaths) -> None:
    with pytest.raises(InputError, match=r"format 9, written by Slipstream 7\.7.*Update"):
        import_into(other, resealed(members_of(exported), format=9, slipstream="7.7"))


def test_what_is_no_zip_or_no_export_is_refused(other: StatePaths) -> None:
    for data in (b"", b"hello", packed({"a.txt": b"x"}), packed({}), packed({"run.json": b"{}"})):
        with pytest.raises(InputError):
            import_into(other, data)


def test_a_zip_bomb_is_refused_before_it_unpacks(
    exported: bytes, other: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {**members_of(exported), "engine.log": b"\0" * 5_000_000}  # 5 MB of zeros pack to 5 KB
    bomb = resealed(members)
    assert len(bomb) < 30_000
    monkeypatch.setattr(bundle, "IMPORT_MAX_UNPACKED_BYTES", 1_000_000)
    with pytest.raises(InputError, match=r"unpacks to 5,\d+,\d+ bytes; the limit is 1,000,000"):
        import_into(other, bomb)


def test_a_zip_that_understates_its_size_never_unpacks_more(exported: bytes, other: StatePaths) -> None:
    # The declared size of requests.jsonl is patched to 10 in both headers; what comes beyond must not be read.
    members = members_of(exported)
    size = len(members["requests.jsonl"]).to_bytes(4, "little")
    assert exported.count(size) >= 2
    with pytest.raises(InputError, match=r"requests\.jsonl"):
        import_into(other, exported.replace(size, (10).to_bytes(4, "little")))


def test_a_table_that_unpacks_to_too_much_is_refused(
    exported: bytes, other: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "IMPORT_MAX_TABLE_BYTES", 10)
    with pytest.raises(InputError, match=r"\.parquet cannot be read: it unpacks to more than 10 bytes"):
        import_into(other, exported)


def test_a_file_beyond_the_limit_is_refused(
    exported: bytes, other: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "IMPORT_MAX_BYTES", 100)
    with pytest.raises(InputError, match="at most 100"):
        import_into(other, exported)


def test_any_single_damaged_byte_is_refused_or_harmless(exported: bytes, other: StatePaths) -> None:
    """No damage gives another error than ours, and none changes the run that arrives."""
    pick = random.Random(5)
    with Store(other) as store:
        assert store.import_run(exported).run_id == RUN_ID
        refused = 0
        for _ in range(150):
            data = bytearray(exported)
            data[pick.randrange(len(data))] ^= 1 << pick.randrange(8)
            try:
                assert store.import_run(bytes(data)).run_id == RUN_ID
            except SlipstreamError:
                refused += 1
    assert refused > 75  # most bytes of a zip file are content
    assert [row.id for row in StoreReader(other).runs().runs] == [RUN_ID]


@pytest.mark.parametrize("method", [12, 14])
def test_a_compression_method_that_is_not_ours_is_refused(method: int) -> None:
    """Damage turns deflate (8) into bzip2 (12) or LZMA (14), whose readers raise errors of their own kinds."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", "{}" * 10)
    data = bytearray(packed.getvalue())
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):  # local header, central directory
        data[data.index(signature) + offset] = method
    with pytest.raises(InputError, match=r"manifest\.json is damaged"):
        bundle.unpack(bytes(data))


def test_a_truncated_file_is_refused(exported: bytes, other: StatePaths) -> None:
    for keep in (10, len(exported) // 2, len(exported) - 1):
        with pytest.raises(InputError):
            import_into(other, exported[:keep])


def test_a_failed_import_leaves_nothing_behind(
    exported: bytes, other: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(other) as store:
        store._writer.run(
            lambda db: db.execute("CREATE TRIGGER no BEFORE INSERT ON runs BEGIN SELECT RAISE(ABORT, 'no'); END")
        )
        with pytest.raises(SlipstreamError):
            store.import_run(exported)
    assert StoreReader(other).runs().runs == []
    assert not other.run_dir(RUN_ID).exists()
