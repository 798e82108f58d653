"""Tracing: who wrote what a head reads."""
