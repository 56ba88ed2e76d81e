"""The decorators, and what is read off a decorated handler."""
