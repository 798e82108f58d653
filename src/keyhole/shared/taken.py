"""How are groups of heads, and what was taken out of their signals, called?"""

from keyhole.models.heads import Head, head_name

SURE = 0.01  # a p-value
_HEADS = 6  # of a cluster, that are named


def draws_text(draws: int) -> str:
    """A doubt, where so few draws of the control cannot show anything; else nothing.

    >>> draws_text(99), draws_text(19)
    ('', '; 19 draws of the control can show nothing at p 0.01: take 99 or more')
    """
    least = round(1 / SURE) - 1
    told = f"; {draws} draws of the control can show nothing at p {SURE:g}: take {least} or more"
    return "" if draws >= least else told


def taken_text(taken: int | None) -> str:
    """What was taken out of signals.

    >>> taken_text(None), taken_text(0), taken_text(3)
    ('as they are', 'without the mean', 'without the mean and 3 largest directions')
    """
    if taken is None:
        return "as they are"
    return "without the mean" if taken == 0 else f"without the mean and {taken} largest direction{'s' * (taken > 1)}"


def cluster_text(heads: tuple[Head, ...]) -> str:
    """Some heads of a cluster, and how many more.

    >>> cluster_text(((1, 0), (2, 3)))
    '2 heads in 2 layers: 1.0, 2.3'
    """
    named = ", ".join(head_name(head) for head in heads[:_HEADS])
    more = f" and {len(heads) - _HEADS} more" if len(heads) > _HEADS else ""
    layers = len({layer for layer, _ in heads})
    return f"{len(heads)} heads in {layers} layer{'s' * (layers > 1)}: {named}{more}"
