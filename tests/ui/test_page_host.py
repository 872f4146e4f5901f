"""The Host page, the sidebar, and what every page says when the agent is not what it should be."""

import pytest
from streamlit.testing.v1 import AppTest

from backend.errors import InputError, StorageError
from backend.schema.host import EngineEnvironment, Gpu
from pages.ui.client import Host, hosts_of
from tests.fakes import documents
from tests.fakes.fake_agent import FakeAgent
from tests.ui.test_page_tune import run, texts

PAGES = ("tune.py", "runs.py", "compare.py", "trace.py", "host.py")


def open_page(app: AppTest, page: str = "host.py") -> AppTest:
    run(app)
    app.switch_page(page)
    return run(app)


def test_findings_come_with_remedies_and_the_broken_ones_first(fake: FakeAgent, app: AppTest) -> None:
    fake.doctor = documents.DOCTOR
    fake.samples = documents.samples()
    open_page(app)
    shown = texts(app)
    assert shown.index("install torch") < shown.index("delete old runs") < shown.index("12 runs")
    assert "None: no NVIDIA driver on this machine" in shown
    assert app.dataframe[0].value.loc[0, "Memory used"] == "2.93 GiB"  # 3000 / 1024
    assert app.dataframe[0].value.loc[0, "Power"] == "n/a"


def test_gpus_and_engine_environments_are_listed(fake: FakeAgent, app: AppTest) -> None:
    fake.doctor = documents.DOCTOR.model_copy(
        update={
            "gpus": [Gpu(index=0, uuid="GPU-1", name="A GPU", memory_bytes=96 * 1024**3, compute_capability="12.0")],
            "engines": [EngineEnvironment(kind="sglang", python="/sgl/bin/python", version="1.2")],
        }
    )
    open_page(app)
    tables = [table.value for table in app.dataframe]
    assert tables[0].loc[0, "Memory"] == "96.0 GiB"
    assert tables[1].loc[0, "Interpreter"] == "/sgl/bin/python"


@pytest.mark.parametrize("page", PAGES)
def test_an_agent_that_is_gone_is_said_on_every_page(
    fake: FakeAgent, app: AppTest, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_AGENT_URL", "http://127.0.0.1:1")
    open_page(app, page)
    shown = texts(app)
    assert "The agent cannot be reached" in shown
    assert "python -m backend agent" in shown.replace("\\", "")
    assert app.button(key="retry").label == "Retry"


@pytest.mark.parametrize("page", PAGES)
def test_a_refused_token_is_said_with_its_remedy(fake: FakeAgent, app: AppTest, page: str) -> None:
    fake.token = "another"
    open_page(app, page)
    assert "The agent refused the token" in texts(app)


def test_an_agent_of_another_version_is_said_with_its_remedy(fake: FakeAgent, app: AppTest) -> None:
    fake.garbage = True
    run(app)
    assert "The agent is of another version" in texts(app)


def test_retry_finds_an_agent_that_came_back(fake: FakeAgent, app: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_AGENT_URL", "http://127.0.0.1:1")
    run(app)
    monkeypatch.setenv("SLIPSTREAM_AGENT_URL", fake.url)
    app.button(key="retry").click()
    run(app)
    assert "No engine runs yet" in texts(app)


def test_a_store_that_cannot_be_written_is_said_in_the_sidebar(fake: FakeAgent, app: AppTest) -> None:
    fake.info = fake.info.model_copy(update={"store_error": "disk full"})
    run(app)
    assert "disk full" in texts(app)


def test_an_error_of_the_store_becomes_a_message(fake: FakeAgent, app: AppTest) -> None:
    fake.refuse["scan"] = StorageError("the disk is full; free some space")
    run(app)
    assert "the disk is full; free some space" in texts(app)


def test_hosts_come_from_the_secrets_file() -> None:
    secrets = {"hosts": {"blackwell": {"url": "http://127.0.0.1:7000", "token": "t"}}}
    assert hosts_of(secrets) == [Host("blackwell", "http://127.0.0.1:7000", "t")]
    assert hosts_of({}) == []


@pytest.mark.parametrize("secrets", [{"hosts": "x"}, {"hosts": {"b": {"url": "u"}}}, {"hosts": {"b": "u"}}])
def test_a_damaged_secrets_file_is_named(secrets: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"secrets\.toml"):
        hosts_of(secrets)


def test_another_host_is_chosen_in_the_sidebar(fake: FakeAgent, app: AppTest) -> None:
    with FakeAgent() as remote:
        remote.info = remote.info.model_copy(update={"host": "blackwell-1"})
        remote.scan = documents.SCAN
        app.secrets["hosts"] = {"blackwell": {"url": remote.url, "token": remote.token}}
        run(app)
        assert "testhost" in texts(app)
        app.selectbox(key="host").set_value("blackwell")
        run(app)
        assert "blackwell-1" in texts(app)
