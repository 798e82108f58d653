"""How do circuits compare: with each other, with published ones, with what other methods find?"""
