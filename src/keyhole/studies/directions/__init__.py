"""Do heads coordinate through shared directions, and use the same channels in other tasks?

heard.py       the signals of heads in residual space
alike.py       cosines of heads, compared with other channels of theirs; what all streams have in common
directions.py  the study; record.py: its record, and channels in two tasks; report.py, figure.py: how it reads
"""
