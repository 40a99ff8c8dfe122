"""Two buttons, a look at what became of a task, and the page of the locks."""

from typing import Any
from uuid import UUID

from django.contrib.admin.views.decorators import staff_member_required
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET, require_POST

from celery_redislock.web import application
from examples.django_project.celery import app
from examples.django_project.models import Account
from examples.django_project.tasks import push_name, sync_account

__all__ = ["locks", "rename", "status", "sync"]

page = application(app)


@staff_member_required
def locks(request: HttpRequest, view: str = "") -> HttpResponse:
    """Show the page of the locks, which is a WSGI application, to staff."""
    root = request.path.removesuffix(f"/{view}")
    said: list[Any] = []
    body = page(
        {**request.META, "SCRIPT_NAME": root, "PATH_INFO": f"/{view}"}, lambda *line: said.extend(line)
    )
    status, headers = said
    return HttpResponse(b"".join(body), status=int(status[:3]), headers=dict(headers))


@require_POST
def sync(_: HttpRequest, account_id: int) -> JsonResponse:
    """Start it; whoever presses again meanwhile gets the task that is on its way."""
    result = sync_account.delay(account_id)
    answer = {"task_id": result.id, "is_duplicate": result.is_duplicate}
    return JsonResponse(answer, status=200 if result.is_duplicate else 202)


@require_POST
def rename(request: HttpRequest, account_id: int) -> JsonResponse:
    """Rename, and tell the bank what is committed; what is rolled back takes no lock."""
    account = get_object_or_404(Account, id=account_id)
    try:
        with transaction.atomic():
            account.name = request.POST["name"]
            account.save()
            push_name.delay_on_commit(account_id)
            account.full_clean()
    except ValidationError as error:
        return JsonResponse({"errors": error.messages}, status=400)
    return JsonResponse({"name": account.name}, status=202)


@require_GET
def status(_: HttpRequest, task_id: UUID) -> JsonResponse:
    """Tell how far a task is, and its result."""
    result = sync_account.AsyncResult(str(task_id))
    return JsonResponse({"state": result.state, "result": str(result.result)})
