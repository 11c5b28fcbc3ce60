"""What may be chosen: the axes of a role, the boundary between roles, and the rules that bind them."""
