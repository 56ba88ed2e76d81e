"""The user's handler: how it is loaded, what is called of it by itself, what is said of its failures."""
