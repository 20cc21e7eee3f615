"""What a client answers to uses that Python would refuse with a sentence about its own protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn


class OneProcess:
    """Belongs to the process that made it: it is neither pickled nor copied."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        name = type(self).__name__
        raise TypeError(
            f"{name}: it cannot be pickled or copied, because its connections belong to this process. Make a {name} in "
            "the child: in the target function, or in the initializer of the pool."
        )


class NotAsync(OneProcess):
    """Used with `with` alone."""

    _in_coroutines: ClassVar[str]

    if not TYPE_CHECKING:  # a type checker refuses `async with` by itself, as long as it does not see these

        async def __aenter__(self) -> NoReturn:
            raise TypeError(
                f"{type(self).__name__}: it is used with `with` (got `async with`). In coroutines, use "
                f"{self._in_coroutines}."
            )

        async def __aexit__(self, *_: object) -> None: ...


class NotSync(OneProcess):
    """Used with `async with` alone."""

    _on_threads: ClassVar[str]

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError(
                f"{type(self).__name__}: it is used with `async with` (got `with`). Outside of coroutines, use "
                f"{self._on_threads}."
            )

        def __exit__(self, *_: object) -> None: ...
