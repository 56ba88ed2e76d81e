"""Messages of routers as what HTTP says, and the other way round. Pure."""
