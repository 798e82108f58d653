"""How are examples of thousands of signals found in one pass over a corpus, with little memory?"""
