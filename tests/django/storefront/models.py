from __future__ import annotations

from django.db import models


class Order(models.Model):
    note = models.CharField(max_length=100, unique=True)

    def __str__(self) -> str:
        return str(self.note)
