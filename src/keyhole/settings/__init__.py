"""What can be chosen, once for library, command line, server and files: records that are read without torch.

fields.py    a record's fields: default, help, what they take; settings given as keywords
"""
