"""A value from somebody's file as it may stand in a message."""


def short(value: object) -> str:
    """The value in one line of at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
