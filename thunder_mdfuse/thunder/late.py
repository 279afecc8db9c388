"""What is to be done once a module has been imported, by whomever: importing it here would take all
users of this package a second that few need.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def once_imported(name: str, done: Callable[[ModuleType], None]) -> None:
    """Call ``done`` with the module ``name``: now if it is there, else after its import."""
    module = sys.modules.get(name)
    if module is not None:
        done(module)
    else:
        sys.meta_path.insert(0, _Finder(name, done))


class _Finder(MetaPathFinder):
    def __init__(self, name: str, done: Callable[[ModuleType], None]) -> None:
        self.name, self.done = name, done

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec, which the other finders have, with a loader that calls back."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.done)
        return spec


class _Loader(Loader):
    def __init__(self, inner: Loader, done: Callable[[ModuleType], None]) -> None:
        self.inner, self.done = inner, done

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader makes it."""
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then what is to be done."""
        self.inner.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self.inner
        module.__loader__ = self.inner
        self.done(module)
