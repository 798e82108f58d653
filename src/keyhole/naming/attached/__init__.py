"""Where do names go? To edges and heads, and into files."""
