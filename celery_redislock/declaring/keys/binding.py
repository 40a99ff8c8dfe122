"""Arguments bound to a signature: positional = keyword = default spelled out."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Binder:
    """Binds the arguments of a call to the parameters of a task's body.

    Made once per task; :meth:`bind` runs at every publish, in any thread. The
    interpreter itself binds: a function is compiled that has the signature and
    returns its arguments by name, as Celery compiles one that only refuses them
    (celery 5.7.0, ``utils/functional.py``, ``head_from_fun``).

    Args:
        function: the body: ``task.run``, which on a ``bind=True`` or class-based
            task is a bound method and so has no ``self`` left; wrappers that keep
            ``__wrapped__`` (``functools.wraps``, autoretry) and partials are
            looked through.

    Attributes:
        parameters: the parameters' names in order, or ``None`` where the
            signature cannot be inspected (some built-ins and extensions).
    """

    __slots__ = ("_bound", "_signature", "parameters")

    def __init__(self, function: Callable[..., object]) -> None:
        self._signature = signature = _signature(function)
        self.parameters = None if signature is None else tuple(signature.parameters)
        self._bound = _loose if signature is None else _compiled(signature)

    def bind(self, args: Sequence[object] | None, kwargs: Mapping[str, object] | None) -> dict[str, object]:
        """Name every argument, defaults filled in.

        ``*args`` appears as a list and ``**kwargs`` as a dict, under the names
        the signature gives them. Without a signature this is
        :meth:`bind_loosely`. The values are the caller's own objects.

        Raises:
            TypeError: the arguments do not fit the signature; the text is the interpreter's own.
        """
        try:
            return self._bound(*(args or ()), **(kwargs or {}))
        except TypeError:
            if self._signature is not None:
                self._signature.bind(*(args or ()), **(kwargs or {}))  # says what does not fit
            raise

    def bind_loosely(
        self, args: Sequence[object] | None, kwargs: Mapping[str, object] | None
    ) -> dict[str, object]:
        """Describe a call that need not fit the signature: ``{"args": […], "kwargs": {…}}``.

        For tasks with ``typing=False``, which Celery publishes unchecked: the
        default key still exists, although positional and keyword spelling of
        one call then differ.
        """
        return _loose(*(args or ()), **(kwargs or {}))


def _loose(*args: object, **kwargs: object) -> dict[str, object]:
    return {"args": [*args], "kwargs": kwargs}


class _Source(str):
    """What stands in a signature as it is."""

    __repr__ = str.__str__


def _compiled(signature: inspect.Signature) -> Callable[..., Any]:
    """Return a function with this signature that returns its arguments by name."""
    parameters = signature.parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    head = signature.replace(
        parameters=[
            p.replace(
                annotation=p.empty,
                default=_Source(f"defaults[{p.name!r}]") if p.name in defaults else p.empty,
            )
            for p in parameters
        ],
        return_annotation=signature.empty,
    )
    named = [f"{p.name!r}: {f'[*{p.name}]' if p.kind is p.VAR_POSITIONAL else p.name}" for p in parameters]
    source = f"lambda {str(head)[1:-1]}: {{{', '.join(named)}}}"
    return eval(source, {"defaults": defaults})  # type: ignore[no-any-return]  # noqa: S307  names only


def _signature(function: Callable[..., object]) -> inspect.Signature | None:
    try:
        if sys.version_info >= (3, 14):
            # Annotations are evaluated lazily there; names imported for type checkers only would raise.
            import annotationlib  # noqa: PLC0415  exists from Python 3.14 on

            return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None
