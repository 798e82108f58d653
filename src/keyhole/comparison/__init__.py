"""How do circuits, tasks and heads compare?"""
