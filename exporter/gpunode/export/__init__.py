"""The output of the daemon: text formats, dcgm-exporter's names, HTTP."""
