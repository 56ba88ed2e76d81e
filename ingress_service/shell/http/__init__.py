"""The HTTP server: connections, requests and WebSockets, as ASGI applications use them."""
