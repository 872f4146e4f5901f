"""From the spool of a run to its records and its results per level."""

from collections.abc import Iterable, Sequence

from pydantic import ValidationError

from backend.load.spec import LevelGauge, WorkerReport
from backend.load.spool import LineReader, Spool
from backend.metrics import client_gauge, level_result
from backend.schema.load import ClientGauge, LevelResult, RequestRecord


def read_records(spool: Spool) -> list[RequestRecord]:
    """Every record that was written whole, in order of ending."""
    return parse_records(LineReader(spool.requests).read())


def parse_records(rows: Iterable[dict[str, object]]) -> list[RequestRecord]:
    """Rows of `requests.jsonl` as records; a row of another shape is left out, as a broken line is."""
    records = []
    for row in rows:
        try:
            records.append(RequestRecord.model_validate(row))
        except ValidationError:
            continue
    return records


def read_report(spool: Spool) -> WorkerReport | None:
    """The worker's own report; None when it had written none."""
    try:
        return WorkerReport.model_validate_json(spool.report.read_bytes())
    except (OSError, ValidationError):
        return None


def level_results(
    concurrency: Sequence[int], records: Sequence[RequestRecord], report: WorkerReport | None
) -> list[LevelResult]:
    """One result per level that counted at least one request, in the order of the request."""
    gauges = {gauge.concurrency: gauge for gauge in report.levels} if report else {}
    results = []
    for level in concurrency:
        of_level = [record for record in records if record.level == level]
        if any(record.phase == "measure" for record in of_level):
            results.append(level_result(level, of_level, _client(gauges.get(level))))
    return results


def _client(gauge: LevelGauge | None) -> ClientGauge:
    return client_gauge(**gauge.model_dump()) if gauge is not None else ClientGauge()
