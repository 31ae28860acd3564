"""The tuning audit: is the node set up as training needs it? One file a topic, one check a row."""
