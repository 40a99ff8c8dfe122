"""What is done and what is seen: buttons pressed over HTTP, faster than their tasks run."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.db import connections

from examples.browser import Browser, look_at_the_locks
from examples.django_project import celery_app
from examples.django_project.models import Account, Run
from examples.django_project.tasks import push_name, sync_account
from examples.django_project.wsgi import application
from examples.stage import PATIENCE, Stage, stage, wait_until

__all__ = ["play"]

PASSWORD = "only-for-the-example"  # noqa: S105  it is
#: Said twice, as a form of the site does, which Django then takes for one.
TOKEN = "0" * 32


def play(bank: Path) -> None:
    """Play all scenes; the bank answers for an account once there is a file of its number."""
    call_command("migrate", run_syncdb=True, verbosity=0)
    names = {7: "Ada", 8: "Bob", 9: "Cleo"}
    Account.objects.bulk_create([Account(id=number, name=name) for number, name in names.items()])
    User.objects.create_user("ada", password=PASSWORD, is_staff=True)
    with stage(celery_app) as here, web_server() as site:
        # Before Celery 5.7, what settings with a namespace say wins over app.conf.update().
        settings.CELERY_BROKER_URL = settings.CELERY_RESULT_BACKEND = here.url
        here.worker(concurrency=1)
        double_click(here, site, bank)
        on_commit(here, site, bank)
        page(here, site, bank)
    connections.close_all()


def double_click(here: Stage, site: str, bank: Path) -> None:
    print("Two requests at once: POST /accounts/7/sync")
    with ThreadPoolExecutor(2) as browsers:
        answers = list(browsers.map(lambda _: post(f"{site}/accounts/7/sync"), range(2)))
    for status, answer in answers:
        print(f"    {status} {answer}")
    task_ids = {answer["task_id"] for _, answer in answers}
    here.expect("one was told 202, started; the other 200", sorted(s for s, _ in answers) == [200, 202])
    here.expect("both were given the same task_id", len(task_ids) == 1)
    wait_until(lambda: Run.objects.filter(account_id=7))
    holder = sync_account.lock_for(7).holder()
    here.expect("that task runs, and holds the lock", holder and {holder.owner} == task_ids)
    here.expect("for CELERY_REDISLOCK_TTL, 20 s, as it is renewed", holder and 0 < holder.remaining <= 20)
    _, answer = get(f"{site}/tasks/{min(task_ids)}")
    here.expect(f"GET /tasks/... says {answer['state']}", answer["state"] == "PENDING")

    print("The bank answers")
    (bank / "7").touch()
    ends = [outcome(site, task_id) for task_id in task_ids]
    good = {"state": "SUCCESS", "result": "account 7 is Ada's"}
    here.expect(f"GET /tasks/... says {ends[0]}", all(end == good for end in ends))
    runs = Run.objects.filter(account_id=7).count()
    here.expect(f"runs in the database: {runs}", runs == 1)
    status, answer = post(f"{site}/accounts/7/sync")
    here.expect("the next press starts another one", status == 202)
    outcome(site, answer["task_id"])


def on_commit(here: Stage, site: str, bank: Path) -> None:
    def rename(name: str) -> tuple[int, dict[str, Any]]:
        return post(f"{site}/accounts/8/rename", name=name)

    def runs() -> list[str]:
        return list(Run.objects.filter(task="push_name").order_by("id").values_list("name", flat=True))

    print("POST /accounts/8/rename calls delay_on_commit(), then finds the name too long and rolls back")
    status, answer = rename("Bob " * 10)
    here.expect(f"refused: {status} {answer}", status == 400)
    here.expect("nothing was published, no lock taken", push_name.lock_for(8).holder() is None)

    print("Three names that fit, the last two while the bank is busy with the first")
    statuses = [rename("Bobby")[0]]
    wait_until(runs)
    statuses += [rename("Rob")[0], rename("Robert")[0]]
    here.expect(f"accepted: {statuses}", statuses == [202, 202, 202])
    holder = push_name.lock_for(8).holder()
    here.expect("one task is queued, and holds the lock", holder and holder.state == "queued")
    (bank / "8").touch()
    wait_until(lambda: len(runs()) >= 2)
    # The only worker process does one after the other: what was published before this has been done after it.
    sync_account.apply_async((7,), lock=None).get(timeout=PATIENCE)
    here.expect(f"the bank was told twice, the latest name last: {runs()}", runs() == ["Bobby", "Robert"])


def page(here: Stage, site: str, bank: Path) -> None:
    print("The page of the locks, at /admin/locks/")
    sync_account.delay(9)
    handle = sync_account.lock_for(9)
    here.expect("a task holds its lock", handle.holder())
    stranger = Browser(site)
    staff = Browser(site)
    staff.ask("/admin/login/")
    login = {"username": "ada", "password": PASSWORD, "csrfmiddlewaretoken": staff.cookies["csrftoken"]}
    staff.ask("/admin/login/", method="POST", form=login)
    here.expect("the admin links to it", 'href="/admin/locks/"' in staff.ask("/admin/").text)
    form = {"csrfmiddlewaretoken": staff.cookies["csrftoken"]}
    look_at_the_locks(here, "/admin/locks/", handle.key, stranger, staff, **form)
    (bank / "9").touch()
    here.expect("the bank has answered: nothing is held", wait_until(lambda: handle.holder() is None))


@contextmanager
def web_server() -> Iterator[str]:
    """Serve it from a thread of this process, as Django's live tests do; yield its address."""
    server = ThreadedWSGIServer(("127.0.0.1", 0), _Quiet)
    server.set_app(application)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
        """Say nothing: the example tells what was answered."""


def post(url: str, **form: str) -> tuple[int, dict[str, Any]]:
    said = {"X-CSRFToken": TOKEN, "Cookie": f"csrftoken={TOKEN}"}
    return _answer(Request(url, urlencode(form).encode(), said))  # noqa: S310  an address of ours


def get(url: str) -> tuple[int, dict[str, Any]]:
    return _answer(Request(url))  # noqa: S310  an address of ours


def _answer(request: Request) -> tuple[int, dict[str, Any]]:
    try:
        with urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310  an address of ours
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            is_ours = error.headers.get_content_type() == "application/json"
            return error.code, json.load(error) if is_ours else {}


def outcome(site: str, task_id: str) -> dict[str, Any]:
    """What its page says when it is over."""
    wait_until(lambda: get(f"{site}/tasks/{task_id}")[1]["state"] not in {"PENDING", "STARTED"})
    return get(f"{site}/tasks/{task_id}")[1]
