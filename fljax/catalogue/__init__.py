"""What can be named (methods, bricks, partitions, networks, samplings) and what can be set in it, as plain data.

Nothing here starts JAX before it must: `entries` keeps on disk what it has once read off the library.
"""
