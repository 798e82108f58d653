"""Requests that become calls of the library, and its results that become JSON: one function per kind of work."""
