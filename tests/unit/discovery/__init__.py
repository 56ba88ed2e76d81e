"""How servers are found."""
