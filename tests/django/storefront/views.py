"""What the shop does for a request; the topic is given by the test."""

from __future__ import annotations

import os
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from storefront.models import Order
from tallystick.django import called_once, ts
from tallystick.dtm import Failure


def _order(topic: str, note: str) -> str:
    with ts.transaction() as tx:
        Order.objects.create(note=note)
        tx.send(topic, note)
        return tx.gid


@csrf_exempt
def order(request: HttpRequest, topic: str, note: str) -> HttpResponse:
    return JsonResponse({"gid": _order(topic, note), "pid": os.getpid()})


@csrf_exempt
@transaction.non_atomic_requests
def order_at_once(request: HttpRequest, topic: str, note: str) -> HttpResponse:
    return JsonResponse({"gid": _order(topic, note)})


@csrf_exempt
def order_and_fail(request: HttpRequest, topic: str, note: str) -> HttpResponse:
    _order(topic, note)
    raise RuntimeError("after the block")


@csrf_exempt
async def order_async(request: HttpRequest, topic: str, note: str) -> HttpResponse:
    return JsonResponse({"gid": await sync_to_async(_order)(topic, note)})


@csrf_exempt
async def order_wrongly_async(request: HttpRequest, topic: str, note: str) -> HttpResponse:
    return JsonResponse({"gid": _order(topic, note)})


@called_once
def called(request: HttpRequest, note: str) -> Any:
    if note == "refused":
        raise Failure("not that one")
    Order.objects.create(note=note)
