"""Tests of what is broken, since when and until when."""
