"""The keys that scripts outside read. Written by hand from the public contract: a renamed field must fail here."""

import pytest
from pydantic import BaseModel

from backend.schema import engine, host, load, run

DISTRIBUTION = "n mean p50 p90 p95 p99 max"
CONTRACT: dict[type[BaseModel], str] = {
    engine.Scan: "version style root flags env algorithms mtp_architectures",
    engine.Flag: "flag field aliases type default choices choices_complete help deprecated file line",
    engine.MtpArchitecture: "draft file line",
    engine.LaunchResult: "url pid kind version argv env effective ready_seconds phases warnings log",
    engine.Phase: "name seconds line",
    engine.LedgerItem: "bytes line",
    engine.Failure: "class cause line advice",
    engine.EngineStatus: "id state kind url pid argv since alarms",
    host.Status: "agent engines loads",
    host.Doctor: "findings gpus engines",
    host.Finding: "id status message remedy",
    load.LoadStatus: "id state run_id progress",
    load.Bench: "run_id levels engine",
    load.BenchEngine: "kind version argv effective",
    load.LevelResult: "concurrency seconds requests tokens metrics acceptance client",
    load.RequestCounts: "sent ok failed by_class",
    load.TokenCounts: "input output cached",
    load.Metrics: "ttft_ms ttfa_ms tpot_ms itl_ms icl_ms e2e_ms tok_s_user output_tok_s output_tok_s_whole request_s"
    " goodput_s absent",
    load.Distribution: DISTRIBUTION,
    load.Acceptance: "accept_length engine_accept_length accept_rate per_position verify_steps source",
    load.ClientGauge: "cpu_pct us_per_chunk loop_lag_p99_ms in_flight_achieved verdict",
    run.RunList: "runs",
    run.RunRow: "id started_at_utc model engine levels verdict tags note pinned",
    run.Comparison: "verdict metrics confounds design",
    run.ComparedMetric: "name a b ratio ci_low ci_high verdict",
    run.Exported: "path bytes",
    run.Imported: "run_id",
}


def missing_keys(model: type[BaseModel], keys: str) -> set[str]:
    return set(keys.split()) - {field.alias or name for name, field in model.model_fields.items()}


@pytest.mark.parametrize("model", CONTRACT, ids=lambda model: model.__name__)
def test_the_document_has_every_key_of_the_contract(model: type[BaseModel]) -> None:
    assert missing_keys(model, CONTRACT[model]) == set()


def test_the_log_diagnosis_has_every_key_of_the_contract() -> None:
    from backend.supervisor import diagnose_log

    document = diagnose_log("").model_dump(mode="json", by_alias=True)
    assert set("version phases ledger changed ready failure".split()) - document.keys() == set()
