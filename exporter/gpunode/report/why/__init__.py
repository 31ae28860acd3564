"""What is said to who runs a job: where its time went, what took it, and what would give it back.

The answer is a report, as that on the capacity is. What was not recorded is said first, and nothing
is called well that was not looked at.
"""
