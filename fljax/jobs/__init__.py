"""Jobs: what a TOML file and arguments ask for, read once and checked, and the federation, model and methods it names.

Layers of settings (`settings`, `layers`) become a `Job` (`job`), or a `SweepJob` (`sweep`). A job becomes what runs
(`parts`, `assemble`; of a sweep `static_setting`) and the file that repeats it (`config`, `sweep_settings`); what is
finished can be read again (`remake`) and compared (`finished`). Commands (`fljax.cli`) say what is done with a job.
"""
