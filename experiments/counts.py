"""A number of seeds, rounds or repeats on the command line of a script."""

import argparse


def count(text: str) -> int:
    """A whole number of at least 1: 0 would be taken for one that was not given."""
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text}: give a whole number from 1 on")
    return int(text)
