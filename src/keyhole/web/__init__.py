"""How does one look at all this? One front end for the explorer, for one-file pages and for notebooks."""
