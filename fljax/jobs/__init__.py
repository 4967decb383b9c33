"""Jobs: what a TOML file and arguments ask for, read once and checked, and the federation, model and methods it names.

Layers of settings (`settings`) become a `Job` (`job`), a job becomes what runs (`assemble`) and the file that repeats
it (`config`); what is finished can be read again (`remake`) and compared (`finished`). Commands (`fljax.cli`) say what
is done with a job.
"""
