"""Which contrasts are made of the built-in tasks?"""
