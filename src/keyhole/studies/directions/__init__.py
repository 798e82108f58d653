"""Do heads coordinate through shared directions, and use the same channels in other tasks?

heard.py     what heads hear in residual space; ambient.py: what all streams have in common, and how it is taken out
alike.py     cosines of heads, beside the same heads with other channels (taken.py: what these groups are called)
tasks.py     channels in two tasks, beside split halves of one
signals.py   all of it; record.py, text.py: what came of it, and how that reads
"""
