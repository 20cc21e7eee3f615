"""`tallystick call-topics`: lists of services that are called together, under one name (`topic://name`)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tallystick.cli.confirm import Yes, confirm
from tallystick.cli.links import AnyLink
from tallystick.cli.options import Json, Url
from tallystick.cli.output import note, print_json, print_table, when
from tallystick.core.names import check_name
from tallystick.link import Link

call_topics = typer.Typer(
    help="Call topics: list (also without a word), show, subscribe, unsubscribe, delete.", rich_markup_mode=None
)

Name = Annotated[str, typer.Argument(metavar="TOPIC")]
Service = Annotated[str, typer.Argument(metavar="SERVICE", help="URL that is called.")]


def add(app: typer.Typer) -> None:
    app.add_typer(call_topics, name="call-topics")


@call_topics.callback(invoke_without_command=True)
def _default(context: typer.Context, url: Url = "", as_json: Json = False) -> None:
    context.obj = context.obj._replace(url=url, as_json=as_json)
    if context.invoked_subcommand is None:
        list_call_topics(url, as_json)


@call_topics.command("list", help="All call topics.")
def list_call_topics(url: Url = "", as_json: Json = False) -> None:
    with AnyLink(url) as broker:
        answer = broker.get("call-topics")
    if as_json:
        print_json(answer)
        return
    found = sorted(answer["topics"], key=lambda view: str(view["topic"]))
    print_table(
        ["topic", "services#", "version#", "created", "changed"],
        [
            [one["topic"], len(_services(one)), one["version"], when(one["created_at"]), when(one["updated_at"])]
            for one in found
        ],
        nothing="no call topics yet; `tallystick call-topics subscribe TOPIC SERVICE` makes one",
    )


@call_topics.command(help="One call topic: the services that are called, in their order.")
def show(name: Name, url: Url = "", as_json: Json = False) -> None:
    with AnyLink(url) as broker:
        view = _find(broker, name)
    _show(view, as_json)


@call_topics.command(help="Add a service to a call topic, from the next transaction on; the first one makes the topic.")
def subscribe(
    name: Name,
    service: Service,
    remark: Annotated[str, typer.Option("--remark", help="Kept beside the URL, for people.")] = "",
    url: Url = "",
    as_json: Json = False,
) -> None:
    with AnyLink(url) as broker:
        view = broker.put("call-topics", check_name(name, "topic"), "subscribers", url=service, remark=remark)
    _show(view, as_json)


@call_topics.command(help="Take a service off a call topic; transactions that are under way call it all the same.")
def unsubscribe(name: Name, service: Service, url: Url = "", as_json: Json = False) -> None:
    with AnyLink(url) as broker:
        broker.delete("call-topics", check_name(name, "topic"), "subscribers", url=service)
        view = _find(broker, name)
    _show(view, as_json)


@call_topics.command(help="Delete a call topic; transactions that are under way keep the calls they have.")
def delete(name: Name, yes: Yes = False, url: Url = "", as_json: Json = False) -> None:
    with AnyLink(url) as broker:
        view = _find(broker, name)
        if not yes:
            confirm(f"delete call topic {name} with {len(_services(view)):,} services")
        broker.delete("call-topics", name)
    if as_json:
        print_json({"deleted": name})
    else:
        note(f"call topic {name} deleted")


def _find(broker: Link, name: str) -> dict[str, Any]:
    return dict(broker.get("call-topics", check_name(name, "topic")))


def _services(view: dict[str, Any]) -> list[dict[str, str]]:
    return list(view.get("subscribers", []))


def _show(view: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(view)
        return
    print_table(
        ["service", "remark"],
        [[one["url"], one.get("remark")] for one in _services(view)],
        nothing=f"call topic {view['topic']} has no services",
    )
