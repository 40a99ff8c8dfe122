"""Where the views are."""

from django.contrib import admin
from django.urls import path

from examples.django_project import views

__all__ = ["urlpatterns"]

urlpatterns = [
    path("accounts/<int:account_id>/sync", views.sync),
    path("accounts/<int:account_id>/rename", views.rename),
    path("tasks/<uuid:task_id>", views.status),
    # Before the admin's own addresses, which take all that is left.
    path("admin/locks/", views.locks, name="locks"),
    path("admin/locks/<path:view>", views.locks),
    path("admin/", admin.site.urls),
]
