"""The one exception users meet."""


class KeyholeError(Exception):
    """Something the user asked for cannot be done; the message says what, why, and what to do instead."""
