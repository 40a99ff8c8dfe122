"""Arguments bound to a signature: positional = keyword = default spelled out."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence

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

    Attributes:
        parameters: the parameters' names in order, or ``None`` where the
            signature cannot be inspected (some built-ins and extensions).
    """

    __slots__ = ("_blank", "_is_simple", "_positional", "_required", "_signature", "parameters")

    def __init__(self, function: Callable[..., object]) -> None:
        self._signature = _signature(function)
        parameters = self._signature.parameters.values() if self._signature else ()
        self.parameters = None if self._signature is None else tuple(self._signature.parameters)
        self._is_simple = all(p.kind in _ONE_VALUE for p in parameters)
        self._positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self._required = {p.name for p in parameters if p.default is p.empty}
        self._blank: dict[str, object] = {p.name: p.default for p in parameters}

    def bind(self, args: Sequence[object] | None, kwargs: Mapping[str, object] | None) -> dict[str, object]:
        """Name every argument, defaults filled in.

        ``*args`` appears as a list and ``**kwargs`` as a dict, under the names
        the signature gives them. Without a signature this is
        :meth:`bind_loosely`. The values are the caller's own objects.

        Raises:
            TypeError: the arguments do not fit the signature; the text is the interpreter's own.
        """
        args, kwargs = args or (), kwargs or {}
        if self._signature is None:
            return self.bind_loosely(args, kwargs)
        if self._is_simple:
            given = {**dict(zip(self._positional, args, strict=False)), **kwargs}
            bound = {**self._blank, **given}
            is_each_given_once = len(given) == len(args) + len(kwargs)
            if is_each_given_once and len(bound) == len(self._blank) and self._required <= given.keys():
                return bound
        by_signature = self._signature.bind(*args, **kwargs)  # words the error where they do not fit
        by_signature.apply_defaults()
        rest = {p.name for p in self._signature.parameters.values() if p.kind is p.VAR_POSITIONAL}
        return {name: list(v) if name in rest else v for name, v in by_signature.arguments.items()}

    def bind_loosely(
        self, args: Sequence[object] | None, kwargs: Mapping[str, object] | None
    ) -> dict[str, object]:
        """Describe a call that need not fit the signature: ``{"args": […], "kwargs": {…}}``.

        For tasks with ``typing=False``, which Celery publishes unchecked: the
        default key still exists, although positional and keyword spelling of
        one call then differ.
        """
        return {"args": list(args or ()), "kwargs": dict(kwargs or {})}


def _signature(function: Callable[..., object]) -> inspect.Signature | None:
    try:
        if sys.version_info >= (3, 14):
            # Annotations are evaluated lazily there; names imported for type checkers only would raise.
            import annotationlib  # noqa: PLC0415  exists from Python 3.14 on

            return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None
