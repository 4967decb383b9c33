"""Finished runs in hand: results folders read, compared over seeds, joined, and their models asked for predictions."""

from pkgutil import iter_modules

import lazy_loader

# A module is imported when it is first used.
__getattr__, __dir__, _ = lazy_loader.attach(__name__, [module.name for module in iter_modules(__path__)])
