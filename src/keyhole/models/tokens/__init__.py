"""How does a text become tokens, and which are there?

prompts.py      text to token ids, explicitly
vocabulary.py   which tokens a model knows
spans.py        where tokens stand in a text
chat.py         texts as chat messages
"""
