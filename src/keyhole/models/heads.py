"""What is a head called? (9, 6) in Python, 9.6 in text: layer 9, head 6."""

Head = tuple[int, int]  # layer, head
_DIGITS = 19  # of a number that can be meant; Python refuses to read thousands of them


def head_name(head: Head) -> str:
    """A head as it is written everywhere.

    >>> head_name((9, 6))
    '9.6'
    """
    return f"{head[0]}.{head[1]}"


def head_named(text: str) -> Head | None:
    """The head that a text such as 9.6 names; None: it names none.

    >>> head_named("9.6"), head_named("9")
    ((9, 6), None)
    """
    layer, dot, head = text.partition(".")
    if not (dot and layer.isdecimal() and head.isdecimal() and len(text) < _DIGITS):
        return None
    return int(layer), int(head)
