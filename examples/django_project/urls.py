"""Where the views are."""

from django.urls import path

from examples.django_project import views

__all__ = ["urlpatterns"]

urlpatterns = [
    path("accounts/<int:account_id>/sync", views.sync),
    path("accounts/<int:account_id>/rename", views.rename),
    path("tasks/<uuid:task_id>", views.status),
]
