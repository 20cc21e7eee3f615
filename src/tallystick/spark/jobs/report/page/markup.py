"""HTML put together so that nothing gets into it unescaped: text is text until `tag` has made it markup."""

from __future__ import annotations

from html import escape

_EMPTY = frozenset({"meta", "line", "rect", "path"})


class Markup(str):
    """HTML already; made by the functions of this module only, or from our own constants."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | int | float | None) -> Markup:
    """An element. Children that are plain text are escaped; attributes always are. `class_` is written class, and an
    underscore within a name is a hyphen; what is None is left out."""
    given = "".join(
        f' {key.strip("_").replace("_", "-")}="{escape(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _EMPTY and not children:
        return Markup(f"<{name}{given}>" if name == "meta" else f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{join(*children)}</{name}>")


def join(*children: str | None) -> Markup:
    """One after the other; what is None is left out."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children if child))


def _number(value: str | int | float) -> str:
    """Three places are finer than any screen."""
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
