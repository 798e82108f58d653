"""The explorer: one front end for the server's page, one-file pages and notebooks."""
