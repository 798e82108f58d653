"""The explorer's server: the library's own JSON on a loopback address, behind a token, with one queue for all work."""
