"""Arguments bound to a signature: positional = keyword = default spelled out."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence

__all__ = ["Binder"]

_ONE_VALUE = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Binder:
    """Binds the arguments of a call to the parameters of a task's body.

    Made once per task; :meth:`bind` runs at every publish, in any thread. A
    signature without ``*args``, ``**kwargs`` and positional-only parameters is
    bound without ``inspect``, which is several times faster.

    Args:
        function: the body: ``task.run``, which on a ``bind=True`` or class-based
            task is a bound method and so has no ``self`` left; wrappers that keep
            ``__wrapped__`` (``functools.wraps``, autoretry) and partials are
            looked through.
        drop_first: leave out the first parameter: for a body taken from its
            class unbound.

    Attributes:
        parameters: the parameters' names in order, or ``None`` where the
            signature cannot be inspected (some built-ins and extensions).
    """

    __slots__ = ("_blank", "_missing_after", "_positional", "_signature", "parameters")

    def __init__(self, function: Callable[..., object], *, drop_first: bool = False) -> None:
        self._signature = _signature(function, drop_first=drop_first)
        self.parameters = None if self._signature is None else tuple(self._signature.parameters)
        self._blank: dict[str, object] | None = None
        self._positional: tuple[str, ...] = ()
        self._missing_after: tuple[tuple[str, ...], ...] = ()
        if self._signature is not None:
            self._prepare(tuple(self._signature.parameters.values()))

    def bind(self, args: Sequence[object] | None, kwargs: Mapping[str, object] | None) -> dict[str, object]:
        """Name every argument, defaults filled in.

        ``*args`` appears as a list and ``**kwargs`` as a dict, under the names
        the signature gives them. Without a signature this is
        :meth:`bind_loosely`. The values are the caller's own objects.

        Args:
            args: positional arguments; ``None`` is none, as in ``apply_async``.
            kwargs: keyword arguments; ``None`` is none.

        Raises:
            TypeError: the arguments do not fit the signature; the text is the
                interpreter's own.
        """
        args, kwargs = args or (), kwargs or {}
        if self._signature is None:
            return self.bind_loosely(args, kwargs)
        if self._blank is not None:
            bound = self._bind_simple(args, kwargs)
            if bound is not None:
                return bound
        return self._bind_by_signature(self._signature, args, kwargs)

    def bind_loosely(
        self, args: Sequence[object] | None, kwargs: Mapping[str, object] | None
    ) -> dict[str, object]:
        """Describe a call that need not fit the signature: ``{"args": […], "kwargs": {…}}``.

        For tasks with ``typing=False``, which Celery publishes unchecked: the
        default key still exists, although positional and keyword spelling of
        one call then differ.
        """
        return {"args": list(args or ()), "kwargs": dict(kwargs or {})}

    def _prepare(self, parameters: tuple[inspect.Parameter, ...]) -> None:
        if any(parameter.kind not in _ONE_VALUE for parameter in parameters):
            return
        positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        required = [p.name for p in parameters if p.default is p.empty]
        self._blank = {p.name: p.default for p in parameters}
        self._positional = tuple(p.name for p in positional)
        self._missing_after = tuple(
            tuple(name for name in required if name not in self._positional[:given])
            for given in range(len(positional) + 1)
        )

    def _bind_simple(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object] | None:
        """Bind without ``inspect``; ``None`` for whatever does not fit: the signature words the error."""
        given = len(args)
        if self._blank is None or given > len(self._positional):
            return None
        for name in self._missing_after[given]:
            if name not in kwargs:
                return None
        bound = self._blank.copy()
        bound.update(zip(self._positional, args, strict=False))
        if kwargs:
            if given and not kwargs.keys().isdisjoint(self._positional[:given]):
                return None
            bound.update(kwargs)
            if len(bound) != len(self._blank):
                return None
        return bound

    @staticmethod
    def _bind_by_signature(
        signature: inspect.Signature, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> dict[str, object]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return {name: list(v) if _is_rest(signature, name) else v for name, v in bound.arguments.items()}


def _is_rest(signature: inspect.Signature, name: str) -> bool:
    return signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL


def _signature(function: Callable[..., object], *, drop_first: bool) -> inspect.Signature | None:
    try:
        if sys.version_info >= (3, 14):
            # Annotations are evaluated lazily there; names imported for type checkers only would raise.
            import annotationlib  # noqa: PLC0415  exists from Python 3.14 on

            signature = inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
        else:
            signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    if not drop_first:
        return signature
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        del parameters[0]
    return signature.replace(parameters=parameters)
