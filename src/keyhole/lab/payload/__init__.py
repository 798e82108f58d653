"""Does a contrast find what a head was made to look for? The payload-retrieval toy and the features of its heads."""
