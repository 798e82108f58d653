"""Which query-key features tell things apart? From contrasts, without labels, and out of sparse autoencoders.

contrast/   features from contrasts between keys
discovery/  features without labels
focus.py    edits that make a model look at marked text
sae.py      directions of sparse autoencoders, compared with signals
"""
