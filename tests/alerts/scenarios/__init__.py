"""What happens to a fleet, and who is notified: the specification of the rules, as data.

``*.yaml`` beside this file says it in the shorthand of ``shorthand.py``; ``fleet.py`` turns a
scenario into the series that Prometheus would have of it.
"""
