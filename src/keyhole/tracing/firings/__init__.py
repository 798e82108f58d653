"""Why does a head attend here? The fewest signals whose removal takes an attention weight below its threshold.

why.py           explain one firing, or those of a layer
sites.py         which firings are explained together
attribution.py   integrated gradients as one vector
candidates.py    attributions of all (writer, channel) pairs, without building their rows
search.py        the shortest prefix whose removal takes a firing below tau
explained.py     what came of it, in columns
firing.py        Firing, Side: one of them, as an object; text.py: how it reads
signals.py       a signal in residual space
"""
