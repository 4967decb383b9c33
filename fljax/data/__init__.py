"""Federations: data sets, who owns what, and how a batch is gathered.

`fljax.load` reads a data set, `fljax.PARTITIONS` deals it out, `fljax.build` makes a federation of given rows.
"""
