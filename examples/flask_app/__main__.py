"""Look at the locks of a web application. See README.md."""

import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from werkzeug.serving import make_server

from examples.browser import Browser, look_at_the_locks
from examples.flask_app.shop import app, sync_account
from examples.stage import PATIENCE, Stage, stage, wait_until

__all__ = ["main"]


def main() -> None:
    """Play the scene, with a worker and a web server."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # the example tells what was answered
    with stage(app) as here:
        bank = Path(here.directory)
        os.environ["BANK"] = str(bank)
        with web_server() as site:
            here.worker()
            page(here, site, bank)


def page(here: Stage, site: str, bank: Path) -> None:
    stranger = Browser(site)
    staff = Browser(site)
    wrong = staff.ask("/login", method="POST", form={"password": "a guess"})
    here.expect(f"a wrong password is refused: {wrong.status}", wrong.status == 403)
    login = staff.ask("/login", method="POST", form={"password": "only-for-the-example"})
    here.expect(f"the right one leads to {login.headers['Location']}", login.headers["Location"] == "/locks/")

    print("POST /accounts/7/sync, twice")
    answers = [staff.ask("/accounts/7/sync", method="POST", form={}) for _ in range(2)]
    for answer in answers:
        here.say(f"    {answer.status} {answer.text.strip()}")
    here.expect("one task does it", len({json.loads(answer.text)["task_id"] for answer in answers}) == 1)
    handle = sync_account.lock_for(7)
    here.expect("and holds its lock", handle.holder())

    print("The page of the locks, at /locks/")
    look_at_the_locks(here, "/locks/", handle.key, stranger, staff)
    (bank / "7").touch()
    here.expect("the bank has answered: nothing is held", wait_until(lambda: handle.holder() is None))


@contextmanager
def web_server() -> Iterator[str]:
    """Serve from a thread of this process, on a free port; yield the address."""
    from examples.flask_app.web import site  # noqa: PLC0415  the stage has said where its server is

    server = make_server("127.0.0.1", 0, site, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)


if __name__ == "__main__":
    main()
