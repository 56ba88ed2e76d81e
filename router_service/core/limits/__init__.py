"""How much may wait, how much each caller and tenant may have, and how much a replica takes."""
