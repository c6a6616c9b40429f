"""The one error that is meant for a person: it is printed as one line, without a traceback."""


class UsageError(ValueError):
    """A wrong name, value or file. The message names what was given and what is allowed."""
