"""Many runs as one: points of hyper-parameters x seeds in one program, searched with files, halving and a table."""

from fljax.run.sweep.program import sweep as sweep
