"""How do programs ask? A server of the Model Context Protocol over stdio, whose tools call the library (`keyhole mcp`)."""
