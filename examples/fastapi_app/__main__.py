"""Ask the web application for more than needed. See README.md."""

import base64
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import uvicorn

from examples.browser import Browser, look_at_the_locks
from examples.fastapi_app.shop import app, build_report, sync_account
from examples.stage import PATIENCE, Stage, stage, wait_until

__all__ = ["main"]


class Answer(NamedTuple):
    """What the web server said."""

    status: int
    body: dict[str, Any]
    retry_after: str | None


def main() -> None:
    """Play all scenes, with a worker and a web server."""
    with stage(app) as here:
        bank = Path(here.directory)
        os.environ["BANK"] = str(bank)
        with web_server() as site:
            here.worker()
            told_the_same(here, site, bank)
            told_to_come_later(here, site, bank)
            page(here, site, bank)


def told_the_same(here: Stage, site: str, bank: Path) -> None:
    print("Two requests at once: POST /accounts/7/sync")
    with ThreadPoolExecutor(2) as clients:
        answers = list(clients.map(lambda _: post(f"{site}/accounts/7/sync"), range(2)))
    for answer in answers:
        print(f"    {answer.status} {answer.body}")
    task_ids = {answer.body["task_id"] for answer in answers}
    here.expect("both were given the same task_id", len(task_ids) == 1)
    told = sorted((answer.status, answer.body["is_duplicate"]) for answer in answers)
    here.expect("202 for the one that started it, 200 for the duplicate", told == [(200, True), (202, False)])
    state = get(f"{site}/tasks/{min(task_ids)}").body["state"]
    here.expect(f"GET /tasks/... says {state}", state == "PENDING")

    print("The bank answers")
    (bank / "sync-7-answered").touch()
    ends = [outcome(site, task_id) for task_id in task_ids]
    good = {"state": "SUCCESS", "result": "account 7 is in sync"}
    here.expect(f"GET /tasks/... says {ends[0]}", all(end == good for end in ends))
    runs = asked(bank, "sync-7")
    here.expect(f"the bank was asked once: {runs}", runs == 1)
    again = post(f"{site}/accounts/7/sync")
    here.expect("the next request starts another task", again.status == 202)
    outcome(site, again.body["task_id"])


def told_to_come_later(here: Stage, site: str, bank: Path) -> None:
    print('A task with on_conflict="raise": POST /accounts/7/report')
    first = post(f"{site}/accounts/7/report")
    here.expect(f"accepted: {first.status}", first.status == 202)
    here.expect("it runs", wait_until(lambda: asked(bank, "report-7")))
    second = post(f"{site}/accounts/7/report")
    here.expect(f"meanwhile, refused: {second.status} {second.body}", second.status == 409)
    here.expect("with the id of the running one", second.body["task_id"] == first.body["task_id"])
    here.expect("without Retry-After: nobody knows when it ends", second.retry_after is None)
    (bank / "report-7-answered").touch()
    end = outcome(site, first.body["task_id"])
    here.expect(f"GET /tasks/... says {end}", end == {"state": "SUCCESS", "result": "report on account 7"})
    here.expect("it ran once", asked(bank, "report-7") == 1)
    third = post(f"{site}/accounts/7/report")
    period = build_report.lock_period
    here.expect(
        f"afterwards, refused for the lock_period of {period:g} s: {third.status}", third.status == 409
    )
    here.expect(
        f"Retry-After: {third.retry_after}", third.retry_after and 0 < int(third.retry_after) <= period
    )


def page(here: Stage, site: str, bank: Path) -> None:
    print("The page of the locks, at /locks/")
    post(f"{site}/accounts/9/sync")
    handle = sync_account.lock_for(9)
    here.expect("a task holds its lock", handle.holder())
    guess = base64.b64encode(b"ada:a guess").decode()
    stranger = Browser(site, Authorization=f"Basic {guess}")
    login = base64.b64encode(b"ada:only-for-the-example").decode()
    staff = Browser(site, Authorization=f"Basic {login}")
    here.expect("without a password, 401", Browser(site).ask("/locks/").status == 401)
    look_at_the_locks(here, "/locks/", handle.key, stranger, staff)
    (bank / "sync-9-answered").touch()
    here.expect("the bank has answered: nothing is held", wait_until(lambda: handle.holder() is None))


def asked(bank: Path, what: str) -> int:
    """How often the body of a task has begun."""
    asked = bank / f"{what}-asked"
    return asked.read_text().count("\n") if asked.exists() else 0


@contextmanager
def web_server() -> Iterator[str]:
    """Serve from a thread of this process, on a free port; yield the address."""
    from examples.fastapi_app.web import api  # noqa: PLC0415  the stage has said where its server is

    server = uvicorn.Server(uvicorn.Config(api, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert wait_until(lambda: server.started or not thread.is_alive())
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)


def post(url: str) -> Answer:
    return _answer(Request(url, method="POST"))  # noqa: S310  an address of ours


def get(url: str) -> Answer:
    return _answer(Request(url))  # noqa: S310  an address of ours


def _answer(request: Request) -> Answer:
    try:
        with urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310  an address of ours
            return Answer(answer.status, json.load(answer), None)
    except HTTPError as error:
        with error:
            return Answer(error.code, json.load(error), error.headers["Retry-After"])


def outcome(site: str, task_id: str) -> dict[str, Any]:
    """What its page says when it is over."""
    wait_until(lambda: get(f"{site}/tasks/{task_id}").body["state"] not in {"PENDING", "STARTED"})
    return get(f"{site}/tasks/{task_id}").body


if __name__ == "__main__":
    main()
