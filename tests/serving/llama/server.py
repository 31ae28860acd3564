"""llama.cpp's server on a model, with two requests at a time and a page of metrics: FILE PORT.

It takes the package xllamacpp, which has the server's own code: https://github.com/xorbitsai/xllamacpp
"""

import signal
import sys

import xllamacpp

settings = xllamacpp.CommonParams()
settings.model.path = sys.argv[1]
settings.port = int(sys.argv[2])
settings.endpoint_metrics = True
settings.n_parallel = 2
settings.n_ctx = 4096
settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
settings.warmup = False
server = xllamacpp.Server(settings)
signal.pause()
