"""The command line: app.py knows the commands; each calls one function of the library and shows what it returned."""
