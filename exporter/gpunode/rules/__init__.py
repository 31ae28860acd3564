"""The rules for Prometheus, as a site wants them: ``gpunode rules``.

``rules.yaml`` has every rule once, with names in braces where a site may want something else. It
is generated from the project's folder ``alerts``; the Helm chart has a link to it.
"""
