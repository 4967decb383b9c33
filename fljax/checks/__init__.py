"""Checks of a run's arguments, network, states and effort, before its first round; errors say what is allowed."""
