"""A command line in a process of its own, forked from one that has imported what every command imports."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: An entry's name with all that a shell, a hash tag or a lock's name may stumble over.
ODD = "a {odd} ünï 'name' %41*"
#: Seconds a command may take.
_LONGEST = 60

_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(
    [__name__, "celery.bin.celery", "celery_redislock.cli.locks", "celery_redislock.cli.schedule"]
)


def run_command(
    program: str, words: Sequence[str], environment: Mapping[str, str], folder: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run ``celery`` or ``celery-redislock`` with these words, as their entry points do.

    Without standard input, in a folder, with these variables and no others.
    """
    with tempfile.TemporaryDirectory() as outputs:
        out, err = Path(outputs, "out"), Path(outputs, "err")
        arguments = (program, list(words), dict(environment), folder, out, err)
        process = _FORKED.Process(target=_run, args=arguments)
        process.start()
        process.join(_LONGEST)
        process.kill()
        process.join()
        status = process.exitcode
        assert status is not None
        return subprocess.CompletedProcess([program, *words], status, out.read_text(), err.read_text())


def _run(
    program: str, words: list[str], environment: dict[str, str], folder: Path, out: Path, err: Path
) -> None:
    from celery.bin.celery import celery

    from celery_redislock.cli import main, redislock
    from celery_redislock.receiving import whereabouts

    whereabouts._PATIENCE = 0.1  # no worker is there to be waited for
    for stream, output in ((sys.stdout, out), (sys.stderr, err)):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), stream.fileno())
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [program, *words]
    if program == "celery-redislock":
        main()
    celery.add_command(redislock, "redislock")
    celery(auto_envvar_prefix="CELERY")
