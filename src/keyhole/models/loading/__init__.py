"""Where does a model come from, and on which device does it lie?

load.py          the organism, the hub, a folder, a GGUF file, or the user's own hands
gguf.py          a GGUF file, converted once
gguf_header.py   is the file whole?
neighbours.py    the model inside one of nnsight or of TransformerLens
quiet.py         libraries without a word
device.py        the device that is meant, or why not
"""
