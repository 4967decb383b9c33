"""Federations: data sets, who owns what, and how a batch is gathered.

`fljax.load` reads a data set, `fljax.PARTITIONS` deals it out, `fljax.build` makes a federation of given rows.
"""

from pkgutil import iter_modules

import lazy_loader

# A module is imported when it is first used.
__getattr__, __dir__, _ = lazy_loader.attach(__name__, [module.name for module in iter_modules(__path__)])
