"""Two buttons, and a look at what became of a task."""

from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET, require_POST

from examples.django_project.models import Account
from examples.django_project.tasks import push_name, sync_account

__all__ = ["rename", "status", "sync"]


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
