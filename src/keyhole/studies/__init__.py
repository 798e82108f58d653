"""What do many circuits show together? Every study is a package with its records, its report and its figure.

settings.py  what can be chosen about a study, read without torch


families/    do circuits come in families?
comparison/  how do two sides differ?
sinks/       firings on the first token
directions/  do heads share directions, and tasks channels?
stability/   how much of a circuit stays when the question is asked a little differently?
curves/      which method's edges carry an answer?
"""
