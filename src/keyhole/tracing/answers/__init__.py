"""Where does an answer come from? From its tokens to the writers that a circuit begins with.

targets.py      which tokens are the answer
goals.py        what seeds are chosen for
seeds.py        the writers whose loss would undo the answer
likelihood.py   by what they do to its probability
linear.py       by what they write along a direction
"""
