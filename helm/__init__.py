"""The Helm chart: what in it is generated, and the programs that it is tested with."""
