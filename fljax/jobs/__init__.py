"""Jobs: the settings of a TOML file and of arguments, checked, and the federation, model and methods that they name.

Layers of settings (`settings`, `layers`) become a `Job` (`job`), or a `SweepJob` (`sweep`). From a job, `parts` and
`assemble` (for a sweep `static_setting`) make what runs, and `config` and `sweep_settings` write the file that repeats
it. The commands of `fljax.cli` execute jobs; `fljax.results` has what they leave.
"""
