from backend.schema.host import DeviceSample, MemoryComponent, TelemetrySample
from pages.ui import charts
from tests.fakes import documents


def sample(engine_bytes: int | None, **components: int) -> TelemetrySample:
    return TelemetrySample(
        seq=1,
        t_ns=0,
        at_utc="",
        devices=[DeviceSample(device="gpu-1", name="GPU 1", engine_bytes=engine_bytes)],
        components=[MemoryComponent(name=n, bytes=b, basis="log line 1") for n, b in components.items()],
    )


def test_an_interval_without_a_reading_is_a_gap_and_not_zero() -> None:
    line = charts.throughput(documents.points(3)).figure.data[0]
    assert list(line.y) == [None, 61.0, 62.0]  # 60 + i % 3, nothing at 0


def test_the_warm_up_of_a_level_is_not_drawn() -> None:
    first, second, third = documents.points(3)
    points = [first, second.model_copy(update={"phase": "warmup"}), third]
    assert list(charts.throughput(points).figure.data[0].y) == [None, 62.0]
    assert len(charts.latency(points).figure.data[0].x) == 2


def test_each_level_is_marked_where_it_begins() -> None:
    figure = charts.throughput(documents.points(30)).figure
    assert [(s.x0, a.text) for s, a in zip(figure.layout.shapes, figure.layout.annotations, strict=True)] == [
        (0.0, "1 user"),
        (10.0, "2 users"),
        (20.0, "4 users"),
    ]


def test_the_alternative_text_tells_the_readings() -> None:
    alt = charts.throughput(documents.points(3)).alt
    assert alt == "Output tokens per second. All users: 61.0 to 62.0 tok/s, last 62.0."
    assert "no reading yet" in charts.latency([]).alt


def test_acceptance_shows_one_bar_per_draft_position() -> None:
    made = charts.acceptance(documents.points(5), [0.8, 0.551])
    bar = made.figure.data[1]
    assert (list(bar.x), list(bar.y)) == (["draft 1", "draft 2"], [80.0, 55.1])
    assert "draft 1 80.0 %, draft 2 55.1 %" in made.alt


def test_what_the_ledger_does_not_name_is_the_rest_of_the_engine() -> None:
    assert charts.component_bytes(sample(1000, weights=600, kv=100), "gpu-1") == {
        "weights": 600,
        "kv": 100,
        "engine, not itemised": 300,
    }


def test_a_ledger_above_the_device_figure_makes_no_negative_rest() -> None:
    assert charts.component_bytes(sample(500, weights=600), "gpu-1") == {"weights": 600}


def test_a_device_without_ledger_shows_the_engine_as_one_part() -> None:
    assert charts.component_bytes(sample(500), "gpu-1") == {"engine, not itemised": 500}
    assert charts.component_bytes(sample(None), "gpu-1") == {}


def test_equal_components_of_two_engines_are_added() -> None:
    both = sample(None, weights=1).model_copy(
        update={"components": [MemoryComponent(name="weights", bytes=b, basis="") for b in (1, 2)]}
    )
    assert charts.component_bytes(both, "gpu-1") == {"weights": 3}


def test_memory_is_stacked_in_the_unit_that_fits() -> None:
    figure = charts.memory(documents.samples(2), "host").figure
    assert figure.layout.yaxis.title.text == "MiB"
    assert [trace.name for trace in figure.data] == [
        "target weights",
        "MTP weights",
        "KV pool",
        "engine, not itemised",
    ]
    # 400 + 1 MiB held, 110 + 20 + 64 named: 207 MiB are the rest
    assert figure.data[3].y[1] == 207.0


def test_runs_a_and_b_differ_by_pattern_and_dash_as_well_as_colour() -> None:
    bars = charts.bars(["1 user"], [41.0], [61.2], "Output", "tok/s")
    assert [trace.marker.pattern.shape for trace in bars.figure.data] == ["", "/"]
    assert bars.alt == "Output. 1 user: A 41.0 tok/s, B 61.2 tok/s."
    lines = charts.overlay(documents.points(5), documents.points(5), "output_tok_s", "Output", "tok/s")
    assert [trace.line.dash for trace in lines.figure.data] == ["solid", "dash"]


def test_thinning_keeps_the_newest_point_and_the_limit() -> None:
    thinned = charts.thin(list(range(1000)), 300)
    assert len(thinned) == 250  # every 4th, since every 3rd would be 334
    assert thinned[-1] == 999
    assert charts.thin([], 300) == []


def test_a_sample_that_knows_nothing_of_the_engine_is_no_zero() -> None:
    samples = [sample(None), sample(500)]
    assert list(charts.memory(samples, "gpu-1").figure.data[0].x) == [0.0]
