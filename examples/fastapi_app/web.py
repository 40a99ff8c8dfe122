"""The web application: ``uvicorn examples.fastapi_app.web:api``.

Publishing talks to the lock server and the broker, and blocks meanwhile. So endpoints that publish are
plain functions, which FastAPI calls in threads; one that has to be ``async`` publishes in a thread itself.
"""

import os
from hmac import compare_digest
from uuid import UUID

from a2wsgi import WSGIMiddleware
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBasic
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from celery_redislock import DuplicateTask
from celery_redislock.web import application
from examples.fastapi_app.shop import app, build_report, sync_account

__all__ = ["api"]

PASSWORD = os.environ.get("STAFF_PASSWORD", "only-for-the-example")

api = FastAPI()
basic = HTTPBasic()
page = WSGIMiddleware(application(app))


class Started(BaseModel):
    """Which task does the work, and whether an earlier request has started it."""

    task_id: str
    is_duplicate: bool


class Progress(BaseModel):
    """How far a task is."""

    state: str
    result: str | None


@api.post("/accounts/{account_id}/sync")
def sync(account_id: int, response: Response) -> Started:
    """Start it, or answer with the one on its way."""
    result = sync_account.delay(account_id)
    response.status_code = 200 if result.is_duplicate else 202
    return Started(task_id=result.id, is_duplicate=result.is_duplicate)


@api.post("/accounts/{account_id}/report", status_code=202)
async def report(account_id: int) -> Started:
    """Start it; DuplicateTask if there is one: see below."""
    result = await run_in_threadpool(build_report.delay, account_id)
    return Started(task_id=result.id, is_duplicate=False)


@api.exception_handler(DuplicateTask)
def already_at_work(_: Request, duplicate: DuplicateTask) -> JSONResponse:
    """Tell who runs or has run it, and when to ask again if that is known: not while it runs."""
    headers = {} if duplicate.retry_after is None else {"Retry-After": str(duplicate.retry_after)}
    return JSONResponse(
        {"detail": "already done" if headers else "already running", "task_id": duplicate.task_id},
        status_code=409,
        headers=headers,
    )


@api.get("/tasks/{task_id}")
def progress(task_id: UUID) -> Progress:
    """Tell how far a task is; an id nobody knows is PENDING, as Celery has it."""
    result = app.AsyncResult(str(task_id))
    return Progress(state=result.state, result=str(result.result) if result.ready() else None)


async def staff(request: Request) -> str:
    """Return the name of who has logged in; for routes as ``Depends(staff)``."""
    login = await basic(request)
    if login is None or not compare_digest(login.password.encode(), PASSWORD.encode()):
        raise HTTPException(401, "staff only", {"WWW-Authenticate": "Basic"})
    return login.username


async def locks(scope: Scope, receive: Receive, send: Send) -> None:
    """Show the page of the locks to staff. FastAPI calls no dependencies for what is mounted."""
    await staff(Request(scope))
    await page(scope, receive, send)


api.mount("/locks", locks)
