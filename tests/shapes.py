"""Checks of shapes at a fraction of the cost of jaxtyping's: nothing is bound, and every argument is looked at once.

Small functions are called a hundred thousand times by one test. So the first calls of a function are checked, and of
those after them one in so many; a shape that is wrong is wrong early.
"""

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import beartype
import jaxtyping
from jaxtyping import _decorator
from jaxtyping._storage import pop_shape_memo, push_shape_memo

ALL, ONE_IN = 1000, 20  # calls of a function that are checked, in each process of the tests
_of_jaxtyping = _decorator.jaxtyped
_look = beartype.beartype(conf=beartype.BeartypeConf(violation_type=TypeError))  # as without the check, often


def checked(fn: Any, *, typechecker: Any = _look) -> Any:
    """A function whose arguments and result must have the shapes they are said to have; dimensions agree within a call.

    In place of `jaxtyping.jaxtyped`, which looks at arguments again beside the result, for longer messages.
    """
    if not inspect.isfunction(fn):  # classes, properties and methods come back here with their functions
        return _of_jaxtyping(fn, typechecker=typechecker)
    for name, hint in fn.__annotations__.items():  # names known to the type checker alone stand for anything
        fn.__annotations__[name] = _decorator._destring_annotation(hint, fn.__globals__)
    inner: Callable[..., Any] = typechecker(fn)
    calls = itertools.count()

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        number = next(calls)
        if number >= ALL and number % ONE_IN:
            return fn(*args, **kwargs)
        push_shape_memo({})
        try:
            return inner(*args, **kwargs)
        finally:
            pop_shape_memo()

    return wrapped


def install(modules: list[str]) -> None:
    """Every function of these modules is checked from now on."""

    def jaxtyped(fn: Any = None, *, typechecker: Any) -> Any:
        return checked if fn is None else checked(fn)

    _decorator.jaxtyped = jaxtyping.jaxtyped = jaxtyped
    jaxtyping.install_import_hook(modules, "beartype.beartype")
