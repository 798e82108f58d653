"""A package's public names stay what they are, whatever is imported afterwards.

Python binds a submodule in its package when it is imported: importing `keyhole.faithfulness.effects` once more, after
it has left `sys.modules`, would replace the function `keyhole.faithfulness.effects` by the module of the same name.
"""

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A package whose submodules do not replace its public names."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in self.__dict__.get("__all__", ())):
            super().__setattr__(name, value)


def keep_names(package: str) -> None:
    """Names in the package's `__all__` are never replaced by submodules."""
    sys.modules[package].__class__ = _Package
