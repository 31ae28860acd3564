"""What leaves the daemon: the text formats, dcgm-exporter's names, HTTP."""
