"""`manage.py tallystick_consume`: have messages handled, until SIGTERM or SIGINT."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from tallystick.django import handlers
from tallystick.django.service import ts


class ConsumeCommand(BaseCommand):
    help = (
        f"Handles messages: imports the module {handlers.MODULE} of every app, and runs what it has subscribed with "
        "@ts.subscribe(...). At SIGTERM or SIGINT the handlers at work get 20 s to finish, and the rest is given back."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--topic", action="append", default=[], help="only this topic; may be given several times")

    def handle(self, *args: Any, topic: list[str], **options: Any) -> None:
        handlers.discover()
        known = {one.topic for one in ts.registered}
        unknown = sorted(set(topic) - known)
        if unknown or not known:
            raise CommandError(
                f"no handler is subscribed to {', '.join(unknown) or 'anything'}; the modules {handlers.MODULE} of the "
                f"installed apps subscribe to {', '.join(sorted(known)) or 'nothing'}"
            )
        for one in ts.take_up(topic):
            where = "without a transaction" if one.using is None else f"in database {one.using}"
            self.stdout.write(f"{one.topic}: {one.handler.__module__}.{one.handler.__qualname__}, {where}")
        self.stdout.write("consuming; stop with SIGTERM or Ctrl-C")
        self.stdout.flush()
        ts.run()
        ts.close()
        self.stdout.write("stopped")


Command = ConsumeCommand
