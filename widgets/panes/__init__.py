"""The panes of the main screen: each a module of this folder with a `PANE`, which nothing else need name.

Layout, keys, help and pictures are made from this list, in the order of their keys.
"""

from importlib import import_module
from pkgutil import iter_modules

from interlock.widgets.pane import PaneKind

_FOUND: list[PaneKind] = [import_module(f"{__name__}.{each.name}").PANE for each in iter_modules(__path__)]
PANES = tuple(sorted(_FOUND, key=lambda kind: kind.key))
