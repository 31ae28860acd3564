"""The node page in a real browser, over nodes that a scene plays."""
