"""Does a method find what was put in? Small attention heads whose features are known."""
