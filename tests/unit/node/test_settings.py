"""Defaults, file, environment, flags: each overrides the former, and a mistake is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.node.errors import UserError
from atoll.node.settings import NodeSettings, config_file, load_settings
from atoll.protocol.spec import Genesis
from atoll.training.config import TrainingConfig


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_DATA_HOME": str(tmp_path / "data")}


def write_config(environ: dict[str, str], text: str) -> Path:
    path = config_file(environ)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_without_anything_the_folder_lies_in_the_data_home(home: dict[str, str], tmp_path: Path) -> None:
    settings = load_settings(environ=home)
    assert settings.folder == tmp_path / "data" / "atoll" / "node"
    assert settings.identity_path == settings.folder / "identity.key"
    assert settings.dashboard_host == "localhost"


def test_a_flag_overrides_a_variable_overrides_the_file(home: dict[str, str]) -> None:
    write_config(home, 'name = "file"\nnum_threads = 2\nnum_checkpoints = 7\n')
    environ = {**home, "ATOLL_NAME": "variable", "ATOLL_NUM_THREADS": "3", "ATOLL_KILL_AT": "no.setting"}
    settings = load_settings({"name": "flag", "num_threads": None}, environ=environ)
    assert (settings.name, settings.num_threads, settings.num_checkpoints) == ("flag", 3, 7)


def test_lists_in_variables_are_separated_by_commas(home: dict[str, str]) -> None:
    settings = load_settings(environ={**home, "ATOLL_SEEDS": "/ip4/1.2.3.4/tcp/1,/ip4/5.6.7.8/tcp/2"})
    assert settings.seeds == ("/ip4/1.2.3.4/tcp/1", "/ip4/5.6.7.8/tcp/2")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nmae = 1", r"unknown setting: nmae in .*config\.toml; "),
        ("dashboard_port = 70000", r"dashboard_port in .*config\.toml; .*less than or equal to 65535.*70000"),
        ("name = ", r"settings file is not TOML .*config\.toml; correct it"),
        ('device = "tpu"', r"device in .*config\.toml; .*'tpu'"),
    ],
)
def test_a_mistake_in_the_file_names_file_field_and_remedy(home: dict[str, str], text: str, expected: str) -> None:
    write_config(home, text)
    with pytest.raises(UserError, match=expected):
        load_settings(environ=home)


def test_a_mistake_in_a_variable_or_flag_names_it(home: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"listen_port in ATOLL_LISTEN_PORT; "):
        load_settings(environ={**home, "ATOLL_LISTEN_PORT": "x"})
    with pytest.raises(UserError, match=r"listen_port in --port; "):
        load_settings({"listen_port": -1}, environ=home)


def test_a_named_file_must_exist_while_the_default_one_need_not(home: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"settings file does not exist: .*gone\.toml"):
        load_settings(environ=home, config=tmp_path / "gone.toml")


def test_ver_02_no_setting_of_a_node_is_also_one_of_the_run() -> None:
    """So nothing local can take the place of what the signed spec says."""
    fields = [*Genesis.model_fields.values(), *TrainingConfig.model_fields.values()]
    of_the_run = {key for field in fields for key in getattr(field.annotation, "model_fields", {})}
    assert {"num_steps", "lr", "codec", "chunk_elements"} <= of_the_run
    assert set(NodeSettings.model_fields) & of_the_run == {"seeds"}  # which add to the run's
