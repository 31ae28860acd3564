"""Windows of programs that ran on real GPUs, each with what a trace says that the GPU did."""
