"""Values from users' files, shortened for messages."""


def short(value: object) -> str:
    """The value in one line of at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
