"""What tells two apart? Representatives side by side, cues that are broken, signals that attend alike."""
