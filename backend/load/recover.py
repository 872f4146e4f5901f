"""A run whose agent died: what its spool still tells."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from backend.errors import InputError
from backend.load.live import LiveView
from backend.load.results import level_results, read_records, read_report
from backend.load.spec import WorkerReport, WorkerSpec
from backend.load.spool import LineReader, Spool
from backend.schema.load import BenchRequest, LevelResult, LivePoint, RequestRecord


@dataclass(frozen=True)
class SpooledRun:
    """Everything that the spool of one run holds."""

    run_id: str
    load_id: str
    url: str
    request: BenchRequest
    records: list[RequestRecord]
    points: list[LivePoint]
    per_position: list[float]
    levels: list[LevelResult]
    report: WorkerReport | None


def read_spool(spool: Path) -> SpooledRun:
    """Reads a spool, however its writer ended. InputError when it does not even say what was asked."""
    files = Spool(spool)
    try:
        spec = WorkerSpec.model_validate_json(files.spec.read_bytes())
    except OSError as error:
        raise InputError(f"{files.spec} cannot be read ({error.strerror}): the load test had not begun") from error
    except ValidationError as error:
        raise InputError(f"{files.spec} is damaged: {error.error_count()} fields cannot be read") from error
    view = LiveView()
    view.add(LineReader(files.ticks).read())
    view.finish()
    records, report = read_records(files), read_report(files)
    return SpooledRun(
        run_id=spec.run_id,
        load_id=spec.load_id,
        url=spec.url,
        request=spec.request,
        records=records,
        points=view.points,
        per_position=view.per_position,
        levels=level_results(spec.request.concurrency, records, report),
        report=report,
    )
