"""How is each published item measured here? A module per subject with `RUNS`, a table of experiments by id.

A new module in this folder is found by itself: there is no list to extend. Its experiments take a Job, put pictures
into its folder, and return an Outcome; they say in the note what stood in for what.
"""
