"""How do programs ask? By a server of the Model Context Protocol over stdio, whose tools call the library."""
