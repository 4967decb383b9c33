"""Runs: rounds compiled as one program, with files and resume, sweeps, several devices and hosts, costs and reports."""
