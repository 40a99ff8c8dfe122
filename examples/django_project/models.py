"""Accounts, and each run of a task on one of them."""

from django.db import models

__all__ = ["Account", "Run"]


class Account(models.Model):
    name = models.CharField(max_length=20)


class Run(models.Model):
    """One run: of which task, and the name it told the bank."""

    account = models.ForeignKey(Account, on_delete=models.CASCADE)
    task = models.CharField(max_length=20)
    name = models.CharField(max_length=20)
