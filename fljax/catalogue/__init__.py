"""All names (methods, bricks, partitions, networks, samplings) and their settings, as plain data.

Nothing here starts JAX before it must: `entries` caches on disk what it has read from the library.
"""
