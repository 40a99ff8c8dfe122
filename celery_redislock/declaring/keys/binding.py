"""Arguments bound to a signature: positional = keyword = default spelled out."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence


class Binder:
    """Binds the arguments of a call to the parameters of a task's body. Thread-safe.

    The interpreter itself binds: a function is compiled that has the signature and returns its arguments by
    name, as Celery compiles one that only refuses them (celery 5.7.0, ``utils/functional.py``,
    ``head_from_fun``).

    Args:
        function: the body, ``task.run``: bound methods have no ``self`` left; wrappers that keep
            ``__wrapped__`` (``functools.wraps``, autoretry) and partials are looked through.

    Attributes:
        parameters: their names in order; ``None`` where there is no signature (some built-ins).
        bound: is called as the body is, and names every argument, defaults filled in: ``*args`` as a list and
            ``**kwargs`` as a dict, under the names the signature gives them; without one, as
            :meth:`bind_loosely` does. It raises ``TypeError`` for arguments that do not fit.
    """

    __slots__ = ("_signature", "bound", "parameters")

    def __init__(self, function: Callable[..., object]) -> None:
        self._signature = signature = _signature(function)
        self.parameters = None if signature is None else tuple(signature.parameters)
        self.bound = _compiled(signature) if signature else lambda *a, **k: self.bind_loosely(a, k)

    def misfit(self, args: Sequence[object] | None, kwargs: Mapping[str, object] | None) -> str:
        """Return what does not fit the signature, in the words of the interpreter; '' for nothing.

        Python 3.13.0 misses a positional-only argument that is named where there are ``**kwargs``.
        """
        try:
            if self._signature is not None:
                self._signature.bind(*(args or ()), **(kwargs or {}))
        except TypeError as error:
            return str(error)
        return ""

    def bind_loosely(
        self, args: Sequence[object] | None, kwargs: Mapping[str, object] | None
    ) -> dict[str, object]:
        """Describe a call that need not fit the signature: ``{"args": […], "kwargs": {…}}``.

        For tasks with ``typing=False``, which Celery publishes unchecked: positional and keyword spelling of
        one call differ then.
        """
        return {"args": list(args or ()), "kwargs": dict(kwargs or {})}


def _compiled(signature: inspect.Signature) -> Callable[..., dict[str, object]]:
    """Return a function with this signature that returns its arguments by name."""
    parameters = list(signature.parameters.values())
    optional = [p for p in parameters if p.default is not p.empty]
    bare = [
        p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else None) for p in parameters
    ]
    head = str(signature.replace(parameters=bare, return_annotation=signature.empty))[1:-1]
    named = [f"{p.name!r}: {f'[*{p.name}]' if p.kind is p.VAR_POSITIONAL else p.name}" for p in parameters]
    bound = eval(f"lambda {head}: {{{', '.join(named)}}}", {})  # noqa: S307  names only
    bound.__defaults__ = tuple(p.default for p in optional if p.kind is not p.KEYWORD_ONLY)
    bound.__kwdefaults__ = {p.name: p.default for p in optional if p.kind is p.KEYWORD_ONLY}
    return bound  # type: ignore[no-any-return]  # compiled


def _signature(function: Callable[..., object]) -> inspect.Signature | None:
    try:
        if sys.version_info >= (3, 14):
            # Annotations are evaluated lazily there; names imported for type checkers only would raise.
            import annotationlib  # noqa: PLC0415  exists from Python 3.14 on

            return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None
