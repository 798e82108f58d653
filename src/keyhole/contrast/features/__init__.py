"""Which subspaces does a contrast live in, which of them are real, and in which heads?"""
