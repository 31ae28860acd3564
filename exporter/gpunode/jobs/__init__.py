"""The jobs on the GPUs: processes, cgroups, owners, pods and training steps."""
