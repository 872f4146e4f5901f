"""Is this a checkpoint directory, and what does it say?"""

from pathlib import Path

import pytest

from backend.checkpoint import read_config, require_checkpoint, require_tokenizer, text_config
from backend.errors import InputError


def checkpoint(folder: Path, config: str = "{}") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config)
    return folder


def test_a_directory_with_a_config_is_a_checkpoint(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m", '{"hidden_size": 4}')
    assert require_checkpoint(str(folder)) == folder
    assert read_config(folder) == {"hidden_size": 4}


def test_a_missing_path_names_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"nearest existing folder is {tmp_path}"):
        require_checkpoint(str(tmp_path / "models" / "big"))


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "holds no config.json"), ("{", "not valid JSON: line 1"), ("[1]", "holds a list")],
)
def test_a_config_that_cannot_be_used_is_explained(tmp_path: Path, content: str | None, message: str) -> None:
    (tmp_path / "m").mkdir()
    if content is not None:
        (tmp_path / "m" / "config.json").write_text(content)
    with pytest.raises(InputError, match=message):
        require_checkpoint(str(tmp_path / "m"))


def test_a_file_is_no_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(InputError, match="is a file; give the directory"):
        require_checkpoint(str(file))


def test_a_hub_id_is_looked_up_in_the_local_cache_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--name"
    checkpoint(repository / "snapshots" / "aaa")
    wanted = checkpoint(repository / "snapshots" / "bbb")
    checkpoint(repository / "snapshots" / "ccc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("bbb")
    assert require_checkpoint("org/name") == wanted
    with pytest.raises(InputError, match="downloads nothing"):
        require_checkpoint("org/other")


def test_hf_home_holds_the_cache_in_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    wanted = checkpoint(tmp_path / "hub" / "models--org--name" / "snapshots" / "aaa")
    assert require_checkpoint("org/name") == wanted


def test_a_nested_text_config_is_merged_over_the_outer_one() -> None:
    merged = text_config({"model_type": "outer", "x": 1, "text_config": {"model_type": "inner", "hidden_size": 4}})
    assert (merged["model_type"], merged["x"], merged["hidden_size"]) == ("inner", 1, 4)
    assert text_config({"x": 1}) == {"x": 1}


def test_a_checkpoint_without_tokenizer_is_named(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    with pytest.raises(InputError, match=r"no tokenizer .*tokenizer\.json"):
        require_tokenizer(folder)
    (folder / "tokenizer.json").touch()
    assert require_tokenizer(folder).name == "tokenizer.json"
